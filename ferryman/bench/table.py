"""The figures of a run as rows of words, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ferryman.bench.document import BenchDoc, Counts, Times
from ferryman.bench.quantities import say_bytes, say_rate, say_time
from ferryman.units import say_count

END: Final = {
    "complete": "all jobs ended",
    "interrupted": "interrupted",
    "server_away": "the server could not be reached any more",
    "patience": "jobs were left when the time to wait for them was over (--patience)",
}
LATENCIES: Final = {
    "upload": "upload, from when it was due",
    "queued": "accepted until an agent had it",
    "to_start": "accepted until run.sh ran",
    "overhead": "run, beyond its run time",
    "end_to_end": "due until the result was there",
    "late": "sent late (this machine)",
}
"""Of :class:`~ferryman.bench.document.Latencies`."""
TIME_HEADS: Final = ("WHAT", "COUNT", "MEAN", "P50", "P90", "P99", "MAX")


def count_rows(found: BenchDoc) -> list[tuple[str, str]]:
    """What became of the uploads and jobs."""
    counts, rates = found.counts, found.rates
    rows = [
        ("uploads", f"{counts.uploads}, {say_rate(rates.offered)}"),
        ("accepted", f"{counts.accepted}, {say_rate(rates.accepted)}"),
        ("refused", _kinds(counts.refused)),
        ("errors", _kinds(counts.errors)),
        ("completed", f"{counts.completed}, {say_rate(rates.completed)}"),
        ("failed", _kinds(counts.failed)),
        *_few(counts),
        (
            "bytes uploaded",
            f"{say_bytes(counts.uploaded_bytes)}, {say_bytes(rates.uploaded_bytes)}/s",
        ),
    ]
    slots = max((one.slots or 0 for one in found.samples), default=0)
    if slots:
        agents = max(one.agents_up or 0 for one in found.samples)
        rows.append(("agents", f"{say_count(agents, 'agent')}, {say_count(slots, 'slot')}"))
    queued = max((one.queued or 0 for one in found.samples), default=0)
    rows.append(("most that waited", f"{queued}"))
    cpu = [one.cpu for one in found.samples if one.cpu is not None]
    if cpu:
        mean = sum(cpu) / len(cpu)
        rows.append(("server's CPU", f"{mean:.2f} cores on average, at most {max(cpu):.2f}"))
    memory = [one.memory_bytes for one in found.samples if one.memory_bytes is not None]
    if memory:
        most = say_bytes(max(memory))
        rows.append(("server's memory", f"{say_bytes(memory[0])}, at most {most}"))
    lag = [one.lag_s for one in found.samples if one.lag_s is not None]
    if lag:
        rows.append(("server's event loop", f"at most {say_time(max(lag))} late"))
    return rows


def _few(counts: Counts) -> Iterator[tuple[str, str]]:
    for name in ("cancelled", "unended", "retried"):
        if getattr(counts, name):
            yield name, str(getattr(counts, name))


def _kinds(found: dict[str, int]) -> str:
    if not found:
        return "0"
    each = ", ".join(f"{count} {code}" for code, count in sorted(found.items()))
    return f"{sum(found.values())}: {each}"


def time_rows(found: BenchDoc) -> list[tuple[str, ...]]:
    """How long things took."""
    return [(words, *_times(getattr(found.latencies, name))) for name, words in LATENCIES.items()]


def _times(found: Times) -> tuple[str, ...]:
    values = (found.mean_s, found.p50_s, found.p90_s, found.p99_s, found.max_s)
    return (str(found.count), *("" if one is None else say_time(one) for one in values))


def verdict_lines(found: BenchDoc) -> list[str]:
    """What was at its limit, in sentences."""
    if not found.counts.accepted:
        first = "no job was accepted"
        return [first, *(f"{one.text}: {one.advice}" for one in found.verdicts)]
    if not found.verdicts:
        return ["nothing was at its limit: the server kept up with this load; send more"]
    lines = []
    for number, one in enumerate(found.verdicts):
        when = f"from {say_time(one.at_s)} on" if one.at_s >= 1 else "from the start"
        order = "first" if number == 0 else "then"
        lines.append(f"{order}, {when}: {one.text}. To do: {one.advice}.")
    return lines


_COMPARED: Final = (
    *((name, at) for name in ("upload", "to_start", "end_to_end") for at in ("p50_s", "p99_s")),
    ("overhead", "p50_s"),
)
COMPARE_HEADS: Final = ("WHAT", "BEFORE", "NOW", "RATIO")


def compare_rows(before: BenchDoc, now: BenchDoc) -> list[tuple[str, ...]]:
    """Two runs beside each other; a ratio above 1 means more now."""
    rows = [
        _compared("accepted a second", before.rates.accepted, now.rates.accepted, say_rate),
        _compared("completed a second", before.rates.completed, now.rates.completed, say_rate),
    ]
    for name, at in _COMPARED:
        old, new = (getattr(getattr(one.latencies, name), at) for one in (before, now))
        rows.append(_compared(f"{LATENCIES[name]}, {at.removesuffix('_s')}", old, new, say_time))
    return rows


def _compared(what: str, old: float | None, new: float | None, say: object) -> tuple[str, ...]:
    assert callable(say)
    ratio = f"{new / old:.2f}" if old and new is not None else ""
    return (
        what,
        "" if old is None else say(old),
        "" if new is None else say(new),
        ratio,
    )
