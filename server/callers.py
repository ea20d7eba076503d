"""Who may call this server, how often, and what they did, put together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from server.api.audit import Recorder
from server.api.routes import ROUTES
from server.domain.allowances import Allowances
from server.domain.permits import Permits
from server.http.permits import BrowserSessions, SignedRequests
from server.settings.tables import ServerTable
from server.stages.audit import AuditTrail
from server.stages.sessions import Sessions
from server.stages.tokens import Tokens
from server.store.identity import signing_key
from server.web.routes import ROUTES as PAGES
from shared.clock import Clock
from shared.http import authentication
from shared.http.rate_limits import RateLimits
from shared.http.request_log import peer_address
from shared.principals import Principal, Role
from shared.sql import Database
from shared.units.rates import UNLIMITED, Rate


@dataclass(frozen=True, slots=True)
class Callers:
    """Attributes:
    tokens: those that are made while the server runs.
    known: these, and those of the settings.
    permits: what tickets and links are signed with.
    signed: who has one of them.
    sessions: of browsers that have logged in.
    browsers: who has one of them.
    recorder: adds requests to the trail.
    """

    tokens: Tokens
    known: authentication.Tokens
    permits: Permits
    signed: SignedRequests
    sessions: Sessions
    browsers: BrowserSessions
    audit: AuditTrail
    recorder: Recorder

    def accepts(self, request: web.Request) -> bool:
        """Whether what a request shows is good now: it may go on for longer than that is."""
        found = self.shown(request) or self.known.principal(request, peer_address(request))
        return found.authenticated

    def shown(self, request: web.Request) -> Principal | None:
        """Whose request this is by what it shows in place of a token; None: it shows nothing."""
        return self.signed.principal(request) or self.browsers.principal(request)

    def use(self, table: ServerTable) -> None:
        """Know the tokens of the settings."""
        found = authentication.of_settings(table.all_tokens(), table.all_metrics_tokens())
        self.known.use(found, needed=table.needs_token)


async def callers(
    table: ServerTable,
    database: Database,
    clock: Clock,
    principals: Mapping[str, Principal] | None,
    server_id: str,
) -> Callers:
    """Read the tokens.

    Args:
        principals: token -> whose it is, in place of the operators' in the settings.
    """
    tokens = Tokens(database, clock, _random_text)
    await tokens.load()
    permits = Permits(await signing_key(database, secrets.token_bytes(32)), tokens.revoked)
    known = authentication.Tokens(principals or {}, tokens)
    audit = AuditTrail(database, clock, table.audit_expires_after)
    areas = {(route.method, route.path): route.area for route in ROUTES}
    areas |= {(route.method, route.path): route.area for route in PAGES}
    recorder = Recorder(audit, areas, clock)
    lifetime_s = table.session_expires_after
    sessions = Sessions(database, permits, tokens, lambda: known.digests, clock, lifetime_s)
    await sessions.load()
    forms = frozenset((route.method, route.path) for route in PAGES)
    browsers = BrowserSessions(sessions, server_id, forms)
    signed = SignedRequests(permits, clock)
    found = Callers(tokens, known, permits, signed, sessions, browsers, audit, recorder)
    if principals is None:
        found.use(table)
    return found


def rate_limits(allowances: Allowances, clock: Clock) -> RateLimits:
    """Of users and portals; a user's tokens are counted together."""

    def of(principal: Principal) -> tuple[str, Rate]:
        if principal.role in (None, Role.OPERATOR, Role.AGENT, Role.METRICS):
            return "", UNLIMITED
        by_ticket = principal.role is Role.TICKET
        whose = (principal.acts_as if by_ticket else principal.user_id) or principal.name
        return f"{principal.role} {whose}", allowances.of(whose).rate

    return RateLimits(of, clock)


def _random_text(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))
