"""Who is woken by which change of a job."""

from __future__ import annotations

from server.domain.jobs import Bundle, Job
from server.loops.bells import Bells
from shared.wire import JobState, Limits

S = JobState


def job(number: int, state: JobState) -> Job:
    ended_at = 1 if state is S.COMPLETED else None
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
    bells = Bells()
    with bells.of(1) as each, bells.of(1, end_only=True) as end, bells.of(2) as other:
        bells.changed(job(1, S.RUNNING))
        assert (each.is_set(), end.is_set(), other.is_set()) == (True, False, False)
        bells.changed(job(1, S.COMPLETED))
        assert (end.is_set(), other.is_set()) == (True, False)


def test_everybody_is_woken_when_the_server_stops() -> None:
    bells = Bells()
    with bells.of(1, end_only=True) as end:
        bells.close()
        assert end.is_set()
    with bells.of(1, end_only=True) as late:
        assert late.is_set()


def test_nothing_is_kept_of_those_who_left() -> None:
    bells = Bells()
    with bells.of(1), bells.of(1, end_only=True):
        pass
    bells.changed(job(1, S.COMPLETED))
    assert bells._watchers == {}
