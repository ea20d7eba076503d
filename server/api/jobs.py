"""Jobs: read, list, history, cancel."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from aiohttp import hdrs, web

from server.domain.access import Area, visible
from server.domain.errors import AlreadyEnded, BadField, invalid
from server.domain.jobs import Job, history
from server.domain.permits import Shows
from server.http import documents
from server.http.context import Context
from server.http.params import (
    FILTER_PARAMS,
    WAIT,
    choice,
    int_param,
    job_filter,
    job_id,
    paging,
    word,
)
from server.http.requested_job import wait_for_job
from server.http.route import JOB, Route, json_answer, tag_of
from server.stages.read import job_of_key, read_list
from server.store import events, jobs, pages
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.principals import Role
from shared.wire import JobPage, JobState

_KEY: Final = "idempotency_key"
_MOST: Final = 200
"""Newest states, and newest attempts, that the document of a job shows."""


async def job_answer(context: Context, job: Job, status: int = HTTPStatus.OK) -> web.Response:
    """The document of a single job."""
    queue = (await context.stages.waiting([job])).get(job.id)
    moves = await context.core.database.read(events.moves, job.id, _MOST)
    newest = await context.core.database.read_list(jobs.attempts, job.id, _MOST)
    more: dict[str, Any] = {
        "history": history(moves, context.core.clock.now()),
        "attempts": [
            documents.attempt_doc(one, job, context.core.settings.server.url_prefix)
            for one in newest
        ],
    }
    if job.callback_url is not None:
        more["webhooks"] = [
            documents.delivery_doc(one) for one in await context.stages.webhooks.of_job(job.id)
        ]
    batch = (await context.children_of([job])).get(job.id)
    document = context.document(job, queue, batch).model_copy(update=more)
    headers = documents.when_to_ask_again(job, context.core.clock.now())
    # How long it has been in its state is different each time.
    since = [(one.status, one.at) for one in document.history or ()]
    same = document.model_copy(update={"history": None}).model_dump_json()
    headers[hdrs.ETAG] = tag_of(f"{same}{since}".encode())
    return json_answer(document, status, headers)


async def read(request: web.Request, context: Context) -> web.StreamResponse:
    """The job document."""
    job = await wait_for_job(request, context, until_ended=False)
    if request[PRINCIPAL].role is Role.LINK:
        # Whoever has a link is anybody, and such an address may hold a secret of the portal.
        job = replace(job, callback_url=None)
    return await job_answer(context, job)


async def page(request: web.Request, context: Context) -> JobPage:
    """Jobs, newest first."""
    where = job_filter(request.query, context.core.clock.now())
    if _KEY in request.query:
        others = request.query.keys() - {_KEY, "user", "limit", "cursor"}
        for other in sorted(filter(request.query.get, others)):
            raise invalid(other, f"{_KEY} goes with user, and with nothing else")
        user = where.user_id or visible(request[PRINCIPAL]).user_id
        return await _page_of_key(request, context, user, request.query[_KEY])
    limit = int_param(request, "limit", 50, 1, 500)
    before = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    jobs, following = await read_list(
        context.core.database, request[PRINCIPAL], pages.page, where, before, limit
    )
    items = await context.documents(jobs)
    return JobPage(items=items, next=None if following is None else str(following))


async def _page_of_key(
    request: web.Request, context: Context, user: str | None, key: str
) -> JobPage:
    """The job that was uploaded under a key, for clients that lost the answer to that upload."""
    if user is None:
        raise BadField(_KEY, "missing_user", f"{_KEY} needs user beside it: keys belong to a user")
    job = await job_of_key(context.core.database, request[PRINCIPAL], user, key)
    items = [] if job is None else await context.documents([job])
    return JobPage(items=items, next=None)


async def cancel(request: web.Request, context: Context) -> web.StreamResponse:
    """Cancel: 200 when it has ended, 202 where the death of its processes takes longer."""
    try:
        job = await context.stages.cancel(request[PRINCIPAL], job_id(request))
    except AlreadyEnded as ended:
        job = await context.core.database.read(jobs.get, ended.job_id)
    return await _cancelled(context, job)


async def delete(request: web.Request, context: Context) -> web.StreamResponse:
    """Delete a job that has ended: 204; cancel one that has not, as ``POST …/cancel`` does."""
    job = await context.stages.delete(request[PRINCIPAL], job_id(request))
    if job is None:
        return web.Response(status=HTTPStatus.NO_CONTENT)
    return await _cancelled(context, job)


async def _cancelled(context: Context, job: Job) -> web.Response:
    if job.ended:
        return await job_answer(context, job)
    waiting = replace(job, message=_why_not_yet(context, job))
    return await job_answer(context, waiting, HTTPStatus.ACCEPTED)


async def retry(request: web.Request, context: Context) -> web.StreamResponse:
    """Retry by hand: a new run of a job that failed or was cancelled."""
    job = await context.stages.retry(request[PRINCIPAL], job_id(request))
    return await job_answer(context, job)


async def terminate(request: web.Request, context: Context) -> web.StreamResponse:
    """Cancel, in job-orchestrator's words."""
    try:
        job = await context.stages.cancel(request[PRINCIPAL], job_id(request))
    except AlreadyEnded as problem:
        job = await context.core.database.read(jobs.get, problem.job_id)
        body = documents.status_body(job, str(problem))
        return json_answer(body, HTTPStatus.CONFLICT)
    if job.ended:
        return json_answer(documents.status_body(job, "job terminated"))
    return json_answer(documents.status_body(job, _why_not_yet(context, job)), HTTPStatus.ACCEPTED)


def _why_not_yet(context: Context, job: Job) -> str:
    """What a cancel that takes longer waits for."""
    if job.agent is not None and context.core.registry.named(job.agent) is None:
        return (
            f"agent {job.agent} is not in the server's settings: whether the job is dead cannot be "
            "confirmed until it is back, or given up as lost (agent_lost_after)"
        )
    return f"the job will be terminated as soon as agent {job.agent} can be reached"


_STATUS: Final = {200: wire.StatusBody, 202: wire.StatusBody}
_SEEN: Final = {"seen": choice("return as soon as the state is another than this", JobState)}
_OF_KEY: Final = {
    _KEY: word("with user, and nothing else: the job that was uploaded under this key", 255)
}

ROUTES: Final = (
    Route("POST", "/terminate/{id}", Area.JOBS, terminate, _STATUS | {409: wire.StatusBody}),
    Route(
        "GET",
        "/api/v1/jobs",
        Area.JOBS,
        page,
        {200: wire.JobPage},
        FILTER_PARAMS | paging(50, 500) | _OF_KEY,
    ),
    Route(
        "GET", JOB, Area.JOBS, read, {200: wire.JobDoc}, query=WAIT | _SEEN, by_link=(Shows.JOB,)
    ),
    Route("DELETE", JOB, Area.JOBS, delete, {200: wire.JobDoc, 202: wire.JobDoc, 204: None}),
    Route("POST", f"{JOB}/cancel", Area.JOBS, cancel, {200: wire.JobDoc, 202: wire.JobDoc}),
    Route("POST", f"{JOB}/retry", Area.JOBS, retry, {200: wire.JobDoc}),
)
