"""Figures of a run from what was noted of each upload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ferryman.bench.document import Counts, JobRow, Latencies, Rates, Times
from ferryman.bench.records import Record, offset_s

_ENDED_WELL: Final = frozenset({"Completed", "Cleaned"})


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, between two values by their distance.

    Args:
        values: sorted, at least one.
        share: 0 to 1.
    """
    at = share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    low, high = values[below], values[above]
    return min(high, low + (high - low) * (at - below))


def times(values: Iterable[float]) -> Times:
    found = sorted(max(0.0, one) for one in values)
    if not found:
        return Times(count=0)
    return Times(
        count=len(found),
        mean_s=sum(found) / len(found),
        p50_s=percentile(found, 0.5),
        p90_s=percentile(found, 0.9),
        p99_s=percentile(found, 0.99),
        max_s=found[-1],
    )


def rows(records: Sequence[Record]) -> list[JobRow]:
    """Each upload in the order in which they were due, all times by one clock."""
    offset = offset_s(records)

    def here(at: float | None) -> float | None:
        return None if at is None else at + offset

    return [
        JobRow(
            number=one.order.number,
            intended_s=one.intended_s,
            answered_s=one.answered_s,
            accepted_s=one.answered_s if one.job_id is not None else None,
            submitted_s=here(one.server_submitted),
            started_s=here(one.server_started),
            ended_s=here(one.server_ended),
            run_time_s=one.order.run_time_s,
            size=one.order.size,
            job_id=one.job_id,
            status=one.status,
            why=one.refused or one.error or one.reason,
        )
        for one in sorted(records, key=lambda record: record.intended_s)
    ]


def latencies(records: Sequence[Record]) -> Latencies:
    offset = offset_s(records)
    made = [one for one in records if one.job_id is not None and one.answered_s is not None]
    started = [one for one in made if one.server_started is not None]
    done = [one for one in started if one.server_ended is not None and one.status in _ENDED_WELL]
    return Latencies(
        late=times(one.begun_s - one.intended_s for one in records),
        upload=times(one.answered_s - one.intended_s for one in made if one.answered_s is not None),
        queued=times(
            one.server_submitted - one.server_created
            for one in made
            if one.server_submitted is not None and one.server_created is not None
        ),
        to_start=times(
            one.server_started - one.server_created
            for one in started
            if one.server_started is not None and one.server_created is not None
        ),
        overhead=times(
            one.server_ended - one.server_started - one.order.run_time_s
            for one in done
            if one.server_ended is not None and one.server_started is not None
        ),
        end_to_end=times(
            one.server_ended + offset - one.intended_s
            for one in done
            if one.server_ended is not None
        ),
    )


def counts(records: Sequence[Record]) -> Counts:
    made = [one for one in records if one.job_id is not None]
    return Counts(
        uploads=len(records),
        accepted=len(made),
        refused=Counter(one.refused for one in records if one.refused),
        errors=Counter(one.error for one in records if one.error),
        completed=sum(one.status in _ENDED_WELL for one in made),
        failed=Counter(one.reason or "unknown" for one in made if one.status == "Failed"),
        cancelled=sum(one.status == "Cancelled" for one in made),
        unended=sum(one.server_ended is None and one.status not in _ENDED_WELL for one in made),
        retried=sum(one.attempt > 1 for one in made),
        uploaded_bytes=sum(one.order.size for one in made),
    )


def rates(found: Counts, listed: Sequence[JobRow]) -> Rates:
    if not listed:
        return Rates(offered=0, accepted=0, completed=0, uploaded_bytes=0)
    begin = listed[0].intended_s
    answered = [one.answered_s for one in listed if one.answered_s is not None]
    ended = [one.ended_s for one in listed if one.ended_s is not None]

    def a_second(count: float, end: float) -> float:
        return count / max(1e-3, end - begin)

    last_sent = listed[-1].intended_s
    last_answered = max(answered, default=last_sent)
    return Rates(
        offered=a_second(found.uploads, max(last_sent, begin + 1e-3)) if len(listed) > 1 else 0.0,
        accepted=a_second(found.accepted, last_answered),
        completed=a_second(found.completed, max(ended)) if ended else 0.0,
        uploaded_bytes=a_second(found.uploaded_bytes, last_answered),
    )


def by_time(times_s: Iterable[float], width: float, count: int) -> list[float]:
    """How many a second in each of ``count`` spans of ``width`` seconds."""
    found = [0] * count
    for at in times_s:
        found[min(count - 1, max(0, int(at / width)))] += 1
    return [one / width for one in found]
