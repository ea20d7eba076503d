"""Sessions of browsers on a running server: whose one is, and how it begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from server.domain.jobs import UsedTicket
from server.domain.sessions import MOST, LoginUsed, NoSuchSession, SessionRecord, digest_of
from server.domain.tokens import ID_LENGTH, ID_LETTERS, LETTERS
from server.ports.sessions import SessionRecords
from server.stages.tokens import USES_EVERY_S, Tokens
from shared.clock import SECOND, Clock, Micros
from shared.principals import Principal

log = structlog.get_logger()
_TEXT_LENGTH: Final = 43
"""256 bits."""


class Sessions:
    """All sessions of the database, in memory; a change on this server is known at once.

    A session is as good as the token that its owner has logged in with: it ends when that is
    revoked, expires, or is taken out of the settings.

    Args:
        tokens: those that are made while the server runs.
        configured: digest of a token of the settings -> whose it is.
        random_text: so many letters, chosen at random from an alphabet, that nobody can guess.
        lifetime_s: of a session.
    """

    def __init__(
        self,
        records: SessionRecords,
        tokens: Tokens,
        configured: Callable[[], Mapping[str, Principal]],
        clock: Clock,
        random_text: Callable[[str, int], str],
        lifetime_s: float,
    ) -> None:
        self._records, self._tokens, self._configured = records, tokens, configured
        self._clock, self._random = clock, random_text
        self._lifetime_s = lifetime_s
        self._known: dict[str, SessionRecord] = {}
        self._digests: dict[str, str] = {}
        self._version = 0
        self._uses: dict[str, tuple[Micros, str]] = {}
        self._tidied = clock.monotonic()

    @property
    def lifetime_s(self) -> float:
        """Of a session that begins now."""
        return self._lifetime_s

    # -- every request

    def principal_of(self, text: str, peer: str) -> Principal | None:
        """Whose session this is; None: it is none, or not good any more.

        Args:
            peer: address that sent it.
        """
        now = self._clock.now()
        record = self._record(text)
        if record is None or not record.live(now):
            return None
        principal = self._owner(record, peer)
        if principal is not None:
            self._uses[record.id] = now, peer
        return principal

    def id_of(self, text: str) -> str | None:
        """What lists call the session."""
        record = self._record(text)
        return record.id if record else None

    # -- logging in and out

    async def log_in(
        self,
        principal: Principal,
        browser: str,
        peer: str,
        once: UsedTicket | None = None,
    ) -> str:
        """Begin a session of somebody who has shown a token. Returns its text.

        Args:
            once: what logs in once.

        Raises:
            LoginUsed
        """
        now = self._clock.now()
        text = self._random(LETTERS, _TEXT_LENGTH)
        record = SessionRecord(
            self._random(ID_LETTERS, ID_LENGTH),
            digest_of(text),
            principal.name,
            principal.token_id,
            None if principal.token_id else self.configured_digest(principal),
            now,
            now + round(self.lifetime_s * SECOND),
            browser,
            last_used_at=now,
            last_used_from=peer,
        )
        if not await self._records.insert(record, MOST, once):
            raise LoginUsed
        await self._take_up()
        log.info("session.began", session=record.id, principal=principal.name, peer=peer)
        return text

    async def log_out(self, text: str) -> None:
        """End the session, if it is one."""
        record = self._record(text)
        if record is not None:
            await self._end([record])

    def of(self, principal: Principal) -> Sequence[SessionRecord]:
        """The principal's, the one that was used last first."""
        now = self._clock.now()
        found = [
            self._with_use(one)
            for one in self._known.values()
            if one.principal == principal.name and one.live(now) and self._owner(one) is not None
        ]
        return sorted(found, key=lambda one: one.last_used_at or 0, reverse=True)

    async def end(self, principal: Principal, session_id: str) -> None:
        """End one of the principal's sessions.

        Raises:
            NoSuchSession
        """
        found = [one for one in self.of(principal) if one.id == session_id]
        if not found:
            raise NoSuchSession
        await self._end(found)

    async def end_others(self, principal: Principal, text: str) -> int:
        """End all of the principal's sessions but this one. Returns how many."""
        kept = self.id_of(text)
        found = [one for one in self.of(principal) if one.id != kept]
        await self._end(found)
        return len(found)

    def configured_digest(self, principal: Principal) -> str | None:
        """Of the principal's token, which is one of the settings; None: it has none."""
        for digest, one in self._configured().items():
            if one == principal:
                return digest
        return None

    def configured(self, digest: str) -> Principal | None:
        """Whose token of the settings has this digest."""
        return self._configured().get(digest)

    # -- the loop

    async def run_once(self) -> int:
        """Take up what was changed elsewhere; now and then write when sessions were used, and
        delete those that are not good any more.
        """
        changed = await self._take_up()
        if self._clock.monotonic() - self._tidied >= USES_EVERY_S:
            self._tidied = self._clock.monotonic()
            await self.write_uses()
            await self._remove()
        return changed

    async def write_uses(self) -> None:
        """Keep when and from where sessions were used."""
        uses, self._uses = self._uses, {}
        if uses:
            for one, use in uses.items():
                if one in self._known:
                    record = self._known[one]
                    self._known[one] = replace(record, last_used_at=use[0], last_used_from=use[1])
            try:
                await self._records.used(uses)
            except BaseException:
                self._uses = uses | self._uses
                raise

    async def _take_up(self) -> int:
        changed = await self._records.changed(self._version)
        for record in changed:
            self._known[record.id] = record
            self._digests[record.digest] = record.id
            self._version = max(self._version, record.version)
        return len(changed)

    async def _remove(self) -> None:
        """Rows of ended sessions stay until they expire: other servers have to learn of the end."""
        now = self._clock.now()
        gone = [
            one
            for one in self._known.values()
            if now >= one.expires_at or (one.ended_at is None and self._owner(one) is None)
        ]
        if gone:
            await self._records.remove([one.id for one in gone])
        for one in gone:
            del self._known[one.id], self._digests[one.digest]

    async def _end(self, records: Sequence[SessionRecord]) -> None:
        await self._records.end([one.id for one in records], self._clock.now())
        await self._take_up()
        for one in records:
            log.info("session.ended", session=one.id, principal=one.principal)

    def _record(self, text: str) -> SessionRecord | None:
        found = self._digests.get(digest_of(text))
        return self._known[found] if found is not None else None

    def _owner(self, record: SessionRecord, peer: str | None = None) -> Principal | None:
        """Whose token it belongs to; None: that is not good any more."""
        if record.token_id is not None:
            return self._tokens.owner(record.token_id, peer)
        return self._configured().get(record.token_digest or "")

    def _with_use(self, record: SessionRecord) -> SessionRecord:
        use = self._uses.get(record.id)
        if use is None or use[0] <= (record.last_used_at or 0):
            return record
        return replace(record, last_used_at=use[0], last_used_from=use[1])
