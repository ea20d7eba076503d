"""Schedules: add, read, list, pause, run now, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.codes import FORM
from server.api.form_fields import SCHEDULE as SCHEDULE_FORM
from server.domain.access import Area
from server.domain.schedules import NOT_REPEATED, Outcome, Schedule, check_schedule_field
from server.http.context import Context
from server.http.forms import check_head, received_form
from server.http.params import int_param, schedule_number
from server.http.paths import SCHEDULE
from server.http.query import USER, paging
from server.http.route import Route, json_answer
from shared import wire
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Scope
from shared.wire import ScheduleDoc, ScheduleLinks, SchedulePage

_MAX_ID: Final = 2**63 - 1


async def create(request: web.Request, context: Context) -> web.StreamResponse:
    """Store the bundle of a multipart form, for a job at each time that a cron line names."""
    principal = request[PRINCIPAL]

    def check(name: str, value: str) -> None:
        check_schedule_field(name, value, context.services, principal)

    fields = await check_head(request, context, dict(request.query), check)
    async with received_form(request, context, fields, check) as form:
        schedule = await context.schedules.create(principal, form.fields, form.content, form.bundle)
    shown = _document(context, schedule)
    return json_answer(shown, HTTPStatus.CREATED, {"Location": shown.links.self})


async def page(request: web.Request, context: Context) -> SchedulePage:
    """Schedules, newest first."""
    limit = int_param(request, "limit", 500, 1, 1_000)
    before = int_param(request, "cursor", 0, 0, _MAX_ID) or None
    found, following = await context.schedules.page(
        request[PRINCIPAL], request.query.get("user"), before, limit
    )
    items = [_document(context, schedule) for schedule in found]
    return SchedulePage(items=items, next=None if following is None else str(following))


async def read(request: web.Request, context: Context) -> ScheduleDoc:
    """One schedule."""
    return _document(
        context, await context.schedules.read(request[PRINCIPAL], schedule_number(request))
    )


async def delete(request: web.Request, context: Context) -> web.StreamResponse:
    """Delete a schedule; its jobs stay."""
    await context.schedules.delete(request[PRINCIPAL], schedule_number(request))
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def pause(request: web.Request, context: Context) -> ScheduleDoc:
    """It makes no jobs until it is resumed."""
    return _document(
        context, await context.schedules.pause(request[PRINCIPAL], schedule_number(request))
    )


async def resume(request: web.Request, context: Context) -> ScheduleDoc:
    """It goes on with its next time."""
    return _document(
        context, await context.schedules.resume(request[PRINCIPAL], schedule_number(request))
    )


async def run(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a job now: 201 with it, or 202 where a former job is being cancelled first."""
    principal, number = request[PRINCIPAL], schedule_number(request)
    fired = await context.schedules.run(principal, number)
    if fired.how is Outcome.PENDING or fired.job_id is None:
        shown = _document(context, await context.schedules.read(principal, number))
        return json_answer(shown, HTTPStatus.ACCEPTED)
    document = context.document(await context.jobs.get(fired.job_id))
    return json_answer(document, HTTPStatus.CREATED, {"Location": document.links.self})


def _document(context: Context, schedule: Schedule) -> ScheduleDoc:
    here = f"{context.url_prefix}/api/v1"
    return ScheduleDoc(
        id=schedule.id,
        name=schedule.name,
        user_id=schedule.user_id,
        service=schedule.service,
        cron=schedule.timing.cron,
        time_zone=schedule.timing.time_zone,
        overlap=schedule.timing.overlap,
        missed=schedule.timing.missed,
        fields=dict(schedule.fields),
        bundle_size=schedule.bundle.size,
        paused=schedule.paused,
        pending=schedule.pending,
        next_at=None if schedule.paused else utc(schedule.next_at),
        last_at=None if schedule.last_at is None else utc(schedule.last_at),
        last_job_id=schedule.last_job_id,
        message=schedule.message,
        created_at=utc(schedule.created_at),
        links=ScheduleLinks(
            self=f"{here}/schedules/{schedule.id}", jobs=f"{here}/jobs?schedule={schedule.id}"
        ),
    )


_ONCE: Final = tuple(f"invalid_{name}" for name in sorted(NOT_REPEATED))

ROUTES: Final = (
    Route(
        "POST",
        "/api/v1/schedules",
        Area.JOBS,
        create,
        {201: wire.ScheduleDoc},
        (*FORM, *_ONCE, "missing_name", "missing_cron", "schedule_exists", "too_many_schedules"),
        needs=Scope.SUBMIT,
        body=SCHEDULE_FORM,
        sends=("Location",),
        fields_in_query=True,
    ),
    Route(
        "GET",
        "/api/v1/schedules",
        Area.JOBS,
        page,
        {200: wire.SchedulePage},
        (),
        {"user": USER, **paging(500, 1_000)},
    ),
    Route("GET", SCHEDULE, Area.JOBS, read, {200: wire.ScheduleDoc}),
    Route("DELETE", SCHEDULE, Area.JOBS, delete, {204: None}),
    Route("POST", f"{SCHEDULE}/pause", Area.JOBS, pause, {200: wire.ScheduleDoc}),
    Route("POST", f"{SCHEDULE}/resume", Area.JOBS, resume, {200: wire.ScheduleDoc}),
    Route(
        "POST",
        f"{SCHEDULE}/run",
        Area.JOBS,
        run,
        {201: wire.JobDoc, 202: wire.ScheduleDoc},
        ("schedule_not_run",),
        sends=("Location",),
        needs=Scope.SUBMIT,
    ),
)
