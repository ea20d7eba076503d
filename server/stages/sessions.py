"""Sessions of browsers: a cookie that the server signed, in place of a token.

Nothing is kept of one but a number for its token. It is in the cookie, and logging out raises it:
each copy of each cookie of the token is worth nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from server.domain.permits import Login, LoginUsed, PermitRefused, Permits, Session
from server.stages.stage import Core, Stage
from server.stages.tokens import Tokens
from server.store import tokens as rows
from shared.clock import SECOND
from shared.principals import Principal, Role

log = structlog.get_logger()


class Sessions(Stage):
    """A session is as good as the token that its owner has logged in with: it ends when that is
    revoked, expires, or is taken out of the settings.

    Args:
        tokens: those that are made while the server runs.
        configured: digest of a token of the settings -> whose it is.
    """

    def __init__(
        self,
        core: Core,
        permits: Permits,
        tokens: Tokens,
        configured: Callable[[], Mapping[str, Principal]],
    ) -> None:
        super().__init__(core)
        self._permits, self._tokens, self._configured = permits, tokens, configured
        self._ended: dict[str, int] = {}

    async def load(self) -> None:
        """Read at a start what was ended before."""
        self._ended = await self.core.database.read(rows.ended)

    def principal_of(self, text: str, peer: str) -> Principal | None:
        """Whose session this is; None: it is none, or not good any more."""
        try:
            session = self._permits.read(Session, text, self.core.clock.now())
        except PermitRefused:
            return None
        if session.ended_before != self._ended.get(_token(session), 0):
            return None
        if session.token_id is not None:
            return self._tokens.owner(session.token_id, peer)
        return self.configured(session.token_digest or "")

    async def log_in(self, principal: Principal, peer: str, once: Login | None = None) -> str:
        """Begin a session of somebody who has shown a token. Returns its text. Raises LoginUsed.
        ``once``: what logs in once.
        """
        if once is not None and not await self.core.database.write(rows.use_ticket, once):
            raise LoginUsed
        token_id, lifetime_s = principal.token_id, self.core.settings.server.session_expires_after
        session = Session(
            expires_at=self.core.clock.now() + round(lifetime_s * SECOND),
            token_id=token_id,
            token_digest=None if token_id else self.configured_digest(principal),
        )
        session = replace(session, ended_before=self._ended.get(_token(session), 0))
        log.info("session.began", principal=principal.name, peer=peer)
        return self._permits.text(session)

    async def log_out(self, text: str, peer: str) -> None:
        """End all sessions of the token that it belongs to, if it is a good one."""
        principal = self.principal_of(text, peer)
        if principal is not None:
            token = _token(self._permits.read(Session, text, self.core.clock.now()))
            self._ended[token] = await self.core.database.write(lambda tx: rows.end(tx, token))
            log.info("session.ended", principal=principal.name)

    def configured_digest(self, principal: Principal) -> str | None:
        """Keyed, of the principal's token, which is one of the settings; None: it has none."""
        for digest, one in self._configured().items():
            if one == principal:
                return self._permits.keyed_digest(digest)
        return None

    def first_configured(self) -> Principal | None:
        """The operator whose token is the first of the settings; None: they have none."""
        operators = (one for one in self._configured().values() if one.role is Role.OPERATOR)
        return next(operators, None)

    def configured(self, keyed: str) -> Principal | None:
        """Whose token of the settings has this keyed digest."""
        for digest, one in self._configured().items():
            if self._permits.keyed_digest(digest) == keyed:
                return one
        return None


def _token(session: Session) -> str:
    return session.token_id or session.token_digest or ""
