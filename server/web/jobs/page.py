"""The lists of jobs: all that the caller may see, and the dead letters among them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain.access import Area, visible
from server.domain.bulk import BulkAction
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job
from server.http.addresses import address
from server.http.context import Context
from server.http.parameter_types import choice
from server.http.params import int_param
from server.http.query import FILTERS, paging
from server.ports import Filter
from server.stages.read import count_jobs, list_jobs, read_job
from server.web.jobs.chosen import CHILDREN, Chosen, chosen
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.principals import Principal, Scope
from shared.wire import JobDoc, JobState, Reason

ROWS: Final = 50
_COUNTED: Final = 10_000
_SLICES: Final = 4
"""Parts of the list that one page looks through for jobs that fit."""
_SEARCH_S: Final = 0.02
"""After which no further part is looked through."""
_ALWAYS: Final = frozenset(
    {
        JobState.QUEUED,
        JobState.RUNNING,
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
    }
)
"""States that have a tab even where no job is in them."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One of the lists.

    Attributes:
        fields: the filters that its form asks for; links lead to the others.
    """

    path: str
    title: str
    actions: tuple[BulkAction, ...]
    fields: tuple[str, ...]
    dead_letters: bool = False


_FIELDS: Final = ("service", "user", "tag", "since", "until")
JOBS: Final = Listing(
    "/jobs",
    "Jobs",
    (BulkAction.CANCEL, BulkAction.RETRY, BulkAction.DELETE),
    ("text", "state", *_FIELDS, CHILDREN),
)
DEAD_LETTERS: Final = Listing(
    "/dead-letters",
    "Dead letters",
    (BulkAction.RETRY, BulkAction.DELETE),
    ("text", "reason", *_FIELDS),
    dead_letters=True,
)
LISTINGS: Final = {one.path: one for one in (JOBS, DEAD_LETTERS)}


async def jobs(request: web.Request, site: Site) -> web.StreamResponse:
    """All jobs, newest first."""
    return await _page(request, site, JOBS)


async def dead_letters(request: web.Request, site: Site) -> web.StreamResponse:
    """Jobs that failed for good and are kept, newest first."""
    return await _page(request, site, DEAD_LETTERS)


async def _page(request: web.Request, site: Site, listing: Listing) -> web.StreamResponse:
    context, principal = site.context, request[PRINCIPAL]
    cursor = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    which = chosen(request.query, context.clock.now(), dead_letters=listing.dead_letters)
    found: list[Job] = []
    following, counts, exact = None, None, None
    if which.problem is None:
        found, following = await _search(context, principal, which.where, cursor)
        counts = await count_jobs(context.jobs, principal, which.where, _COUNTED)
        exact = await _exact(context, principal, which, found)
    return site.page(
        request,
        "jobs/list.html",
        status=HTTPStatus.OK if which.problem is None else HTTPStatus.BAD_REQUEST,
        title=listing.title,
        listing=listing,
        notice=_notice(request),
        jobs=await context.documents(found),
        exact=exact,
        cursor=cursor,
        following=following,
        searched_back=following if len(found) < ROWS else None,
        chosen=which,
        states=_tabs(which, counts),
        total=None if counts is None else sum(counts.values()),
        counted=_COUNTED,
        most_counted=counts is not None and _COUNTED in counts.values(),
        all_states=[str(state) for state in JobState],
        Scope=Scope,
        run_time=lambda job: _run_time_s(job, site.now()),
        services=sorted(one.name for one in context.services.values() if not one.retired),
        reasons=[str(reason) for reason in Reason],
        show_user=visible(principal).user_id is None,
        may_change=principal.may(Scope.MANAGE),
        here=address(request, context, ""),
    )


async def _search(
    context: Context, principal: Principal, where: Filter, before: int | None
) -> tuple[list[Job], int | None]:
    """A page of the list. Where few jobs fit, some parts of the list are looked through for it."""
    found: list[Job] = []
    until = context.clock.monotonic() + _SEARCH_S
    for _ in range(_SLICES):
        some, before = await list_jobs(context.jobs, principal, where, before, ROWS - len(found))
        found += some
        if before is None or len(found) >= ROWS or context.clock.monotonic() >= until:
            break
    return found, before


async def _exact(
    context: Context, principal: Principal, which: Chosen, found: list[Job]
) -> JobDoc | None:
    """The job whose number was searched for, wherever it is; None: it is in the list already."""
    number = whole_number((which.where.text or "").removeprefix("#"))
    if number is None or any(job.id == number for job in found):
        return None
    try:
        return context.document(await read_job(context.jobs, principal, number))
    except NoSuchJob:
        return None


def _tabs(which: Chosen, counts: dict[JobState, int] | None) -> list[tuple[JobState, int | None]]:
    """The states that one can choose at a click, with their numbers where those are known."""
    return [
        (state, None if counts is None else counts[state])
        for state in JobState
        if state in _ALWAYS or state is which.where.state or (counts is not None and counts[state])
    ]


def _run_time_s(job: JobDoc, now: datetime) -> float:
    """From its first start to its end, or so far."""
    if job.started_at is None:
        return 0.0
    return max(0.0, ((job.ended_at or now) - job.started_at).total_seconds())


_DONE: Final = {
    "cancel": "{jobs}: each ends as soon as its processes are dead",
    "retry": "{jobs} queued again",
    "deleted": "The job is deleted",
    "delete": "{jobs} deleted; what had not ended is cancelled, and kept",
    "nothing": "No job was chosen: tick some rows first, or all that match",
}


def _notice(request: web.Request) -> str | None:
    number = whole_number(request.query.get("number", ""), most=10**9) or 0
    text = _DONE.get(request.query.get("done", ""))
    return text and text.format(jobs="1 job" if number == 1 else f"{number:,} jobs")


_PAGE: Final = FILTERS | paging(ROWS, ROWS)
_QUERY: Final = _PAGE | {CHILDREN: choice("list the children of batches, too", ("true", "1"))}
ROUTES: Final = (
    PageRoute("GET", JOBS.path, Area.JOBS, jobs, query=_QUERY),
    PageRoute("GET", DEAD_LETTERS.path, Area.JOBS, dead_letters, query=_PAGE),
)
