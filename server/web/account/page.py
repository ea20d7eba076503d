"""Who is logged in: rights and quotas."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.usage import usage_of
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import SCOPES, Role, Scope

ACCOUNT: Final = "/account"


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
        who=principal,
        scopes=[one for one in Scope if one in SCOPES[principal.role] and principal.may(one)],
        token=token,
        token_ends=utc(token.expires_at) if token and token.expires_at else None,
        usage=usage,
    )


ROUTES: Final = (PageRoute("GET", ACCOUNT, Area.CALLER, page),)
