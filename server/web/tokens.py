"""For operators: API tokens, made, rotated and revoked here; and the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.api.audit import TEXTS, audit_page
from server.api.tokens import NewTokenBody, RotateBody, new_token, token_document, token_page
from server.domain.access import Area
from server.domain.errors import BadField, Conflict
from server.domain.tokens import TokenRecord
from server.http.params import MAX_ID, checked, int_param
from server.http.route import TOKEN_PAGE, TOKENS_PAGE
from server.web.site import PageRoute, Site
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import ERROR_CODE, TARGET
from shared.principals import SCOPES, TOKEN_ROLES, Scope
from shared.wire import AuditPage

_ROWS: Final = 50
_FILTERS: Final = ("name", "role", "user", "ended")
_LONGEST: Final = 1_000
_SAID: Final = {"revoked": "the token is revoked: requests and sessions with it are refused now"}


@dataclass(frozen=True, slots=True)
class _Typed:
    """A form that was sent, and what is wrong with it."""

    values: Mapping[str, Any]
    field: str
    problem: str
    status: int


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The list, and the form of a new one."""
    return await _list(request, site)


async def create(request: web.Request, site: Site) -> web.StreamResponse:
    """Make a token; its text is on the page that follows, and nowhere else."""
    sent = await request.post()
    values: dict[str, Any] = {
        name: str(sent.get(name, "")).strip()[:_LONGEST]
        for name in ("name", "role", "user_id", "users", "expires_in")
    }
    values["scopes"] = [str(one) for one in sent.getall("scopes", [])][: len(Scope)]
    given = {name: value for name, value in values.items() if value}
    if "users" in given:
        given["users"] = given["users"].replace(",", " ").split()
    try:
        by, now = request[PRINCIPAL].name, site.context.core.clock.now()
        new = new_token(checked(given, NewTokenBody), by, now)
        record, text = await site.context.access.tokens.create(new)
    except BadField as problem:
        typed = _Typed(values, problem.field, str(problem), HTTPStatus.BAD_REQUEST)
        request[ERROR_CODE] = problem.code
        return await _list(request, site, typed)
    except Conflict as problem:
        typed = _Typed(values, "name", str(problem), HTTPStatus.CONFLICT)
        request[ERROR_CODE] = problem.code
        return await _list(request, site, typed)
    request[TARGET] = record.id
    return _once(request, site, record, text, HTTPStatus.CREATED)


async def one(request: web.Request, site: Site) -> web.StreamResponse:
    """What is known of a token, and what can be done with it."""
    record = site.context.access.tokens.find(request.match_info["token"])
    return _one(request, site, record)


async def rotate(request: web.Request, site: Site) -> web.StreamResponse:
    """Give the token another secret, which is shown once."""
    token_id = request.match_info["token"]
    sent = await request.post()
    values = {name: str(sent.get(name, "")).strip()[:64] for name in ("overlap", "expires_in")}
    tokens = site.context.access.tokens
    try:
        body = checked({name: one for name, one in values.items() if one}, RotateBody)
    except BadField as problem:
        request[ERROR_CODE] = problem.code
        typed = _Typed(values, problem.field, str(problem), HTTPStatus.BAD_REQUEST)
        return _one(request, site, tokens.find(token_id), typed)
    record, text = await tokens.rotate(
        token_id, body.overlap, body.expires_in, request[PRINCIPAL].name
    )
    return _once(request, site, record, text, HTTPStatus.OK)


async def revoke(request: web.Request, site: Site) -> web.StreamResponse:
    """Refuse the token from now on."""
    token_id = request.match_info["token"]
    await site.context.access.tokens.revoke(token_id, request[PRINCIPAL].name)
    return site.go_to(TOKEN_PAGE.replace("{token}", token_id), done="revoked")


async def _list(
    request: web.Request, site: Site, typed: _Typed | None = None
) -> web.StreamResponse:
    given = {name: text for name, text in request.query.items() if text}
    found = await token_page(site.context, given, _ROWS)
    chosen = {name: given[name] for name in _FILTERS if name in given}
    return site.page(
        request,
        "account/tokens.html",
        status=typed.status if typed else HTTPStatus.OK,
        title="Tokens",
        found=found,
        chosen=chosen,
        typed=typed,
        values=typed.values if typed else {},
        roles=TOKEN_ROLES,
        scopes={role.value: [one.value for one in Scope if one in SCOPES[role]] for role in SCOPES},
        all_scopes=list(Scope),
    )


def _one(
    request: web.Request, site: Site, record: TokenRecord, typed: _Typed | None = None
) -> web.StreamResponse:
    return site.page(
        request,
        "account/token.html",
        status=typed.status if typed else HTTPStatus.OK,
        title=f"Token {record.id}",
        token=token_document(record, site.context.core.clock.now()),
        typed=typed,
        values=typed.values if typed else {},
        notice=_SAID.get(request.query.get("done", "")),
        own=request[PRINCIPAL].token_id == record.id,
    )


def _once(
    request: web.Request, site: Site, record: TokenRecord, text: str, status: int
) -> web.StreamResponse:
    return site.page(
        request,
        "account/token_once.html",
        status=status,
        title="A token" if status == HTTPStatus.CREATED else "Another secret",
        token=token_document(record, site.context.core.clock.now()),
        text=text,
        needed=site.context.access.known.needed,
    )


_FILTERED: Final = (*TEXTS, "since", "until")


async def audit(request: web.Request, site: Site) -> web.StreamResponse:
    """A page of the trail."""
    chosen = {name: request.query[name] for name in _FILTERED if request.query.get(name)}
    before = int_param(request, "cursor", MAX_ID, 0, MAX_ID)
    problem = None
    try:
        found = await audit_page(site.context, chosen, _ROWS, before)
    except BadField as wrong:
        problem, found = wrong, AuditPage(items=[], next=None)
    return site.page(
        request,
        "account/audit.html",
        status=HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK,
        title="Audit trail",
        found=found,
        chosen=chosen,
        problem=problem,
        first=before == MAX_ID,
    )


ROUTES: Final = (
    PageRoute("GET", TOKENS_PAGE, Area.ADMIN, page),
    PageRoute("POST", TOKENS_PAGE, Area.ADMIN, create),
    PageRoute("GET", TOKEN_PAGE, Area.ADMIN, one),
    PageRoute("POST", f"{TOKEN_PAGE}/rotate", Area.ADMIN, rotate),
    PageRoute("POST", f"{TOKEN_PAGE}/revoke", Area.ADMIN, revoke),
    PageRoute("GET", "/audit", Area.ADMIN, audit),
)
