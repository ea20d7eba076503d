"""Whether everything is all right, on one page."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.api.server_status import TroubleDoc, status_of
from server.domain.access import Area
from server.domain.troubles import TroubleKind
from server.web.operators.agents import agent_path
from server.web.operators.services import service_path
from server.web.site import PageRoute, Site

_AGAIN_S: Final = 5
_VERDICTS: Final = {
    "ok": ("good", "Everything is all right: uploads are taken, and jobs are run."),
    "attention": ("doubt", "It works, but something should be looked at."),
    "error": ("bad", "Something is wrong: new work is not welcome until it is put right."),
}


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The verdict, the troubles, and the numbers behind them."""
    found = await status_of(site.context)
    kind, verdict = _VERDICTS[found.status]
    return site.page(
        request,
        "operators/status.html",
        title="Status",
        refresh_s=_AGAIN_S,
        found=found,
        kind=kind,
        verdict=verdict,
        troubles=[(one, *_where(one)) for one in found.troubles],
        uptime_s=(site.now() - found.started_at).total_seconds(),
    )


def _where(doc: TroubleDoc) -> tuple[str, str]:
    """The page where something can be done about it, and its name; empty: there is none."""
    if doc.kind is TroubleKind.NO_AGENTS:
        return "/agents", "How to add an agent"
    if doc.about and doc.kind.startswith("agent_"):
        return agent_path(doc.about), f"Agent {doc.about}"
    if doc.kind is TroubleKind.SERVICE_GONE:
        return "/services", "Services"
    if doc.about and doc.kind.startswith("service_"):
        return service_path(doc.about), f"Service {doc.about}"
    return ("/jobs", "The jobs") if doc.kind is TroubleKind.DISK_FULL else ("", "")


ROUTES: Final = (PageRoute("GET", "/status", Area.AGENTS, page),)
