"""What routes and queries give, checked."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.api.context import Context
from server.domain.errors import BadField, NoSuchJob
from server.domain.jobs import Job
from shared.clock import wait_for

MAX_WAIT_S: Final = 120.0
_MAX_ID: Final = 2**63 - 1


def job_id(request: web.Request) -> int:
    """The job that the path names.

    Raises:
        NoSuchJob: no number, or none that a job can have.
    """
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and int(text) <= _MAX_ID):
        raise NoSuchJob(0) if not text.isdigit() else NoSuchJob(int(text))
    return int(text)


def seconds(request: web.Request, name: str) -> float:
    """A query parameter in seconds, at most MAX_WAIT_S; 0 if missing."""
    text = request.query.get(name, "0")
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not value >= 0:  # also refuses nan
        raise BadField(name, f"invalid_{name}", f"{name} should be seconds, not {text[:32]!r}")
    return min(value, MAX_WAIT_S)


def whole(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter that is a whole number."""
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise BadField(
            name, f"invalid_{name}", f"{name} should be {least} to {most}, not {text[:32]!r}"
        )
    return int(text)


async def wait_for_job(request: web.Request, context: Context, *, until_ended: bool) -> Job:
    """The job that the path names, after ``?wait=`` seconds at most.

    Args:
        until_ended: wait for the end; else for any state other than ``?seen=``, or the end.
    """
    wanted = job_id(request)
    wait_s = seconds(request, "wait")
    seen = request.query.get("seen")
    if not wait_s:
        return await context.jobs.get(wanted)
    deadline = context.clock.monotonic() + wait_s
    with context.watch.of(wanted, end_only=until_ended) as changed:
        while True:
            changed.clear()
            job = await context.jobs.get(wanted)
            left = deadline - context.clock.monotonic()
            moved_on = not until_ended and seen is not None and job.state != seen
            if job.ended or moved_on or left <= 0 or context.watch.closing:
                return job
            await wait_for(changed, left, context.clock)
