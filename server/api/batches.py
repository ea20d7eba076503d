"""Batches: parents, their children, and the results of all children together."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.jobs import job_answer
from server.domain.access import Area
from server.domain.jobs import Job
from server.http.batch_result import send_batch
from server.http.context import Context
from server.http.filters import job_filter
from server.http.params import int_param
from server.http.paths import BATCH
from server.http.problems import Refusal
from server.http.query import STATE, filters, paging
from server.http.requested_job import requested_job
from server.http.results import cleaned
from server.http.route import Route
from server.ports import Filter
from server.stages.read import list_jobs, list_parents
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.wire import JobPage, JobState


async def page(request: web.Request, context: Context) -> JobPage:
    """Parents, newest first."""
    where = job_filter(request.query, context.clock.now())
    limit, before = _paging(request)
    jobs, following = await list_parents(context.jobs, request[PRINCIPAL], where, before, limit)
    return await _page(context, jobs, following)


async def read(request: web.Request, context: Context) -> web.StreamResponse:
    """The document of a parent."""
    return await job_answer(context, await _parent(request, context))


async def children(request: web.Request, context: Context) -> JobPage:
    """The children of a batch, the last one first."""
    parent = await _parent(request, context)
    chosen = job_filter(request.query, context.clock.now())
    where = Filter(parent_id=parent.id, state=chosen.state)
    limit, before = _paging(request)
    jobs, following = await list_jobs(context.jobs, request[PRINCIPAL], where, before, limit)
    return await _page(context, jobs, following)


async def result(request: web.Request, context: Context) -> web.StreamResponse:
    """One ZIP of what the children have left by now."""
    parent = await _parent(request, context)
    if parent.state is JobState.CLEANED:
        raise cleaned(parent)
    return await send_batch(request, context, parent)


async def _parent(request: web.Request, context: Context) -> Job:
    job = await requested_job(request, context)
    batch = await context.jobs.batch(job.id)
    if batch is None or not batch.total:
        message = f"job {job.id} has no children"
        raise Refusal(HTTPStatus.NOT_FOUND, "no_batch", message, job_id=job.id, state=job.state)
    return job


def _paging(request: web.Request) -> tuple[int, int | None]:
    before = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    return int_param(request, "limit", 50, 1, 500), before


async def _page(context: Context, jobs: list[Job], following: int | None) -> JobPage:
    items = await context.documents(jobs)
    return JobPage(items=items, next=None if following is None else str(following))


_ZIP: Final = "application/zip"
_PAGING: Final = paging(50, 500)
_PARENTS: Final = filters("user", "user_id", "service", "state", "status") | _PAGING

ROUTES: Final = (
    Route("GET", "/api/v1/batches", Area.JOBS, page, {200: wire.JobPage}, query=_PARENTS),
    Route("GET", BATCH, Area.JOBS, read, {200: wire.JobDoc}, ("no_batch",)),
    Route(
        "GET",
        f"{BATCH}/children",
        Area.JOBS,
        children,
        {200: wire.JobPage},
        ("no_batch",),
        STATE | _PAGING,
    ),
    Route(
        "GET",
        f"{BATCH}/result",
        Area.JOBS,
        result,
        {200: _ZIP},
        ("no_batch", "result_cleaned", "too_many_batch_zips"),
    ),
)
