"""The schedules of the caller: when each is due, what became of its latest jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain.access import Area, visible
from server.domain.errors import FerrymanError
from server.domain.jobs import Job
from server.domain.schedules import Schedule, ScheduleRefusal
from server.http.addresses import address
from server.http.filters import MAX_TEXT
from server.http.params import int_param, schedule_number
from server.http.query import USER, paging
from server.ports import Filter
from server.stages.read import list_jobs
from server.web.site.page_route import Handler, PageRoute
from server.web.site.site import Site
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Principal, Scope
from shared.wire import JobDoc

_LIST: Final = "/schedules"
_ONE: Final = "/schedules/{schedule}"
_ROWS: Final = 25
_LATEST, _LATEST_OF_ONE = 5, 20


@dataclass(frozen=True, slots=True)
class _Shown:
    """A schedule as pages show it.

    Attributes:
        next_at: None: it is paused.
        latest: its newest jobs.
    """

    schedule: Schedule
    next_at: datetime | None
    last_at: datetime | None
    created_at: datetime
    latest: Sequence[Job]


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """The schedules, newest first."""
    context, principal = site.context, request[PRINCIPAL]
    cursor = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    user = request.query.get("user", "").strip()[:MAX_TEXT] or None
    found, following = await context.schedules.page(principal, user, cursor, _ROWS)
    return site.page(
        request,
        "jobs/schedules.html",
        title="Schedules",
        shown=await asyncio.gather(
            *(_shown(site, principal, schedule, _LATEST) for schedule in found)
        ),
        following=following,
        user=user,
        cursor=cursor,
        show_user=visible(principal).user_id is None,
        may_change=principal.may(Scope.MANAGE),
        may_run=principal.may(Scope.SUBMIT),
        here=address(request, context, ""),
        service=next((one.name for one in context.services.values() if not one.retired), "example"),
        notice=_DONE.get(request.query.get("done", "")),
    )


async def one(request: web.Request, site: Site) -> web.StreamResponse:
    """A schedule with its latest jobs."""
    return await _page(request, site, _DONE.get(request.query.get("done", "")))


async def _page(
    request: web.Request, site: Site, notice: str | None, refused: FerrymanError | None = None
) -> web.StreamResponse:
    context, principal = site.context, request[PRINCIPAL]
    schedule = await context.schedules.read(principal, schedule_number(request))
    shown = await _shown(site, principal, schedule, _LATEST_OF_ONE)
    documents: list[JobDoc] = await context.documents(shown.latest)
    return site.page(
        request,
        "jobs/schedule.html",
        status=HTTPStatus.OK if refused is None else HTTPStatus.CONFLICT,
        title=f"Schedule {schedule.name}",
        one=shown,
        jobs=documents,
        may_change=principal.may(Scope.MANAGE),
        may_run=principal.may(Scope.SUBMIT),
        notice=str(refused) if refused is not None else notice,
        notice_kind="good" if refused is None else "bad",
    )


async def _shown(site: Site, principal: Principal, schedule: Schedule, most: int) -> _Shown:
    latest, _ = await list_jobs(
        site.context.jobs, principal, Filter(schedule_id=schedule.id), None, most
    )
    return _Shown(
        schedule,
        None if schedule.paused else utc(schedule.next_at),
        None if schedule.last_at is None else utc(schedule.last_at),
        utc(schedule.created_at),
        latest,
    )


async def pause(request: web.Request, site: Site) -> web.StreamResponse:
    """It makes no jobs until it is resumed."""
    number = schedule_number(request)
    await site.context.schedules.pause(request[PRINCIPAL], number)
    return site.go_to(f"{_LIST}/{number}", done="paused")


async def resume(request: web.Request, site: Site) -> web.StreamResponse:
    """It goes on with its next time."""
    number = schedule_number(request)
    await site.context.schedules.resume(request[PRINCIPAL], number)
    return site.go_to(f"{_LIST}/{number}", done="resumed")


async def run(request: web.Request, site: Site) -> web.StreamResponse:
    """Make a job now, and go to its page."""
    number = schedule_number(request)
    try:
        fired = await site.context.schedules.run(request[PRINCIPAL], number)
    except ScheduleRefusal as problem:
        return await _page(request, site, None, problem)
    if fired.job_id is None:
        return site.go_to(f"{_LIST}/{number}", done="pending")
    return site.go_to(f"/jobs/{fired.job_id}")


async def delete(request: web.Request, site: Site) -> web.StreamResponse:
    """Delete it; its jobs stay."""
    await site.context.schedules.delete(request[PRINCIPAL], schedule_number(request))
    return site.go_to(_LIST, done="deleted")


_DONE: Final = {
    "paused": "It is paused: no jobs are made until it is resumed",
    "resumed": "It goes on with its next time",
    "pending": "The former job is being cancelled; then the next one is made",
    "deleted": "The schedule is deleted; its jobs stay",
}


def _post(what: str, handler: Handler, needs: Scope | None = None) -> PageRoute:
    return PageRoute("POST", f"{_ONE}/{what}", Area.JOBS, handler, needs)


ROUTES: Final = (
    PageRoute("GET", _LIST, Area.JOBS, listing, query={"user": USER, **paging(_ROWS, _ROWS)}),
    PageRoute("GET", _ONE, Area.JOBS, one),
    _post("pause", pause),
    _post("resume", resume),
    _post("run", run, Scope.SUBMIT),
    _post("delete", delete),
)
