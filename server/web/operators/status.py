"""Whether everything is all right, on one page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.troubles import TroubleKind
from server.http.status import TroubleDoc, status_of
from server.web.operators.agents import agent_path
from server.web.operators.services import service_path
from server.web.site import PageRoute, Site

_AGAIN_S: Final = 5
_VERDICTS: Final = {
    "ok": ("good", "Everything is all right: uploads are taken, and jobs are run."),
    "attention": ("doubt", "It works, but something should be looked at."),
    "error": ("bad", "Something is wrong: new work is not welcome until it is put right."),
}


@dataclass(frozen=True, slots=True)
class TroubleView:
    """A trouble, and the page where something can be done; empty: there is none."""

    doc: TroubleDoc
    path: str
    link: str


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
        troubles=[_view(one) for one in found.troubles],
        uptime_s=(site.now() - found.started_at).total_seconds(),
    )


def _view(doc: TroubleDoc) -> TroubleView:
    if doc.kind is TroubleKind.NO_AGENTS:
        return TroubleView(doc, "/agents", "How to add an agent")
    if doc.about and doc.kind.startswith("agent_"):
        return TroubleView(doc, agent_path(doc.about), f"Agent {doc.about}")
    if doc.kind is TroubleKind.SERVICE_GONE:
        return TroubleView(doc, "/services", "Services")
    if doc.about and doc.kind.startswith("service_"):
        return TroubleView(doc, service_path(doc.about), f"Service {doc.about}")
    if doc.kind is TroubleKind.DISK_FULL:
        return TroubleView(doc, "/jobs", "The jobs")
    return TroubleView(doc, "", "")


ROUTES: Final = (PageRoute("GET", "/status", Area.AGENTS, page),)
