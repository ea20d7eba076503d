"""The job that a path names."""

from __future__ import annotations

from aiohttp import web

from server.api.context import Context
from server.api.params import job_id, seconds_param
from server.domain.jobs import Job
from shared.clock import wait_for


async def wait_for_job(request: web.Request, context: Context, *, until_ended: bool) -> Job:
    """The job that the path names, after ``?wait=`` seconds at most.

    Args:
        until_ended: wait for the end; else for any state other than ``?seen=``, or the end.
    """
    wanted = job_id(request)
    wait_s = seconds_param(request, "wait")
    seen = request.query.get("seen")
    job = await context.jobs.get(wanted)

    def settled() -> bool:
        return job.ended or (not until_ended and seen is not None and job.state != seen)

    if not wait_s or settled():
        return job
    deadline = context.clock.monotonic() + wait_s
    with context.waiting(request), context.watch.of(wanted, end_only=until_ended) as changed:
        while True:
            changed.clear()
            job = await context.jobs.get(wanted)
            left = deadline - context.clock.monotonic()
            if settled() or left <= 0 or context.watch.closing:
                return job
            await wait_for(changed, left, context.clock)
