"""Which jobs go next and where: users take turns, the agent with the smallest share of its slots in
use gets the next one; and when a job may be expected to start.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from server.domain.service import Service
from shared.clock import SECOND, Micros


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job that may be sent now."""

    job_id: int
    user_id: str
    attempt: int = 0
    """Attempts made so far."""
    array_index: int | None = None


def pick(
    queue: Sequence[Waiting], held: Mapping[str, int], service: Service, free: int
) -> list[Waiting]:
    """Choose the jobs of one service to send now.

    Args:
        queue: waiting jobs; users in the order in which they are due, each user's jobs oldest
            first.
        held: user -> slots in use (HOLDS_SLOT); missing means 0.
        free: slots of the service that may be used.

    Returns:
        In sending order: everybody's first, then everybody's second. Never exceeds either quota.
    """
    lines: dict[str, deque[Waiting]] = defaultdict(deque)
    for waiting in queue:
        may_run = service.runs_of(waiting.user_id) - held.get(waiting.user_id, 0)
        if len(lines[waiting.user_id]) < may_run:
            lines[waiting.user_id].append(waiting)
    chosen: list[Waiting] = []
    turn = deque(line for line in lines.values() if line)
    while turn and len(chosen) < free:
        line = turn.popleft()
        chosen.append(line.popleft())
        if line:
            turn.append(line)
    return chosen


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that takes jobs of a service now."""

    name: str
    slots: int | None
    """How many jobs it runs at once; None: it does not say."""
    prefetch: int = 0
    """How many it takes beyond its slots."""
    most: int | None = None
    """How many it may get now; None: as many as it takes."""
    max_runs: int | None = None
    """How many of the service it may have at once; None: any number."""
    packs: bool = False
    """It starts one sandbox for several jobs of an array, which take a part of a slot each."""

    def takes(self, held: float) -> bool:
        """Whether it takes one more than so many."""
        return self.slots is None or held < self.slots + self.prefetch

    def may_get(self, runs: int) -> float:
        """How many it may get now of a service of which it has so many, whatever its slots."""
        return min(self.most or math.inf, (self.max_runs or math.inf) - runs)


def room(
    candidates: Iterable[Candidate],
    held: Mapping[str, float],
    pack: int,
    runs: Mapping[str, int],
    most: int,
) -> int:
    """At most how many jobs of a service the agents take; no further than ``most`` is counted.
    ``pack``: how many tasks of an array share a slot of an agent that packs.
    """
    found = 0.0
    for one in candidates:
        if found >= most:
            break
        left = math.inf
        if one.slots is not None:
            slots = one.slots + one.prefetch - held.get(one.name, 0)
            left = math.ceil(slots * pack if one.packs else slots)
        found += max(0, min(left, one.may_get(runs.get(one.name, 0))))
    return int(min(found, most))


def place(
    candidates: Sequence[Candidate],
    held: Mapping[str, float],
    packs: Sequence[int],
    runs: Mapping[str, int] = MappingProxyType({}),
) -> list[Candidate]:
    """Choose an agent for each of some jobs of a service.

    Args:
        held: agent's name -> slots of it that jobs need; missing means 0.
        packs: of each job, how many like it share a slot of an agent that packs.
        runs: agent's name -> jobs of the service that it has; missing means 0.

    Returns:
        The agents, one after the other; fewer than jobs where not enough slots are free. An agent
        that is to prefetch jobs gets them when no agent has a free slot.
    """
    line: list[tuple[float, float, str, float, Candidate]] = []

    def add_to_line(one: Candidate, load: float, left: float) -> None:
        """By the used share of its slots, then by its jobs, if it takes one more. Of slots that are
        not known one is always free.
        """
        if one.takes(load) and left > 0:
            share = load / max(1, one.slots or load + 1)
            heapq.heappush(line, (share, load, one.name, left, one))

    for one in candidates:
        add_to_line(one, held.get(one.name, 0), one.may_get(runs.get(one.name, 0)))
    chosen: list[Candidate] = []
    for pack in packs:
        if not line:
            break
        _, load, _, left, one = heapq.heappop(line)
        add_to_line(one, add(load, pack if one.packs else 1), left - 1)
        chosen.append(one)
    return chosen


def add(slots: float, pack: int, jobs: int = 1) -> float:
    """The slots, and those of more jobs of which so many share one. Parts add up to whole slots."""
    return round(slots + jobs / pack, 6)


LEAST_RUNS: Final = 5
"""With fewer runs that have ended, nothing is said."""
MOST_S: Final = 7 * 86_400.0
"""What is further away is not said."""
_STEPS_S: Final = ((600.0, 60), (3_600.0, 300), (MOST_S, 3_600))
"""Up to which wait the time is said how exactly."""


@dataclass(frozen=True, slots=True)
class Recent:
    """What is known of a service.

    Attributes:
        run_time_s: how long a run took on average; None: too few have ended.
        waiting: user -> jobs that may be sent; None: too many users have some.
    """

    run_time_s: float | None = None
    waiting: Mapping[str, int] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """One of the limits that a job waits for.

    Attributes:
        slots: how many jobs may be under way at once.
        used: how many are.
        before: how many others get a slot before the job does.
    """

    slots: int
    used: int
    before: float


def wait_s(run_time_s: float, limits: Iterable[Limit]) -> float | None:
    """Seconds until the job has a slot of every limit.

    Of ``n`` slots in use one is free after ``run_time_s / n`` on average, whenever the runs in them
    began, if run times are spread exponentially, as those of different jobs about are (W. Feller,
    An Introduction to Probability Theory II, I.6). The limits are waited for together. None: it
    cannot be known, or it is longer than :data:`MOST_S`.
    """
    longest = 0.0
    for one in limits:
        if one.slots <= 0:
            return None
        to_end = one.before + 1 - (one.slots - one.used)
        longest = max(longest, to_end * run_time_s / one.slots)
    return longest if longest <= MOST_S else None


def before_in_service(position: int, others: Iterable[int]) -> float:
    """How many jobs of all users are sent before a job, where users take turns, see
    :func:`server.domain.choose.pick`.

    Args:
        position: of the job among those of its user, from 1 on.
        others: how many jobs wait of each other user. In the round of the job itself, half of them
            are before its user.
    """
    return position - 1 + sum(min(float(jobs), position - 0.5) for jobs in others)


def rounded_at(now: Micros, wait: float) -> Micros:
    """The time in so many seconds, later rather than earlier, and no more exact than an estimate
    can be: to a minute, to five, or to an hour.
    """
    step = next((step for most, step in _STEPS_S if wait < most), _STEPS_S[-1][1]) * SECOND
    return -(-(now + round(wait * SECOND)) // step) * step
