"""Who is woken by which change of a job."""

from __future__ import annotations

from server.domain.jobs import Bundle, Job
from server.loops.wakeups import JobWakeups
from shared.wire import JobState, Limits


def job(number: int, state: JobState) -> Job:
    ended_at = 1 if state is JobState.COMPLETED else None
    return Job(
        id=number,
        state=state,
        user_id="ann",
        service="s",
        created_at=0,
        queued_at=0,
        bundle=Bundle("b", 1, "d"),
        limits=Limits(),
        timeout_s=60.0,
        attempt=1,
        ended_at=ended_at,
    )


def test_who_waits_for_the_end_sleeps_through_the_way() -> None:
    wakeups = JobWakeups()
    with wakeups.of(1) as each, wakeups.of(1, end_only=True) as end, wakeups.of(2) as other:
        wakeups.changed(job(1, JobState.RUNNING))
        assert (each.is_set(), end.is_set(), other.is_set()) == (True, False, False)
        wakeups.changed(job(1, JobState.COMPLETED))
        assert (end.is_set(), other.is_set()) == (True, False)


def test_everybody_is_woken_when_the_server_stops() -> None:
    wakeups = JobWakeups()
    with wakeups.of(1, end_only=True) as end:
        wakeups.close()
        assert end.is_set()
    with wakeups.of(1, end_only=True) as late:
        assert late.is_set()


def test_nothing_is_kept_of_those_who_left() -> None:
    wakeups = JobWakeups()
    with wakeups.of(1), wakeups.of(1, end_only=True):
        pass
    wakeups.changed(job(1, JobState.COMPLETED))
    assert wakeups._waiting == {}


def test_the_sender_is_woken_when_there_may_be_something_to_send() -> None:
    wakeups = JobWakeups()
    wakeups.changed(job(1, JobState.COMPLETED))
    wakeups.send()
    assert not wakeups.sender.is_set(), "nothing is queued"
    wakeups.changed(job(2, JobState.QUEUED))
    assert wakeups.sender.is_set()
    wakeups.sender.clear()
    wakeups.changed(job(1, JobState.COMPLETED))
    assert wakeups.sender.is_set(), "a slot is free"
