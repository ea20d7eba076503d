"""Schedules: add, list, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.upload import SCHEDULE as SCHEDULE_FORM
from server.api.upload import check_head, received_form
from server.domain.access import Area
from server.domain.schedules import Schedule, check_schedule_field
from server.http.context import Context
from server.http.documents import shown
from server.http.params import MAX_ID, USER, int_param, paging
from server.http.problems import Refusal
from server.http.route import Route, json_answer
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.principals import Scope
from shared.wire import ScheduleDoc, SchedulePage


async def create(request: web.Request, context: Context) -> web.StreamResponse:
    """Store the bundle of a multipart form, for a job at each time that a cron line names."""
    principal = request[PRINCIPAL]

    def check(name: str, value: str) -> None:
        check_schedule_field(name, value, context.core.services, principal)

    fields = await check_head(request, context, dict(request.query), check)
    async with received_form(request, context, fields, check) as form:
        schedule = await context.stages.schedules.create(
            principal, form.fields, form.content, form.bundle
        )
    return json_answer(_document(schedule), HTTPStatus.CREATED)


async def page(request: web.Request, context: Context) -> SchedulePage:
    """Schedules, newest first."""
    limit = int_param(request, "limit", 500, 1, 1_000)
    before = int_param(request, "cursor", 0, 0, MAX_ID) or MAX_ID
    found, following = context.stages.schedules.page(
        request[PRINCIPAL], request.query.get("user"), before, limit
    )
    items = [_document(schedule) for schedule in found]
    return SchedulePage(items=items, next=None if following is None else str(following))


async def delete(request: web.Request, context: Context) -> web.StreamResponse:
    """Delete a schedule; its jobs stay."""
    text = request.match_info["schedule"]
    number = whole_number(text, 1, MAX_ID)
    if number is None:
        raise Refusal(404, "schedule_not_found", f"{text[:20]!r} is not the number of a schedule")
    await context.stages.schedules.delete(request[PRINCIPAL], number)
    return web.Response(status=HTTPStatus.NO_CONTENT)


def _document(one: Schedule) -> ScheduleDoc:
    return ScheduleDoc(**shown(one, ScheduleDoc), bundle_size=one.bundle.size)


_HERE: Final = "/api/v1/schedules"

ROUTES: Final = (
    Route(
        *("POST", _HERE, Area.JOBS, create, {201: ScheduleDoc}),
        needs=Scope.SUBMIT,
        body=SCHEDULE_FORM,
        fields_in_query=True,
    ),
    Route(
        *("GET", _HERE, Area.JOBS, page, {200: SchedulePage}),
        query={"user": USER, **paging(500, 1_000)},
    ),
    Route("DELETE", f"{_HERE}/{{schedule}}", Area.JOBS, delete, {204: None}),
)
