"""What an attempt used of what it may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.domain.jobs import Execution
from shared.units.durations import say_duration
from shared.units.sizes import say_size


@dataclass(frozen=True, slots=True)
class Bar:
    """One limit.

    Attributes:
        used: None: not known.
        enforced: ``hard``, ``soft``, ``none``; empty: not known, or nothing to enforce.
    """

    label: str
    used: float | None
    limit: float
    text: str
    enforced: str = ""


def bars(one: Execution, stdout_bytes: int | None, stderr_bytes: int | None) -> list[Bar]:
    """What is known, against the limits; all of them, for one that has not run, too.

    Args:
        one: an attempt, or the job with the facts of its latest one.
        stdout_bytes, stderr_bytes: what its logs hold; each of them may have the limit.
    """
    logs = [size for size in (stdout_bytes, stderr_bytes) if size is not None]
    usage, limits = one.usage, one.limits
    wall_s = usage.wall_s if usage else None
    cpu_s = usage.cpu_s if usage else None
    memory = usage.peak_memory_bytes if usage else None
    result = one.result.size if one.result else None
    enforced = one.enforcement
    return [
        _bar("Memory", memory, limits.memory, say_size, enforced.get("memory", "")),
        _bar("Time", wall_s, one.timeout_s, say_duration, enforced.get("wall", "")),
        _cpu(cpu_s, wall_s, limits.cpus, enforced.get("cpu", "")),
        _bar(
            "Log",
            max(logs, default=None),
            limits.log,
            say_size,
            enforced.get("log", ""),
        ),
        _bar("Result (ZIP)", result, limits.results, say_size, enforced.get("results", "")),
        _bar("Disk", None, limits.disk, say_size, enforced.get("disk", "")),
        _bar("Processes", None, limits.pids, "{:g}".format, enforced.get("pids", "")),
    ]


def _bar(
    label: str,
    used: float | None,
    limit: float,
    say: Callable[[float], str],
    enforced: str,
) -> Bar:
    if not limit:  # of time only
        return Bar(label, None, limit, "no limit" if used is None else f"{say(used)}, no limit")
    text = f"up to {say(limit)}" if used is None else f"{say(used)} of {say(limit)}"
    return Bar(label, used, limit, text, enforced)


def _cpu(cpu_s: float | None, wall_s: float | None, cpus: float, enforced: str) -> Bar:
    """Processor time, of what so many processors give in the time that it ran."""
    most = f"{cpus:g} {'CPU' if cpus == 1 else 'CPUs'}"
    if cpu_s is None or not wall_s:
        return Bar("CPU", None, cpus, f"up to {most}", enforced)
    text = f"{say_duration(cpu_s)}: {round(cpu_s / wall_s, 2):g} of {most}"
    return Bar("CPU", cpu_s / wall_s, cpus, text, enforced)
