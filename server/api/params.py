"""What routes and queries give, checked."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.api.context import Context
from server.api.problems import Refusal
from server.domain.errors import BadField
from server.domain.jobs import Job
from shared.clock import wait_for
from shared.http.numbers import whole_number

MAX_WAIT_S: Final = 120.0
_MAX_ID: Final = 2**63 - 1
_LONGEST: Final = 32
"""Characters of a number that can mean something."""


def job_id(request: web.Request) -> int:
    """The job that the path names.

    Raises:
        Refusal: no number, or none that a job can have.
    """
    text = request.match_info["id"]
    found = whole_number(text, most=_MAX_ID)
    if found is None:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise Refusal(404, "job_not_found", f"{shown!r} is not the number of a job")
    return found


def seconds(request: web.Request, name: str) -> float:
    """A query parameter in seconds, at most MAX_WAIT_S; 0 if missing."""
    text = request.query.get(name, "0")
    try:
        value = float(text.removesuffix("s")) if len(text) <= _LONGEST else -1.0
    except ValueError:
        value = -1.0
    if not value >= 0:  # also refuses nan
        raise BadField(name, f"invalid_{name}", f"{name} should be seconds, not {text[:32]!r}")
    return min(value, MAX_WAIT_S)


def whole(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter that is a whole number."""
    text = request.query.get(name, str(default))
    found = whole_number(text, least, most)
    if found is None:
        raise BadField(
            name, f"invalid_{name}", f"{name} should be {least} to {most}, not {text[:32]!r}"
        )
    return found


async def wait_for_job(request: web.Request, context: Context, *, until_ended: bool) -> Job:
    """The job that the path names, after ``?wait=`` seconds at most.

    Args:
        until_ended: wait for the end; else for any state other than ``?seen=``, or the end.
    """
    wanted = job_id(request)
    wait_s = seconds(request, "wait")
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
