"""The API tokens of a running server: whose one is, and what operators do with them."""

from __future__ import annotations

import functools
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from server.domain import tokens as rules
from server.domain.errors import Conflict
from server.domain.permits import MAX_LINK_S
from server.domain.tokens import TokenRecord
from server.stages.stage import Core, Stage
from server.store import tokens
from server.store.tokens import TokenFilter
from shared.clock import SECOND, Micros, say_time
from shared.principals import Principal, Role, Scope

log = structlog.get_logger()
USES_EVERY_S: Final = 60.0
"""Between two writes of when tokens were used."""
_ENDED_KEPT_S: Final = MAX_LINK_S + 86_400.0
"""For so long one that was revoked or has expired is kept: what was made with it has ended by then.
"""


def random_text(letters: str, length: int) -> str:
    """So many of the letters, which nobody can guess."""
    return "".join(secrets.choice(letters) for _ in range(length))


class Tokens(Stage):
    """All tokens, in memory as in the database."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._known: dict[str, TokenRecord] = {}
        self._uses: dict[str, tuple[Micros, str]] = {}

    async def load(self) -> None:
        """Read them all."""
        self._known = {one.id: one for one in await self.core.database.read(tokens.all_tokens)}

    # -- every request

    def principal_of(self, text: str, peer: str) -> Principal | None:
        """Whose token this is; without a role, and with the reason, if it is not good.

        None: it is none of these tokens, by its first letters.

        Args:
            peer: address that sent it.
        """
        if not text.startswith(rules.PREFIX):
            return None
        try:
            token_id, secret = rules.read(text)
        except rules.BadToken as problem:
            return _refused(str(problem))
        record = self._known.get(token_id)
        if record is None:
            return _refused(f"no token has the id {token_id}")
        now, digest = self.core.clock.now(), rules.digest_of(secret)
        if not hmac.compare_digest(digest, record.digest):
            former = record.former_digest
            if former is None or not hmac.compare_digest(digest, former):
                return _refused(f"its secret is not that of token {token_id}")
            if record.former_until is None or now >= record.former_until:
                return _refused(f"token {token_id} was rotated, it has another secret now")
        # Only who has the secret learns more.
        if record.revoked_at is not None:
            return _refused(f"token {token_id} was revoked on {say_time(record.revoked_at)}")
        if not record.live(now):
            return _refused(f"token {token_id} has expired on {say_time(record.expires_at or 0)}")
        self._uses[token_id] = now, peer
        return record.principal

    def owner(self, token_id: str, peer: str | None = None) -> Principal | None:
        """Whose token this is, for who has shown it before; None: it is not good any more.
        ``peer``: address that uses it now; None: nobody does.
        """
        record, now = self._known.get(token_id), self.core.clock.now()
        if record is None or not record.live(now):
            return None
        if peer is not None:
            self._uses[token_id] = now, peer
        return record.principal

    def revoked(self, token_id: str) -> bool:
        """Whether what was made with this token is worth nothing any more."""
        record = self._known.get(token_id)
        return record is None or record.revoked_at is not None

    def record(self, token_id: str) -> TokenRecord | None:
        """The token as this server knows it."""
        return self._known.get(token_id)

    @property
    def operators(self) -> int:
        """How many tokens can do everything now."""
        now = self.core.clock.now()
        return sum(
            one.live(now) and one.role is Role.OPERATOR and Scope.ADMIN in one.effective_scopes
            for one in self._known.values()
        )

    # -- the loop

    async def run_once(self) -> int:
        """Write when tokens were used, and remove those that ended long ago; how many."""
        await self.write_uses()
        before = self.core.clock.now() - round(_ENDED_KEPT_S * SECOND)
        removed = await self.core.database.write(tokens.remove_ended, before)
        for token_id in removed:
            self._known.pop(token_id, None)
        return len(removed)

    async def write_uses(self) -> None:
        """Keep when and from where tokens were used."""
        uses, self._uses = self._uses, {}
        if uses:
            try:
                await self.core.database.write(tokens.used, uses)
            except BaseException:
                self._uses = uses | self._uses
                raise

    # -- operators

    async def create(self, wanted: TokenRecord) -> tuple[TokenRecord, str]:
        """Make a token, which is given its id and its secret here. Returns what is kept of it, and
        its text, which is not. Raises Conflict: the name is another principal's.
        """
        token_id, secret = random_text(rules.ID_LETTERS, rules.ID_LENGTH), _secret()
        record = replace(wanted, id=token_id, digest=rules.digest_of(secret))
        check = functools.partial(_same_principal, record, now=record.created_at)
        await self.core.database.write(tokens.insert, record, check)
        self._known[record.id] = record
        by = record.created_by
        log.info("token.created", token=token_id, name=record.name, role=record.role, by=by)
        return self.find(token_id), rules.text_of(token_id, secret)

    async def revoke(self, token_id: str, by: str) -> TokenRecord:
        """Refuse it from now on. Revoking it again changes nothing. Raises NoSuchToken."""
        now = self.core.clock.now()
        await self._change(token_id, lambda one: replace(one, revoked_at=one.revoked_at or now))
        log.info("token.revoked", token=token_id, by=by)
        return self.find(token_id)

    async def rotate(
        self, token_id: str, overlap_s: float, lifetime_s: float | None, by: str
    ) -> tuple[TokenRecord, str]:
        """Give it another secret.

        Args:
            overlap_s: for so long the former secret is good, too.
            lifetime_s: from now; None: it ends when it would have.

        Returns:
            As :meth:`create`

        Raises:
            NoSuchToken
            Conflict: it was revoked or has expired.
        """
        now, secret = self.core.clock.now(), _secret()

        def change(one: TokenRecord) -> TokenRecord:
            if not one.live(now):
                ended = "was revoked" if one.revoked_at is not None else "has expired"
                raise Conflict("token_ended", f"token {token_id} {ended}: create another one")
            return replace(
                one,
                digest=rules.digest_of(secret),
                former_digest=one.digest,
                former_until=rules.after(now, overlap_s),
                expires_at=rules.after(now, lifetime_s) or one.expires_at,
            )

        await self._change(token_id, change)
        log.info("token.rotated", token=token_id, by=by, overlap_s=overlap_s)
        return self.find(token_id), rules.text_of(token_id, secret)

    async def end_of_user(self, user: str, instead: str) -> None:
        """Revoke the user's tokens, and give them another name."""
        now = self.core.clock.now()
        for record in await self.core.database.write(tokens.end_of_user, user, instead, now):
            self._known[record.id] = record

    def find(self, token_id: str) -> TokenRecord:
        """Raises NoSuchToken."""
        record = self.record(token_id)
        if record is None:
            raise rules.NoSuchToken(token_id)
        return self._with_use(record)

    async def page(
        self, which: TokenFilter, limit: int, before: tuple[Micros, str] | None
    ) -> Sequence[TokenRecord]:
        """Tokens, the newest first; ``before`` is the last one of the page before."""
        found = await self.core.database.read_list(tokens.page, which, limit, before)
        return [self._with_use(one) for one in found]

    async def _change(self, token_id: str, change: Callable[[TokenRecord], TokenRecord]) -> None:
        record = await self.core.database.write(tokens.change, token_id, change)
        if record is None:
            raise rules.NoSuchToken(token_id)
        self._known[record.id] = record

    def _with_use(self, record: TokenRecord) -> TokenRecord:
        """With a use that is not written yet."""
        use = self._uses.get(record.id)
        if use is None or use[0] <= (record.last_used_at or 0):
            return record
        return replace(record, last_used_at=use[0], last_used_from=use[1])


def _secret() -> str:
    return random_text(rules.LETTERS, rules.SECRET_LENGTH)


def _refused(why: str) -> Principal:
    return Principal("anonymous", None, why=why)


def _same_principal(new: TokenRecord, others: Sequence[TokenRecord], *, now: Micros) -> None:
    """Refuse a name that is another principal's: what it submitted would be the new one's, too.
    Raises Conflict.
    """
    for one in others:
        if (one.role, one.user_id) != (new.role, new.user_id):
            who = one.role if one.user_id is None else f"{one.role} {one.user_id}"
            why = f"the name {one.name} is that of the {who}, by token {one.id}: choose another one"
            raise Conflict("name_taken", why)
        if one.live(now) and set(one.users) != set(new.users):
            users = ", ".join(one.users) or "any user"
            why = f"{one.name} acts for {users}, by token {one.id}: say the same, or revoke that"
            raise Conflict("name_taken", why)
