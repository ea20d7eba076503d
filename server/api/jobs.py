"""Jobs: read, list, history, cancel."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Final

from aiohttp import web
from pydantic import BaseModel

from server.api import documents
from server.api.context import CONTEXT, Context
from server.api.params import int_param, job_id, seconds_param
from server.api.requested_job import wait_for_job
from server.domain.errors import AlreadyEnded, BadField
from server.domain.jobs import Job
from server.ports import Filter
from server.stages import clean
from server.stages.read import job_of_key, list_jobs, read_events
from shared.clock import wait_for
from shared.http.authentication import PRINCIPAL
from shared.wire import EventPage, JobPage, JobState, StatusBody

_ALIASES: Final = {"user": "user_id", "user_id": "user_id", "service": "service", "tag": "tag"}
_STATES: Final = ("state", "status")
_PAGING: Final = ("limit", "cursor")
_KEY: Final = "idempotency_key"


def _json(body: BaseModel, status: int = HTTPStatus.OK) -> web.Response:
    text = body.model_dump_json(exclude_none=isinstance(body, StatusBody))
    return web.Response(status=status, text=text, content_type="application/json")


async def _document(context: Context, job: Job, status: int = HTTPStatus.OK) -> web.Response:
    service = context.services.get(job.service)
    queue = None
    if not job.ended:
        queue = await documents.why_waiting(
            job, service, context.jobs, context.fleet, context.clock.now()
        )
    response = _json(context.document(job, queue), status)
    if not job.ended:
        response.headers["Retry-After"] = "2"
    return response


async def read(request: web.Request) -> web.StreamResponse:
    """The job document."""
    context = request.app[CONTEXT]
    job = await wait_for_job(request, context, until_ended=False)
    return await _document(context, job)


async def page(request: web.Request) -> web.StreamResponse:
    """Jobs, newest first."""
    context = request.app[CONTEXT]
    known = (*_ALIASES, *_STATES, *_PAGING, _KEY)
    for name in request.query:
        if name not in known:
            there = ", ".join(known)
            raise BadField(name, "unknown_parameter", f"no parameter {name!r}; there are {there}")
    given = {_ALIASES[name]: request.query[name] for name in _ALIASES if name in request.query}
    if _KEY in request.query:
        return await _page_of_key(request, given.get("user_id"), request.query[_KEY])
    state: JobState | None = None
    for name in _STATES:
        if name in request.query:
            text = "Cancelled" if request.query[name] == "Killed" else request.query[name]
            try:
                state = JobState(text)
            except ValueError:
                states = ", ".join(JobState)
                message = f"{name} should be one of {states}, not {text[:32]!r}"
                raise BadField(name, "invalid_state", message) from None
    limit = int_param(request, "limit", 50, 1, 500)
    before = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    jobs, following = await list_jobs(
        context.jobs, request[PRINCIPAL], Filter(**given, state=state), before, limit
    )
    items = [context.document(job) for job in jobs]
    return _json(JobPage(items=items, next=None if following is None else str(following)))


async def _page_of_key(request: web.Request, user: str | None, key: str) -> web.Response:
    """The job that was uploaded under a key, for whoever lost the answer to that upload."""
    if user is None:
        raise BadField(_KEY, "missing_user", f"{_KEY} needs user beside it: keys belong to a user")
    context = request.app[CONTEXT]
    job = await job_of_key(context.jobs, request[PRINCIPAL], user, key)
    items = [] if job is None else [context.document(job)]
    return _json(JobPage(items=items, next=None))


async def events(request: web.Request) -> web.StreamResponse:
    """The history of a job; ``?after=SEQ&wait=S`` waits for what is newer."""
    context = request.app[CONTEXT]
    wanted = job_id(request)
    after = int_param(request, "after", 0, 0, 2**63 - 1)
    wait_s = seconds_param(request, "wait")
    newer = await read_events(context.jobs, request[PRINCIPAL], wanted, after)
    if wait_s and not newer:
        deadline = context.clock.monotonic() + wait_s
        with context.waiting(request), context.watch.of(wanted) as changed:
            while not newer:
                changed.clear()
                newer = await read_events(context.jobs, request[PRINCIPAL], wanted, after)
                left = deadline - context.clock.monotonic()
                if left <= 0 or context.watch.closing:
                    break
                if not newer:
                    await wait_for(changed, left, context.clock)
    return _json(EventPage(items=[documents.event_doc(event) for event in newer]))


async def cancel(request: web.Request) -> web.StreamResponse:
    """Cancel: 200 when its processes are dead, 202 where that takes longer."""
    context = request.app[CONTEXT]
    job = await context.cancel(request[PRINCIPAL], job_id(request), context.cancel_patience_s)
    if job.ended:
        return await _document(context, job)
    waiting = replace(job, message=_why_not_yet(context, job))
    return await _document(context, waiting, HTTPStatus.ACCEPTED)


async def delete(request: web.Request) -> web.StreamResponse:
    """Delete an ended job: its files, its history, and that it was there."""
    context = request.app[CONTEXT]
    await clean.delete(context.jobs, context.storage, request[PRINCIPAL], job_id(request))
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def terminate(request: web.Request) -> web.StreamResponse:
    """Cancel, in job-orchestrator's words."""
    context = request.app[CONTEXT]
    try:
        job = await context.cancel(request[PRINCIPAL], job_id(request), context.cancel_patience_s)
    except AlreadyEnded as problem:
        job = await context.jobs.get(problem.job_id)
        body = documents.status_body(job, str(problem))
        return _json(body, HTTPStatus.CONFLICT)
    if job.ended:
        return _json(documents.status_body(job, "job terminated"))
    return _json(documents.status_body(job, _why_not_yet(context, job)), HTTPStatus.ACCEPTED)


def _why_not_yet(context: Context, job: Job) -> str:
    """What a cancel that takes longer waits for."""
    if job.agent is not None and context.fleet.named(job.agent) is None:
        return (
            f"agent {job.agent} is not in the server's settings: whether the job is dead cannot be "
            "confirmed until it is back, or given up as lost (agent_lost_after)"
        )
    return f"the job will be terminated as soon as agent {job.agent} can be reached"
