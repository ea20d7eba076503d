"""The job that a path names, for callers who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from aiohttp import web

from server.domain.access import visible
from server.domain.errors import NoSuchJob, NotAllowed
from server.domain.jobs import Job
from server.http.context import Context
from server.http.params import job_id, seconds_param
from server.stages.read import read_job
from shared.clock import wait_for
from shared.http.authentication import PRINCIPAL
from shared.http.middleware import GATE
from shared.wakeups import Change

T = TypeVar("T")


async def requested_job(request: web.Request, context: Context) -> Job:
    """The job as it is now. Raises NotAllowed, NoSuchJob, Refusal."""
    return await read_job(context.core.database, request[PRINCIPAL], job_id(request))


async def wait_for_job(request: web.Request, context: Context, *, until_ended: bool) -> Job:
    """The job after ``?wait=`` seconds at most.

    Args:
        until_ended: wait for the end; else for any state other than ``?seen=``, or the end.
    """
    seen = request.query.get("seen")

    change: Change | None = None
    known: Job | None = None

    async def read() -> Job:
        nonlocal known
        if change is None:
            return await requested_job(request, context)
        job = change.row or context.core.wakeups.recent_job(job_id(request))
        if not isinstance(job, Job) or (job is change.row and not job.ended):
            return await requested_job(request, context)
        if not visible(request[PRINCIPAL]).has(job):
            raise NoSuchJob(job.id)
        known = job  # as its last move left it
        return job

    def settled(job: Job) -> bool:
        return job.ended or (not until_ended and seen is not None and job.state != seen)

    @contextmanager
    def changes() -> Iterator[asyncio.Event]:
        nonlocal change
        with context.core.wakeups.of(job_id(request), end_only=until_ended) as change:
            yield change

    job = await wait_until(request, context, read, settled, changes)
    if job is known and not job.ended:
        return await requested_job(request, context)  # with what it has said since its last move
    return job


async def wait_until(
    request: web.Request,
    context: Context,
    read: Callable[[], Awaitable[T]],
    done: Callable[[T], bool],
    changes: Callable[[], AbstractContextManager[asyncio.Event]],
) -> T:
    """What is read once it is ``done``, or when ``?wait=`` seconds are over.

    Args:
        changes: an event that is set when something else may be read.

    Raises:
        NotAllowed, NoSuchJob, BadField, Refusal
    """
    wait_s = seconds_param(request, "wait")
    if not wait_s:
        return await read()
    deadline = context.core.clock.monotonic() + wait_s
    with changes() as changed:  # before it is read: no change is missed
        value = await read()
        if done(value):
            return value
        with request.app[GATE].long_poll(request):
            while True:
                left = deadline - context.core.clock.monotonic()
                if left <= 0 or context.core.wakeups.closing:
                    return value
                await wait_for(changed, left, context.core.clock)
                changed.clear()
                if not context.access.still_accepted(request):
                    name = request[PRINCIPAL].name
                    raise NotAllowed(f"the token of {name} is not good any more")
                value = await read()
                if done(value):
                    return value
