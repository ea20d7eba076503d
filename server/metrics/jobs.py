"""Metrics of jobs: what the store has counted, and how many there are in each state now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from server.domain.service import Service
from server.domain.statistics import ALL, BOUNDS_S, OTHERS, Tree
from server.ports import Held
from server.ports.statistics import UnderWay
from shared.clock import SECOND, Micros
from shared.metrics import OTHER, Labels, gauge, known, total
from shared.wire import JobState

_BOUNDS: Final = tuple(range(0, 38, 2))
"""Of those of the charts every second one: 10 ms, 25 ms, 63 ms … 44 h."""
_ENDS: Final = {"Completed": "completed", "Cancelled": "cancelled"}
_COUNTED: Final = {
    "ferryman_jobs_uploaded": ("uploaded", "Jobs that were accepted."),
    "ferryman_jobs_uploaded_bytes": ("uploaded_bytes", "Bytes of their bundles."),
    "ferryman_attempts_started": ("started", "Attempts whose run.sh has started."),
    "ferryman_result_bytes": ("result_bytes", "Bytes of results that were stored."),
}
_BY_REASON: Final = {
    "ferryman_jobs_failed": ("failed", "Jobs that failed, by the code of why."),
    "ferryman_attempts_retried": (
        "retried",
        "Attempts after which their job was queued again, by the code of why.",
    ),
}
_TIMES: Final = {
    "ferryman_waiting_seconds": (
        "waiting",
        "From when an attempt could have been sent until it started.",
    ),
    "ferryman_upload_to_start_seconds": (
        "upload_to_start",
        "From the upload of a job until its first attempt started.",
    ),
    "ferryman_run_seconds": ("run", "From the start of an attempt until its end."),
}


def counted(totals: Mapping[str, Tree], services: Collection[str]) -> list[Metric]:
    """What was counted since there are statistics. The store has a hundred services by name.

    Args:
        services: for which there are zeros, too: a series that begins with 1 has no increase.
    """
    found = dict.fromkeys(services, Tree()) | {
        OTHER if service == OTHERS else service: numbers
        for service, numbers in totals.items()
        if service != ALL
    }

    def each(name: str) -> dict[Labels, float]:
        return {(service,): numbers.get(name, 0) for service, numbers in found.items()}

    def reasons(name: str) -> dict[Labels, float]:
        return {
            (service, reason): count
            for service, numbers in found.items()
            for reason, count in numbers.get(name, {}).items()
        }

    ended: dict[Labels, float] = {}
    for service, numbers in found.items():
        for state, name in _ENDS.items():
            ended[service, state] = numbers.get(name, 0)
        ended[service, "Failed"] = sum(numbers.get("failed", {}).values())
    one, two = ("service",), ("service", "reason")
    return [
        total("ferryman_jobs_ended", "Jobs that ended.", ("service", "state"), ended),
        *(total(name, text, one, each(field)) for name, (field, text) in _COUNTED.items()),
        *(total(name, text, two, reasons(field)) for name, (field, text) in _BY_REASON.items()),
        *(_histogram(name, text, field, found) for name, (field, text) in _TIMES.items()),
    ]


def _histogram(name: str, text: str, field: str, found: Mapping[str, Tree]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("service",))
    for service, numbers in found.items():
        times: Mapping[str, Any] = numbers.get(field, {})
        here = {int(number): count for number, count in times.get("buckets", {}).items()}
        bounds = [
            (f"{BOUNDS_S[most]:g}", sum(count for number, count in here.items() if number <= most))
            for most in _BOUNDS
        ]
        bounds.append(("+Inf", times.get("count", 0)))
        family.add_metric((service,), bounds, times.get("sum_us", 0) / SECOND)
    return family


@dataclass(frozen=True, slots=True)
class Now:
    """What the store says of the jobs of now."""

    queued: Mapping[str, int]
    under_way: Sequence[UnderWay]
    waiting_since: Mapping[str, Micros]
    held: Sequence[Held]


def of_now(now: Now, at: Micros, services: Mapping[str, Service]) -> list[Metric]:
    """How many jobs there are in each state, and what users have.

    A service that is neither in the settings nor was made by an operator is ``other``.
    """
    states = [JobState.QUEUED, JobState.PROCESSING, JobState.SUBMITTED, JobState.RUNNING]
    states.append(JobState.UNKNOWN)
    jobs = Counter[Labels]({(name, state): 0 for name in services for state in states})
    for name, count in now.queued.items():
        jobs[known(name, services), JobState.QUEUED] += count
    for one in now.under_way:
        jobs[known(one.service, services), one.state] += one.jobs
    oldest: dict[Labels, float] = {(name,): 0.0 for name in services}
    for name, since in now.waiting_since.items():
        label = (known(name, services),)
        oldest[label] = max(oldest.get(label, 0.0), (at - since) / SECOND)
    return [
        gauge("ferryman_jobs", "Jobs that have not ended.", ("service", "state"), jobs),
        gauge(
            "ferryman_oldest_waiting_seconds",
            "For how long the job waits that waits longest.",
            ("service",),
            oldest,
        ),
        *_of_users(now.held, services),
    ]


def _of_users(held: Iterable[Held], services: Mapping[str, Service]) -> list[Metric]:
    """How much of their quotas users have. No user is a label."""
    slots: dict[str, Counter[str]] = defaultdict(Counter)
    for part in held:
        slots[part.service][part.user_id] += part.slots
    users, used = dict[Labels, float](), dict[Labels, float]()
    full, share = dict[Labels, float](), dict[Labels, float]()
    for name, service in services.items():
        mine = slots.get(name, Counter())
        parts = [count / max(1, service.runs_of(user)) for user, count in mine.items()]
        users[name,], used[name,] = len(mine), float(mine.total())
        full[name,], share[name,] = sum(part >= 1 for part in parts), max(parts, default=0.0)
    most: dict[Labels, float] = {(name,): one.max_runs for name, one in services.items()}
    by = ("service",)
    return [
        gauge("ferryman_service_runs", "Slots that jobs of the service hold.", by, used),
        gauge("ferryman_service_runs_limit", "How many they may hold: max_runs.", by, most),
        gauge("ferryman_users_in_work", "Users whose jobs hold slots.", by, users),
        gauge("ferryman_users_at_limit", "Users who hold all that they may.", by, full),
        gauge(
            "ferryman_user_share_max_ratio",
            "Of a user's slots those in use, of the user with the highest share.",
            by,
            share,
        ),
    ]
