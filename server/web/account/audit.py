"""The audit trail, for operators: who did what, from where, and whether it was allowed."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField
from server.http.audit import TEXTS, audit_page
from server.http.parameter_types import MAX_ID, Param, word
from server.http.params import int_param
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.wire import AuditPage

_ROWS: Final = 50
_FIELDS: Final = (*TEXTS, "since", "until")


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """A page of the trail."""
    chosen = {name: request.query[name] for name in _FIELDS if request.query.get(name)}
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


_QUERY: Final = {
    **{name: word(f"only of this {name}", most) for name, (_, most) in TEXTS.items()},
    "since": Param("only then or later"),
    "until": Param("only before"),
    "cursor": Param("where the page begins"),
}
ROUTES: Final = (PageRoute("GET", "/audit", Area.ADMIN, page, query=_QUERY),)
