"""Logging in with a token or a link, logging out, and the page of who is logged in."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.server_status import usage_of
from server.domain.access import Area
from server.domain.permits import Login, LoginUsed, PermitRefused
from server.http.permits import SESSION
from server.http.problems import Refusal
from server.http.route import LOGIN_ONCE
from server.store import tokens
from server.web.site import LOGIN, PageRoute, Site
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import ERROR_CODE, peer_address
from shared.principals import SCOPES, Principal, Role, Scope

LOGOUT: Final = "/logout"
_START: Final = "/"
_HERE: Final = re.compile(r"/(?![/\\])[!-~]{0,2000}")
_LONGEST: Final = 1_000
"""Characters of a token."""
_SAID: Final = {"out": "you have logged out"}


async def form(request: web.Request, site: Site) -> web.StreamResponse:
    """The page that asks for a token."""
    there = _next(request.query.get("next", ""))
    if not site.context.access.known.needed:
        return site.go_to(there)
    return _page(request, site, there)


async def log_in(request: web.Request, site: Site) -> web.StreamResponse:
    """Begin a session."""
    sent = await request.post()
    token, there = str(sent.get("token", "")).strip(), _next(str(sent.get("next", "")))
    if not site.context.access.known.needed:
        return site.go_to(there)
    if not token:
        return _page(request, site, there, "a token is needed: paste yours here")
    peer = peer_address(request)
    try:
        site.tries.check(peer)
    except Refusal as problem:
        return _refused(request, site, there, problem)
    found = site.context.access.known.principal_of(token[: _LONGEST + 1], peer)
    if not found.authenticated or found.role is Role.METRICS:
        site.tries.count(peer)
        for_metrics = "it is for metrics only" if found.authenticated else ""
        why = found.why or for_metrics or "it is not known here"
        wrong = Refusal(HTTPStatus.UNAUTHORIZED, "not_allowed", f"this token is not good: {why}")
        return _refused(request, site, there, wrong)
    request[PRINCIPAL] = found  # the trail says who has logged in
    return _enter(request, site, await site.context.access.sessions.log_in(found, peer), there)


def _enter(request: web.Request, site: Site, text: str, there: str) -> web.StreamResponse:
    """Give the browser a session, in place of the one that it had."""
    response = site.go_to(there)
    site.set_cookie(
        request, response, SESSION, text, site.context.core.settings.server.session_expires_after
    )
    return response


async def log_out(request: web.Request, site: Site) -> web.StreamResponse:
    """End the session, and all others of its token."""
    text = request.cookies.get(site.cookie(SESSION), "")
    await site.context.access.sessions.log_out(text, peer_address(request))
    response = site.go_to(LOGIN, done="out")
    site.set_cookie(request, response, SESSION, "", 0)
    return response


async def once(request: web.Request, site: Site) -> web.StreamResponse:
    """The page of a link that logs in: it only asks, so that a program which looks at what links
    lead to does not use it up.
    """
    login, principal = _login(site, request.query.get("code", ""))
    if await site.context.core.database.read(tokens.ticket_used, login.id):
        raise LoginUsed
    return site.page(
        request,
        "account/once.html",
        title="Log in",
        name=principal.name,
        role=principal.role,
        code=request.query["code"],
    )


async def log_in_once(request: web.Request, site: Site) -> web.StreamResponse:
    """Begin a session by a link."""
    login, principal = _login(site, str((await request.post()).get("code", "")))
    request[PRINCIPAL] = principal
    text = await site.context.access.sessions.log_in(principal, peer_address(request), login)
    return _enter(request, site, text, _START)


def _login(site: Site, text: str) -> tuple[Login, Principal]:
    """What a link allows, and to whom. Raises PermitRefused."""
    context = site.context
    login = context.access.permits.read(Login, text, context.core.clock.now())
    if login.token_id is not None:
        found = context.access.tokens.owner(login.token_id)
    else:
        found = context.access.sessions.configured(login.token_digest or "")
    if found is None:
        raise PermitRefused("login_link_revoked", "the token of this login link is not good now")
    return login, found


def _next(text: str) -> str:
    """A path of this server, and of no other one; the start where it is none."""
    good = _HERE.fullmatch(text) and "\\" not in text
    path = text.partition("?")[0]
    return text if good and path not in (LOGIN, LOGIN_ONCE, LOGOUT) else _START


def _refused(request: web.Request, site: Site, there: str, problem: Refusal) -> web.StreamResponse:
    request[ERROR_CODE] = problem.code
    response = _page(request, site, there, problem.message, problem.status)
    if problem.retry_after_s is not None:
        response.headers["Retry-After"] = str(problem.retry_after_s)
    return response


def _page(
    request: web.Request,
    site: Site,
    there: str,
    problem: str = "",
    status: int = HTTPStatus.BAD_REQUEST,
) -> web.Response:
    notice = _SAID.get(request.query.get("done", ""), "")
    ended = not request[PRINCIPAL].authenticated and site.cookie(SESSION) in request.cookies
    if ended and not problem and not notice:
        notice = "your session has ended: log in again, and you are back where you were"
    return site.page(
        request,
        "account/login.html",
        status=status if problem else HTTPStatus.OK,
        title="Log in",
        there="" if there == _START else there,
        problem=problem,
        notice=notice,
        notice_kind="good" if request.query.get("done") else "doubt",
    )


ACCOUNT: Final = "/account"


async def account(request: web.Request, site: Site) -> web.StreamResponse:
    """The account."""
    context, principal = site.context, request[PRINCIPAL]
    if not context.access.known.needed:
        return site.go_to("/")
    assert principal.role is not None  # nobody else gets here
    token = context.access.tokens.record(principal.token_id) if principal.token_id else None
    usage = None
    if principal.role is Role.USER and principal.user_id and principal.may(Scope.READ):
        usage = await usage_of(context, principal.user_id)
    return site.page(
        request,
        "account/account.html",
        title="Your account",
        who=principal,
        scopes=[one for one in Scope if one in SCOPES[principal.role] and principal.may(one)],
        token=token,
        token_ends=utc(token.expires_at) if token and token.expires_at else None,
        usage=usage,
    )


ROUTES: Final = (
    PageRoute("GET", LOGIN, Area.OPEN, form),
    PageRoute("POST", LOGIN, Area.OPEN, log_in),
    PageRoute("GET", LOGIN_ONCE, Area.OPEN, once),
    PageRoute("POST", LOGIN_ONCE, Area.OPEN, log_in_once),
    PageRoute("POST", LOGOUT, Area.OPEN, log_out),
    PageRoute("GET", ACCOUNT, Area.CALLER, account),
)
