"""The first page of a job, its children, and what the buttons and forms do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from server.domain import field_values, states
from server.domain.access import Area
from server.domain.errors import AlreadyEnded, BadField, FerrymanError
from server.domain.jobs import Attempt, Event, Job, history
from server.domain.live import NOTICES
from server.domain.permits import Shows
from server.http.context import Context
from server.http.documents import delivery_doc
from server.http.files import scan_first
from server.http.logs import STREAMS, has_started, opened_log
from server.http.params import checked, int_param, job_id
from server.http.permits import LinkBody, address, made_link
from server.http.problems import BACK, Refusal
from server.http.route import JOB_PAGE, LINK_PARAMETER
from server.stages.bulk import BulkAction
from server.store import batches, events, jobs
from server.web.job.content import visible
from server.web.job.files import FolderPage, folder_of, folder_page, quoted
from server.web.job.frame import JobFrame, frame_page, job_frame
from server.web.job.lines import Lines
from server.web.job.shown import ADVICE, bars, pieces, scripts, took_s
from server.web.site import PageRoute, Site
from shared.http.authentication import PRINCIPAL
from shared.principals import Scope
from shared.wire import JobState

_MOVES: Final = 200
_EVENTS: Final = 200
"""The newest, among which lines for people are looked for."""
_TIMES: Final = 50
"""Of events that stand on the page; the API has all of them."""
_ATTEMPTS: Final = 20
"""The newest; the API has all of them."""
_SAID: Final = 6
_FOR_PEOPLE: Final = frozenset(NOTICES[level] for level in ("notice", "warning", "error"))


DURATIONS: Final = (("1h", "1 hour"), ("1d", "1 day"), ("7d", "7 days"), ("30d", "30 days"))
WHAT: Final = (
    (Shows.JOB, "This page, with its log, files and result"),
    (Shows.RESULT, "The result (ZIP) only"),
    (Shows.FILE, "One file of the result"),
)


@dataclass(frozen=True, slots=True)
class LinkForm:
    """What was typed into the form, and what came of it.

    Attributes:
        url: of the link that was made.
        field: the one that is wrong, with the ``error``.
    """

    what: str = Shows.JOB
    expires_in: str = "7d"
    path: str = ""
    url: str = ""
    expires_at: datetime | None = None
    field: str = ""
    error: str = ""


FORM: Final = LinkForm()


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """Where a job stands, for people."""
    return await overview(request, site, await job_frame(request, site))


async def overview(
    request: web.Request, site: Site, frame: JobFrame, *, share: LinkForm = FORM, **values: Any
) -> web.Response:
    """The page; also with what came of a form that stands on it."""
    context, job = site.context, frame.record
    moves = history(
        await context.core.database.read(events.moves, job.id, _MOVES), context.core.clock.now()
    )
    newest = await context.core.database.read_list(jobs.attempts, job.id, _ATTEMPTS + 1)
    latest = newest[-1] if newest else None
    own = latest is not None and latest.number == job.attempt
    logs = (latest.stdout_bytes, latest.stderr_bytes) if latest and own else (None, None)
    happened = await context.core.database.read(events.latest, job.id, _EVENTS)
    announced = job.callback_url is not None
    webhooks = [
        delivery_doc(one) for one in await context.stages.webhooks.of_job(job.id)
    ] * announced
    return frame_page(
        request,
        site,
        frame,
        "overview",
        **{
            "attempts": newest[-_ATTEMPTS:],
            "more_attempts": len(newest) > _ATTEMPTS,
            "webhooks": webhooks,
            "events": happened[_TIMES - 1 :: -1],
            "more_events": len(happened) > _TIMES,
            "pieces": pieces(moves),
            "took_s": took_s(moves),
            "bars": bars(job, *logs),
            "lines": _lines(happened, job.attempt),
            "for_people": _FOR_PEOPLE,
            "advice": ADVICE.get(job.reason) if job.reason and job.ended else None,
            "scripts": scripts(request, site, job),
            "scripts_need_token": context.access.known.needed,
            "log": await last_lines(context, job, latest if own else None),
            "files": await first_files(context, job, latest if own else None),
            "folder_of": folder_of,
            "quoted": quoted,
            "visible": visible,
            "share": share,
            "durations": DURATIONS,
            "kinds": WHAT,
            **values,
        },
    )


def _lines(events: Sequence[Event], attempt: int) -> list[Event]:
    """What run.sh wrote for people in this attempt, the newest first."""
    own = [one for one in events if one.event in _FOR_PEOPLE or one.source]
    return [one for one in own if one.attempt == attempt][:_SAID]


_LINES: Final = 8
_BYTES: Final = 4096
"""Of the end of a log, in which its last lines are looked for."""
_PATIENCE_S: Final = 0.5
"""With an agent: the page has more to say than this."""
_FILES: Final = 5
_LISTED: Final = 500
"""Files of a result among which the first are looked for."""


async def last_lines(context: Context, job: Job, attempt: Attempt | None) -> list[Markup]:
    """Of the output of an attempt that runs; empty where its agent does not show it now."""
    if job.state is not JobState.RUNNING or attempt is None or not has_started(job, attempt):
        return []
    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            opened_log(context, job, attempt, STREAMS[0]) as (size, read),
        ):
            start, data = max(0, size - _BYTES), b""
            if not size:
                return []
            async with aclosing(read(start, size)) as chunks:
                async for chunk in chunks:
                    data += chunk
                    if len(data) >= size - start:
                        break
    except (FerrymanError, Refusal, TimeoutError):
        return []
    if start:
        data = data.partition(b"\n")[2] or data
    lines = Lines(commands=True)
    rows = lines.feed(data)
    rest = lines.unfinished()
    return [one.text for one in [*rows, *([rest] if rest else [])][-_LINES:]]


async def first_files(context: Context, job: Job, attempt: Attempt | None) -> FolderPage | None:
    """Of the stored result of the latest attempt; None: there is none that can be read."""
    if not job.ended or attempt is None or attempt.result is None:
        return None
    try:
        return await scan_first(
            context, job, attempt, _LISTED, lambda some: folder_page(some, "", "", "", _FILES)
        )
    except (FerrymanError, Refusal):
        return None


# -- children

_AT_ONCE: Final = 500
_LAST: Final = 2**63 - 1
CHOICES: Final[Mapping[str, frozenset[JobState]]] = {
    "queued": frozenset({JobState.QUEUED}),
    "active": states.HOLDS_SLOT,
    "completed": frozenset({JobState.COMPLETED}),
    "failed": frozenset({JobState.FAILED}),
    "cancelled": frozenset({JobState.CANCELLED}),
}
"""As the children are counted in the job document."""


async def children(request: web.Request, site: Site) -> web.StreamResponse:
    """The children, the first one first."""
    chosen = request.query.get("show", "")
    chosen = chosen if chosen in CHOICES else ""
    after = int_param(request, "after", 0, 0, _LAST)
    frame = await job_frame(request, site)
    if frame.job.children is None:
        message = f"job {frame.job.id} has no children"
        raise Refusal(404, "no_batch", message)
    among = CHOICES[chosen] if chosen else tuple(JobState)
    found = await site.context.core.database.read_list(
        batches.children_of, frame.job.id, _AT_ONCE + 1, after, among
    )
    shown = found[:_AT_ONCE]
    return frame_page(
        request,
        site,
        frame,
        "children",
        children=shown,
        chosen=chosen,
        choices=list(CHOICES),
        following=shown[-1].id if len(found) > _AT_ONCE else None,
        after=after,
        query={"show": chosen, "after": after or ""},
    )


# -- buttons and forms

_CANCEL_S: Final = 1.0
"""For the death of processes: the page says what it waits for, and goes on by itself."""
_MAX_TYPED: Final = 4_096
"""Characters of a field; what is longer is nobody's typing."""


async def cancel(request: web.Request, site: Site) -> web.StreamResponse:
    """Cancel."""
    here = _here(request, site)
    try:
        await site.context.stages.cancel(request[PRINCIPAL], job_id(request), _CANCEL_S)
    except AlreadyEnded:
        return site.go_to(here, done="ended")
    return site.go_to(here, done="cancel")


async def retry(request: web.Request, site: Site) -> web.StreamResponse:
    """A new run of a job that failed or was cancelled."""
    here = _here(request, site)
    await site.context.stages.retry(request[PRINCIPAL], job_id(request))
    return site.go_to(here, done="retry")


async def delete(request: web.Request, site: Site) -> web.StreamResponse:
    """Delete the job with all that it left; cancel it if it was queued again meanwhile."""
    here = _here(request, site)
    job = await site.context.stages.delete(request[PRINCIPAL], job_id(request), _CANCEL_S)
    return site.go_to("/jobs", done="deleted") if job is None else site.go_to(here, done="cancel")


async def change_tags(request: web.Request, site: Site) -> web.StreamResponse:
    """Give it the tags of the field, and no others."""
    here, principal = _here(request, site), request[PRINCIPAL]
    frame = await job_frame(request, site)
    typed = str((await request.post()).get("tags", ""))[:_MAX_TYPED]
    try:
        wanted: tuple[str, ...] = field_values.tags(typed) if typed.strip() else ()
    except ValueError as problem:
        if not principal.may(Scope.READ):
            raise BadField("tags", "invalid_tags", f"Invalid tags: {problem}") from problem
        return await overview(
            request,
            site,
            frame,
            status=HTTPStatus.BAD_REQUEST,
            tags_typed=typed,
            tags_error=str(problem),
        )
    has = frame.record.tags
    changes = (
        (BulkAction.UNTAG, [tag for tag in has if tag not in wanted]),
        (BulkAction.TAG, [tag for tag in wanted if tag not in has]),
    )
    for action, tags in changes:
        if tags:
            (done,) = await site.context.stages.bulk(principal, action, [frame.job.id], tags)
            if not done.ok:
                raise Refusal(HTTPStatus.CONFLICT, done.code, done.message)
    return site.go_to(here, done="tags")


async def share(request: web.Request, site: Site) -> web.StreamResponse:
    """Make a link, and show it on the page: nobody can look it up later."""
    _here(request, site)
    frame = await job_frame(request, site)
    form = await request.post()
    what, expires_in, path = (
        str(form.get(name, ""))[:_MAX_TYPED] for name in ("what", "expires_in", "path")
    )
    typed = LinkForm(what=what, expires_in=expires_in, path=path)
    asked = {"what": what or Shows.JOB, "expires_in": expires_in}
    if what == Shows.FILE:
        asked["path"] = path
    try:
        link, made = made_link(request, site.context, frame.record, checked(asked, LinkBody))
    except BadField as problem:
        typed = replace(typed, field=problem.field, error=str(problem))
        return await overview(request, site, frame, share=typed, status=HTTPStatus.BAD_REQUEST)
    url = made.url
    if link.shows is Shows.JOB:
        url = address(request, site.context, frame.address, **{LINK_PARAMETER: made.link})
    return await overview(
        request, site, frame, share=replace(typed, url=url, expires_at=made.expires_at)
    )


def _here(request: web.Request, site: Site) -> str:
    """The job's page. Where what was asked for is refused, the error page leads back to it."""
    here = JOB_PAGE.replace("{id}", str(job_id(request)))
    request[BACK] = site.url(here)
    return here


ROUTES: Final = (
    PageRoute("GET", JOB_PAGE, Area.JOBS, page, by_link=(Shows.JOB,)),
    PageRoute("GET", f"{JOB_PAGE}/children", Area.JOBS, children),
    PageRoute("POST", f"{JOB_PAGE}/cancel", Area.JOBS, cancel),
    PageRoute("POST", f"{JOB_PAGE}/retry", Area.JOBS, retry),
    PageRoute("POST", f"{JOB_PAGE}/delete", Area.JOBS, delete),
    PageRoute("POST", f"{JOB_PAGE}/tags", Area.JOBS, change_tags),
    PageRoute("POST", f"{JOB_PAGE}/share", Area.JOBS, share, needs=Scope.READ),
)
