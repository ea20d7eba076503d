"""The first page of a job: where it stands, why, and what it used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.history import history
from server.domain.jobs import Event
from server.domain.live import NOTICES
from server.domain.permits import Shows
from server.http.paths import JOB_PAGE
from server.web.job.advice import ADVICE
from server.web.job.files.address import quoted
from server.web.job.files.folder import folder_of
from server.web.job.files.preview_text import visible
from server.web.job.frame import JobFrame, frame_page, job_frame
from server.web.job.glance import first_files, last_lines
from server.web.job.receipt import bars
from server.web.job.scripts import scripts
from server.web.job.share import FORM, LinkForm
from server.web.job.timeline import pieces, took_s
from server.web.site.page_route import PageRoute
from server.web.site.site import Site

_MOVES: Final = 200
_EVENTS: Final = 200
"""The newest, among which lines for people are looked for."""
_LINES: Final = 6
_FOR_PEOPLE: Final = frozenset(NOTICES[level] for level in ("notice", "warning", "error"))


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """Where a job stands, for people."""
    return await overview(request, site, await job_frame(request, site))


async def overview(
    request: web.Request, site: Site, frame: JobFrame, *, share: LinkForm = FORM, **values: Any
) -> web.Response:
    """The page; also with what came of a form that stands on it."""
    context, job = site.context, frame.record
    states = history(await context.jobs.moves(job.id, _MOVES), context.clock.now())
    latest = next(iter(await context.jobs.attempts(job.id, 1)), None)
    own = latest is not None and latest.number == job.attempt
    logs = (latest.stdout_bytes, latest.stderr_bytes) if latest and own else (None, None)
    events = await context.jobs.latest_events(job.id, _EVENTS)
    return frame_page(
        request,
        site,
        frame,
        "overview",
        **{
            "history": states,
            "pieces": pieces(states),
            "took_s": took_s(states),
            "bars": bars(job, *logs),
            "lines": _lines(events, job.attempt),
            "advice": ADVICE.get(job.reason) if job.reason and job.ended else None,
            "scripts": scripts(request, site, job),
            "scripts_need_token": context.token_needed(),
            "log": await last_lines(context, job, latest if own else None),
            "files": await first_files(context, job, latest if own else None),
            "folder_of": folder_of,
            "quoted": quoted,
            "visible": visible,
            "share": share,
            **values,
        },
    )


def _lines(events: Sequence[Event], attempt: int) -> list[Event]:
    """What run.sh wrote for people in this attempt, the newest first."""
    own = [one for one in events if one.event in _FOR_PEOPLE or one.source]
    return [one for one in own if one.attempt == attempt][:_LINES]


ROUTES: Final = (PageRoute("GET", JOB_PAGE, Area.JOBS, page, by_link=(Shows.JOB,)),)
