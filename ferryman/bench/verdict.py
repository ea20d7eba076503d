"""What was at its limit, and what to raise, from the figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from ferryman.bench.document import JobRow, Latencies, Sample, Verdict
from ferryman.bench.load import NOT_SENT
from ferryman.bench.quantities import say_rate, say_time

SUSTAINED: Final = 3
"""Samples in which something has to be at its limit; fewer may be chance."""
FULL: Final = 0.95
BUSY_CORES: Final = 0.85
"""Of one core: the server's Python code runs on one."""
LATE_S: Final = 0.1
SLOW_UPLOAD_S: Final = 1.0

Raises: TypeAlias = tuple[str, str]
"""What happened, and what to do."""

REFUSALS: Final[dict[str, Raises]] = {
    "rate_limited": (
        "the server refused requests above its rate limit",
        "raise rate_limit of [server], or of the user or group",
    ),
    "queue_full": (
        "as many jobs of a user waited as the service allows",
        "raise queued_per_user of the service, or send less",
    ),
    "too_many_uploads": (
        "as many uploads were under way as the server takes",
        "raise uploads and uploads_per_user of [server]; more of them need more memory",
    ),
    "upload_quota": (
        "users had uploaded what they may in a day",
        "raise upload_per_user_per_day of [server]",
    ),
    "storage_full": (
        "bundles and results of users took what they may",
        "raise stored_per_user of [server], or lower expires_after of the service",
    ),
    "disk_full": (
        "the server's disk was full",
        "give data_dir a larger disk, or lower expires_after of the services",
    ),
}
_REASONS: Final[dict[str, Raises]] = {
    "user_quota": (
        "users had as many jobs under way as the service allows",
        "raise runs_per_user of the service; with few users it bounds the whole",
    ),
    "service_quota": (
        "the service had as many jobs under way as it may",
        "raise max_runs of the service, at least to the slots of its agents",
    ),
    "no_agent": (
        "jobs waited for an agent that offers the service and can be reached",
        "look at the agents: ferryman agents",
    ),
    "paused": ("the service was paused", "resume it: ferryman services resume NAME"),
}
"""Codes of waiting jobs -> what they mean."""


def verdicts(
    uploads: Sequence[JobRow], samples: Sequence[Sample], found: Latencies
) -> list[Verdict]:
    """What was at its limit; what was first stands first. Empty: nothing was."""
    named = [
        *_refusals(uploads),
        *_waits(uploads, samples),
        *_server(samples, found),
        *_generator(uploads, found),
    ]
    return sorted(named, key=lambda one: one.at_s)


def _refusals(uploads: Sequence[JobRow]) -> Iterator[Verdict]:
    first: dict[str, float] = {}
    count: dict[str, int] = {}
    for one in uploads:
        if one.job_id is None and one.why:
            first.setdefault(one.why, one.intended_s)
            count[one.why] = count.get(one.why, 0) + 1
    for code, at in first.items():
        share = f"{count[code]} of {len(uploads)} uploads"
        if code in REFUSALS:
            text, advice = REFUSALS[code]
            yield Verdict(code=code, at_s=at, text=f"{text} ({share})", advice=advice)
        elif code == "unreachable":
            text = f"the server could not be reached ({share})"
            yield Verdict(code=code, at_s=at, text=text, advice="look at its log, and at the proxy")
        elif code != NOT_SENT:
            text = f"{share} ended with {code}"
            yield Verdict(code=code, at_s=at, text=text, advice="see the codes in docs/api.md")


def _waits(uploads: Sequence[JobRow], samples: Sequence[Sample]) -> Iterator[Verdict]:
    def slots_full(one: Sample) -> bool:
        held = max(one.running or 0, one.in_work or 0)
        return bool(one.queued and one.slots) and held >= FULL * (one.slots or 0)

    at = _since(samples, slots_full)
    if at is not None:
        slots = max(one.slots or 0 for one in samples)
        yield Verdict(
            code="slots",
            at_s=at,
            text=f"all {slots} slots of the agents were taken while jobs waited"
            + _most(uploads, slots),
            advice="raise slots of [agent] while its host has CPU and memory left, and restart the "
            "agent; else add agents",
        )
    for code, (text, advice) in _REASONS.items():
        at = _since(samples, _waits_for(code))
        if at is not None:
            yield Verdict(code=code, at_s=at, text=text, advice=advice)


def _waits_for(code: str) -> Callable[[Sample], bool]:
    return lambda one: one.waits_for == code


def _most(uploads: Sequence[JobRow], slots: int) -> str:
    """How many jobs a second so many slots can do."""
    held = [
        one.ended_s - (one.submitted_s or one.started_s)
        for one in uploads
        if one.ended_s is not None and one.started_s is not None
    ]
    if not held or sum(held) <= 0:
        return ""
    mean = sum(held) / len(held)
    return f"; each was held for {say_time(mean)}, so they do at most {say_rate(slots / mean)}"


def _server(samples: Sequence[Sample], found: Latencies) -> Iterator[Verdict]:
    at = _since(samples, lambda one: one.cpu is not None and one.cpu >= BUSY_CORES)
    if at is not None:
        most = max(one.cpu or 0 for one in samples)
        yield Verdict(
            code="server_cpu",
            at_s=at,
            text=f"the server's process used up to {most:.2f} cores; its event loop has one",
            advice="give it a faster core of its own: agents on other hosts; "
            "larger bundles in place of many small jobs; arrays",
        )
    else:
        at = _since(samples, lambda one: one.waits_for == "next")
        if at is not None:
            yield Verdict(
                code="dispatch",
                at_s=at,
                text="jobs waited although slots and quotas were free: "
                "the server sends them no faster",
                advice="look at CPU and disk of the server's host; agents on other hosts; arrays",
            )
    slow = found.upload.p90_s
    if slow is not None and slow >= SLOW_UPLOAD_S:
        first = samples[0].at_s if samples else 0.0
        yield Verdict(
            code="uploads",
            at_s=first,
            text=f"a tenth of the uploads took longer than {say_time(slow)}",
            advice="look at the network, and at the disk of data_dir: each upload is synced to it",
        )


def _generator(uploads: Sequence[JobRow], found: Latencies) -> Iterator[Verdict]:
    unsent = [one.intended_s for one in uploads if one.why == NOT_SENT]
    late = found.late.p99_s or 0.0
    if unsent or late >= LATE_S:
        what = f"{len(unsent)} uploads were not sent" if unsent else "uploads were sent late"
        yield Verdict(
            code="generator",
            at_s=min(unsent, default=0.0),
            text=f"this machine could not send as planned: {what} (p99 {say_time(late)} late)",
            advice="run ferryman bench on a machine of its own, or on several",
        )


def _since(samples: Sequence[Sample], true: Callable[[Sample], bool]) -> float | None:
    """When it was true first, if it was in enough samples."""
    found = [one.at_s for one in samples if true(one)]
    return found[0] if len(found) >= min(SUSTAINED, max(1, len(samples))) else None
