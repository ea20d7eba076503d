"""What is said behind the message of a failure: who set the limit, what is wrong with run.sh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from server.domain import timeouts
from server.domain.jobs import Job
from server.domain.service import Service
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import Limits, Reason

_NOT_RUN: Final = frozenset({2, 126, 127})
"""Exit codes of a shell that cannot read a script, or does not find what it names."""
_LIMITS: Final[Mapping[Reason, Callable[[Limits], tuple[float, str]]]] = {
    Reason.MEMORY_LIMIT: lambda limits: (limits.memory, say_size(limits.memory)),
    Reason.DISK_LIMIT: lambda limits: (limits.disk, say_size(limits.disk)),
    Reason.PIDS_LIMIT: lambda limits: (limits.pids, str(limits.pids)),
    Reason.CPU_LIMIT: lambda limits: (
        limits.cpus,
        f"{limits.cpus:g} {'CPU' if limits.cpus == 1 else 'CPUs'}",
    ),
    Reason.LOG_LIMIT: lambda limits: (limits.log, say_size(limits.log)),
    Reason.RESULTS_LIMIT: lambda limits: (limits.results, say_size(limits.results)),
}


def who_set_the_limit(job: Job, service: Service, reason: Reason) -> str:
    """Behind the message of a limit that was hit; empty: it was none."""
    match reason:
        case Reason.TIMEOUT:
            own, most = job.timeout_s, service.timeout_s
            shown = say_duration(most) if most else "any"
        case Reason.HEARTBEAT_TIMEOUT:
            own, most = timeouts.heartbeat_timeout_s(job, service), service.heartbeat_timeout_s
            shown = say_duration(most) if most else "any"
        case _ if reason in _LIMITS:
            own, _ = _LIMITS[reason](job.limits)
            most, shown = _LIMITS[reason](service.limits)
        case _:
            return ""
    # A job keeps the limits that it was uploaded with, whatever the service allows by now.
    if own == most:
        return f" (service {service.name} sets this limit)"
    return f" (set at its upload; service {service.name} allows {shown})"


def line_endings(job: Job, exit_code: int | None, stderr_tail: str) -> str:
    """Behind the message of a failure that Windows line endings explain; else empty."""
    known = any("(CRLF)" in warning for warning in job.upload_warnings)
    if not known or not (exit_code in _NOT_RUN or "\r" in stderr_tail):
        return ""
    return "; run.sh has Windows line endings (CRLF), which a shell takes as part of its commands"
