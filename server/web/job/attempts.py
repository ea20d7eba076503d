"""The attempts of a job, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.attempts import Attempt
from server.domain.live import shown_value
from server.domain.permits import Shows
from server.http.paths import JOB_PAGE
from server.web.job.frame import frame_page, job_frame
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.clock import SECOND
from shared.units.durations import say_duration
from shared.units.sizes import say_size

_MOST: Final = 50
"""The newest."""
_MAX_VALUES: Final = 300
"""Characters."""


@dataclass(frozen=True, slots=True)
class Row:
    """One property.

    Attributes:
        values: for each attempt; empty: not known.
        differs: they are not all the same.
    """

    label: str
    values: tuple[str, ...]
    differs: bool


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """Each attempt, the newest first."""
    frame = await job_frame(request, site)
    found = await site.context.jobs.attempts(frame.job.id, _MOST)
    newest = found[::-1]
    return frame_page(
        request,
        site,
        frame,
        "attempts",
        attempts=newest,
        rows=rows(newest),
    )


def rows(attempts: Sequence[Attempt]) -> list[Row]:
    """What is compared. Times and sizes always differ a little, which says nothing."""
    found = []
    for label, read, compared in _ROWS:
        values = tuple(read(one) for one in attempts)
        found.append(Row(label, values, compared and len(set(values)) > 1))
    return found


def _took(one: Attempt) -> str:
    if one.usage is not None:
        return say_duration(one.usage.wall_s)
    if one.started_at is None or one.ended_at is None:
        return ""
    return say_duration(max(0, one.ended_at - one.started_at) / SECOND)


def _memory(one: Attempt) -> str:
    peak = one.usage.peak_memory_bytes if one.usage else None
    return "" if peak is None else f"{say_size(peak)} of {say_size(one.limits.memory)}"


def _cpu(one: Attempt) -> str:
    return "" if one.usage is None or one.usage.cpu_s is None else say_duration(one.usage.cpu_s)


def _log(one: Attempt) -> str:
    known = [size for size in (one.stdout_bytes, one.stderr_bytes) if size is not None]
    return " + ".join(map(say_size, known))


def _values(one: Attempt) -> str:
    text = ", ".join(f"{name}: {shown_value(value)}" for name, value in one.output.items())
    return text if len(text) <= _MAX_VALUES else f"{text[:_MAX_VALUES]}…"


def _soft(one: Attempt) -> str:
    return ", ".join(name for name, how in one.enforcement.items() if how != "hard")


_ROWS: Final[tuple[tuple[str, Callable[[Attempt], Any], bool], ...]] = (
    ("Agent", lambda one: one.agent, True),
    ("Reason", lambda one: one.reason or "", True),
    ("Exit code", lambda one: "" if one.exit_code is None else str(one.exit_code), True),
    ("Ran for", _took, False),
    ("Allowed", lambda one: say_duration(one.timeout_s) if one.timeout_s else "no limit", True),
    ("Memory", _memory, False),
    ("CPU time", _cpu, False),
    ("Limits not hard", _soft, True),
    ("Output values", _values, True),
    ("Output and errors", _log, False),
    ("Result", lambda one: "" if one.result is None else say_size(one.result.size), False),
)
ROUTES: Final = (PageRoute("GET", f"{JOB_PAGE}/attempts", Area.JOBS, page, by_link=(Shows.JOB,)),)
