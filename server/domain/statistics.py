"""What happened when: counts, samples and histograms of a time, which can be added.

All of it is whole numbers in trees, so that a minute, ten minutes and an hour are counted in the
same way: each event is added to the bucket of its own time in every resolution.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from server.domain.states import ENDED, HOLDS_SLOT
from shared.clock import SECOND, Micros
from shared.wire import JobState

Tree: TypeAlias = dict[str, Any]
"""Names -> whole numbers, or further trees."""

ALL: Final = ""
"""All services together."""
OTHERS: Final = "*"
"""Services beyond the most that a bucket has."""
_PER_DECADE: Final = 5
_SHORTEST_S: Final = 0.01
_BOUNDS: Final = 44
"""From 10 ms to more than 30 days."""
BOUNDS_S: Final[tuple[float, ...]] = tuple(
    round(_SHORTEST_S * 10 ** (n / _PER_DECADE), 4) for n in range(_BOUNDS)
)
"""Upper bounds of the buckets of a histogram; one more bucket has what is longer."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How long a bucket is, and for how long buckets of this kind are kept."""

    seconds: int
    kept_s: int

    def start(self, at: Micros) -> Micros:
        """Of the bucket that a time is in."""
        return at - at % (self.seconds * SECOND)


MINUTE: Final = Resolution(60, 2 * 3_600)
EVER_S: Final = 0
"""In place of a resolution: what was counted since there are statistics, kept for ever."""
RESOLUTIONS: Final = (MINUTE, Resolution(600, 2 * 86_400), Resolution(3_600, 8 * 86_400))


@dataclass(frozen=True, slots=True)
class Period:
    """What a chart shows: so many seconds, in buckets of a resolution."""

    seconds: int
    resolution: Resolution


PERIODS: Final[Mapping[str, Period]] = {
    "hour": Period(3_600, RESOLUTIONS[0]),
    "day": Period(86_400, RESOLUTIONS[1]),
    "week": Period(7 * 86_400, RESOLUTIONS[2]),
}


@dataclass(frozen=True, slots=True)
class Observed:
    """A move of a job, and what is counted of it."""

    service: str
    at: Micros
    before: JobState | None
    """None: it was made."""
    state: JobState
    reason: str | None
    uploaded_bytes: int = 0
    """Of a new job: those of its bundle, if it was uploaded for it alone."""
    waits_since: Micros | None = None
    """Of a start: from when the attempt could have been sent."""
    uploaded_at: Micros | None = None
    """Of the first start of a job: when it was uploaded."""
    started_at: Micros | None = None
    """When the attempt started, if that was earlier."""
    result_bytes: int = 0
    """Of an attempt that has ended."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Of a bucket."""

    resolution_s: int
    at: Micros
    service: str


def counts_of(one: Observed) -> Tree:
    """What a move adds to the counts of its time."""
    if one.before is None:
        return {"uploaded": 1, "uploaded_bytes": one.uploaded_bytes}
    if one.state is JobState.RUNNING and one.before is not JobState.RUNNING:
        if one.started_at is not None:  # its agent could not be reached for some time
            return {}
        waited = None if one.waits_since is None else one.at - one.waits_since
        since_upload = None if one.uploaded_at is None else one.at - one.uploaded_at
        return {"started": 1} | _time("waiting", waited) | _time("upload_to_start", since_upload)
    counts: Tree = {}
    if one.before in HOLDS_SLOT:
        ran = None if one.started_at is None else one.at - one.started_at
        counts |= _time("run", ran)
        counts["result_bytes"] = one.result_bytes
    why = one.reason or "unknown"
    if one.state is JobState.FAILED:
        counts["failed"] = {why: 1}
    elif one.state in ENDED:
        counts[one.state.lower()] = 1
    elif one.state is JobState.QUEUED:
        counts["retried"] = {why: 1}
    return counts


def _time(name: str, took: Micros | None) -> Tree:
    """One time as a histogram. A clock that was set back makes none negative."""
    if took is None:
        return {}
    took = max(0, took)
    bucket = bisect.bisect_left(BOUNDS_S, took / SECOND)
    return {name: {"count": 1, "sum_us": took, "buckets": {str(bucket): 1}}}


def add(into: Tree, more: Mapping[str, Any]) -> None:
    """Add each number to that of the same name."""
    for name, value in more.items():
        if isinstance(value, dict):
            add(into.setdefault(name, {}), value)
        else:
            into[name] = into.get(name, 0) + value


def tally(observed: Iterable[Observed]) -> dict[Key, Tree]:
    """What the moves add to which buckets."""
    found: dict[Key, Tree] = {}
    for one in observed:
        counts = counts_of(one)
        for service in (ALL, one.service) if counts else ():
            add(found.setdefault(Key(EVER_S, 0, service), {}), counts)
            for resolution in RESOLUTIONS:
                key = Key(resolution.seconds, resolution.start(one.at), service)
                add(found.setdefault(key, {}), counts)
    return found


def sampled(at: Micros, gauges: Mapping[str, Mapping[str, int]]) -> dict[Key, Tree]:
    """What a look at how things are now adds to which buckets.

    Args:
        gauges: service -> name -> number; ``ALL`` has what is about the server, too.
    """
    found = {}
    for resolution in RESOLUTIONS:
        for service, values in gauges.items():
            more = {"samples": 1} if service == ALL else {}
            found[Key(resolution.seconds, resolution.start(at), service)] = {
                **more,
                "gauges": dict(values),
            }
    return found


def quantile(histogram: Mapping[str, Any], part: float) -> float | None:
    """Seconds within which that part of the times is; None: there are none.

    Exact to the bucket; inside of it, times are taken to be spread evenly on the logarithmic scale.
    """
    count: int = histogram.get("count", 0)
    if not count:
        return None
    buckets: dict[int, int] = {int(number): times for number, times in histogram["buckets"].items()}
    wanted, seen = part * count, 0
    for number in sorted(buckets):
        here = buckets[number]
        if seen + here >= wanted:
            if number >= len(BOUNDS_S):
                return BOUNDS_S[-1]
            inside = (wanted - seen) / here
            if number == 0:
                return BOUNDS_S[0] * inside
            low, high = BOUNDS_S[number - 1], BOUNDS_S[number]
            return low * math.exp(math.log(high / low) * inside)
        seen += here
    return BOUNDS_S[min(max(buckets), len(BOUNDS_S) - 1)]
