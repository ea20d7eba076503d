"""When a queued job probably starts, by what its service did lately."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shared.clock import SECOND, Micros

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
    An Introduction to Probability Theory II, I.6). The limits are waited for together.

    Args:
        run_time_s: of one run, on average.

    Returns:
        None: it cannot be known, or it is longer than :data:`MOST_S`.
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
    :func:`server.domain.fairshare.pick`.

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
