"""The files of a job: a folder at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.attempts import Attempt
from server.domain.permits import Shows
from server.http.attempt_files import requested_attempt
from server.http.context import Context
from server.http.log_source import FILES, live_agent
from server.http.paths import JOB_PAGE
from server.http.problems import Refusal
from server.http.route import LINK_PARAMETER
from server.http.stored_files import scan_stored
from server.web.job.files import preview
from server.web.job.files.address import crumbs, quoted
from server.web.job.files.folder import FolderPage, folder_of, folder_page, prefix_of
from server.web.job.files.preview_text import spelled, visible
from server.web.job.files.running import running_page
from server.web.job.frame import JobFrame, frame_page, job_frame
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.principals import Role

_SAID: Final = frozenset(
    {
        "agent_unreachable",
        "files_move",
        "files_of_children",
        "no_live_files",
        "no_result",
        "not_started",
        "result_cleaned",
        "unreadable_result",
    }
)
"""Why there are no files to show; that is what the page says then."""
_MOST_ATTEMPTS: Final = 50


@dataclass(frozen=True, slots=True)
class _Asked:
    """Attributes:
    prefix: of the folder; empty: the root.
    name: text in the names that are looked for.
    after: where the page begins.
    """

    prefix: str
    name: str
    after: str

    @classmethod
    def of(cls, request: web.Request) -> _Asked:
        query = request.query
        folder, name = query.get("folder", ""), query.get("name", "").strip()
        return cls(prefix_of(folder), name, query.get("after", ""))


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """A folder of a result, or of what an attempt has written so far."""
    context = site.context
    frame = await job_frame(request, site)
    asked, found, refused, attempt = _Asked.of(request), FolderPage(), "", None
    try:
        attempt = await requested_attempt(request, context, frame.record)
        found = await _folder(context, frame, attempt, asked)
    except Refusal as refusal:
        if refusal.code not in _SAID:
            raise
        refused = refusal.message
    attempts = await context.jobs.attempts(frame.record.id, _MOST_ATTEMPTS)
    chosen = {name: request.query[name] for name in ("attempt",) if name in request.query}
    here = {"folder": folder_of(asked.prefix), "name": asked.name}
    return frame_page(
        request,
        site,
        frame,
        "files",
        query={**chosen, **here, "after": asked.after},
        found=found,
        asked=asked,
        refused=refused,
        link=request.query.get(LINK_PARAMETER),
        attempt=attempt,
        attempts=sorted(one.number for one in attempts),
        chosen=chosen,
        here=here,
        where={**chosen, **here},
        zip_address=_whole(request, frame, attempt),
        crumbs=crumbs(asked.prefix),
        folder_of=folder_of,
        quoted=quoted,
        visible=visible,
        spelled=spelled,
    )


def _whole(request: web.Request, frame: JobFrame, attempt: Attempt | None) -> str | None:
    """Where all files of the attempt are sent as they are stored; None: nowhere."""
    if attempt is None or attempt.result is None:
        return None
    address = f"/api/v1/jobs/{frame.job.id}"
    if attempt.number == frame.record.attempt and frame.job.links.result:
        return f"{address}/result"
    by_link = request[PRINCIPAL].role is Role.LINK  # it shows no other attempt's result
    return None if by_link else f"{address}/result?attempt={attempt.number}"


async def _folder(context: Context, frame: JobFrame, attempt: Attempt, asked: _Asked) -> FolderPage:
    job = frame.record
    agent = live_agent(context, job, attempt, FILES)
    where = (asked.prefix, asked.name, asked.after)
    if agent is not None:
        return await running_page(agent, job, attempt, *where)
    return await scan_stored(context, job, attempt, lambda listed: folder_page(listed, *where))


ROUTES: Final = (
    PageRoute("GET", f"{JOB_PAGE}/files", Area.JOBS, page, by_link=(Shows.JOB,)),
    *preview.ROUTES,
)
