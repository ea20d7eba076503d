"""The job that a path names, for callers who may see it."""

from __future__ import annotations

from aiohttp import web

from server.api.context import Context
from server.api.params import job_id, seconds_param
from server.domain.jobs import Job
from server.stages.read import read_job
from shared.clock import wait_for
from shared.http.authentication import PRINCIPAL


async def requested_job(request: web.Request, context: Context) -> Job:
    """The job as it is now.

    Raises:
        NotAllowed, NoSuchJob, Refusal
    """
    return await read_job(context.jobs, request[PRINCIPAL], job_id(request))


async def wait_for_job(request: web.Request, context: Context, *, until_ended: bool) -> Job:
    """The job after ``?wait=`` seconds at most.

    Args:
        until_ended: wait for the end; else for any state other than ``?seen=``, or the end.

    Raises:
        NotAllowed, NoSuchJob, BadField, Refusal
    """
    wanted = job_id(request)
    wait_s = seconds_param(request, "wait")
    seen = request.query.get("seen")
    job = await read_job(context.jobs, request[PRINCIPAL], wanted)

    def settled() -> bool:
        return job.ended or (not until_ended and seen is not None and job.state != seen)

    if not wait_s or settled():
        return job
    deadline = context.clock.monotonic() + wait_s
    with context.waiting(request), context.watch.of(wanted, end_only=until_ended) as changed:
        while True:
            changed.clear()
            job = await read_job(context.jobs, request[PRINCIPAL], wanted)
            left = deadline - context.clock.monotonic()
            if settled() or left <= 0 or context.watch.closing:
                return job
            await wait_for(changed, left, context.clock)
