"""Who is logged in: rights, quotas, and browsers with a session."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.browser_sessions import SESSION
from server.http.usage import usage_of
from server.web.site.error_page import LOGIN
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import SCOPES, Role, Scope

ACCOUNT: Final = "/account"
_SAID: Final = {
    "ended": "the session is ended: that browser has to log in again",
    "others": "all other sessions are ended",
}


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The account."""
    context, principal = site.context, request[PRINCIPAL]
    if not context.token_needed():
        return site.go_to("/")
    assert principal.role is not None  # nobody else gets here
    token = context.tokens.record(principal.token_id) if principal.token_id else None
    usage = None
    if principal.role is Role.USER and principal.user_id and principal.may(Scope.READ):
        usage = await usage_of(context, principal.user_id)
    return site.page(
        request,
        "account/account.html",
        title="Your account",
        notice=_SAID.get(request.query.get("done", "")),
        who=principal,
        scopes=[one for one in Scope if one in SCOPES[principal.role] and principal.may(one)],
        token=token,
        token_ends=utc(token.expires_at) if token and token.expires_at else None,
        usage=usage,
        sessions=context.sessions.of(principal),
        own=context.sessions.id_of(_session(request, site)),
        utc=utc,
    )


async def end_one(request: web.Request, site: Site) -> web.StreamResponse:
    """End a session of the same principal, also the one that asks."""
    sessions, ended = site.context.sessions, request.match_info["session"]
    own = sessions.id_of(_session(request, site))
    await sessions.end(request[PRINCIPAL], ended)
    if ended == own:
        return site.go_to(LOGIN, done="ended")
    return site.go_to(ACCOUNT, done="ended")


async def end_others(request: web.Request, site: Site) -> web.StreamResponse:
    """End all sessions of the same principal but the one that asks."""
    await site.context.sessions.end_others(request[PRINCIPAL], _session(request, site))
    return site.go_to(ACCOUNT, done="others")


def _session(request: web.Request, site: Site) -> str:
    return request.cookies.get(site.cookie(SESSION), "")


ROUTES: Final = (
    PageRoute("GET", ACCOUNT, Area.CALLER, page),
    PageRoute("POST", f"{ACCOUNT}/sessions/end-others", Area.CALLER, end_others),
    PageRoute("POST", f"{ACCOUNT}/sessions/{{session}}/end", Area.CALLER, end_one),
)
