"""What the commits of a process say without a read, and what they do not say."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from server.domain.choose import Candidate
from server.domain.jobs import Bundle, Hold, Job
from server.stages.hints import Hints
from shared.ids import AttemptKey
from shared.sql import Database
from shared.wire import JobState, Limits

QUEUED = Job(
    id=1,
    state=JobState.QUEUED,
    user_id="ann",
    service="s",
    created_at=0,
    queued_at=0,
    bundle=Bundle("b", 1, "d"),
    limits=Limits(),
    timeout_s=60.0,
)
CLAIMED = replace(QUEUED, state=JobState.PROCESSING, attempt=1, agent="a")
ENDED = replace(CLAIMED, state=JobState.COMPLETED, ended_at=1)


class Store:
    """Services with queued jobs; ``meanwhile`` is committed while they are read."""

    def __init__(self, hints: Hints, *services: str, meanwhile: Job | None = None) -> None:
        self.hints, self.services, self.meanwhile = hints, services, meanwhile

    async def read(self, _: object) -> list[str]:
        if self.meanwhile is not None:
            self.hints.changed(self.meanwhile)
        return list(self.services)


async def look(hints: Hints, *services: str, meanwhile: Job | None = None) -> None:
    await hints.look(cast(Database, Store(hints, *services, meanwhile=meanwhile)))


def test_a_service_has_jobs_to_claim_until_the_last_of_them_is_claimed() -> None:
    hints = Hints()
    hints.changed(QUEUED)
    hints.changed(replace(QUEUED, id=2))
    hints.changed(CLAIMED)
    assert hints.queued() == {"s"}
    hints.changed(replace(CLAIMED, id=2))
    assert hints.queued() == set()


async def test_a_job_that_may_be_claimed_later_keeps_its_service_until_a_look() -> None:
    for later in ({"hold": Hold.DEPENDENCY}, {"not_before": 5}):
        hints = Hints()
        hints.changed(replace(QUEUED, **later))
        assert hints.queued() == {"s"}
        await look(hints)
        assert hints.queued() == set()


def test_a_parent_whose_children_are_made_has_jobs_to_claim() -> None:
    hints = Hints()
    hints.changed(replace(CLAIMED, state=JobState.RUNNING, deferred=True))
    assert hints.queued() == {"s"}
    assert hints.held(1) is None, "its own attempt is over"


async def test_what_another_server_claimed_is_forgotten_at_a_look() -> None:
    hints = Hints()
    hints.changed(QUEUED)
    await look(hints)
    assert hints.queued() == set()


async def test_a_job_that_comes_during_a_look_is_not_forgotten() -> None:
    hints = Hints()
    await look(hints, meanwhile=QUEUED)
    assert hints.queued() == {"s"}


async def test_what_is_queued_from_before_is_found_at_a_look() -> None:
    hints = Hints()
    await look(hints, "s", "t")
    assert hints.queued() == {"s", "t"}


def test_a_job_is_known_as_it_was_left_while_it_holds_a_slot() -> None:
    hints = Hints()
    hints.changed(QUEUED)
    assert hints.held(1) is None
    hints.changed(CLAIMED)
    assert hints.held(1) == CLAIMED
    hints.changed(ENDED)
    assert hints.held(1) is None


def test_an_agent_has_room_when_its_attempts_have_ended() -> None:
    hints = Hints()
    agents = [Candidate("a", 1)]
    assert hints.has_room(agents, ())
    hints.changed(CLAIMED)
    assert not hints.has_room(agents, ())
    assert hints.has_room(agents, {CLAIMED.key})
    assert not hints.has_room(agents, {AttemptKey(1, 2), AttemptKey(2, 1)}), "of others"
    assert hints.has_room([*agents, Candidate("b", 1)], ())
    hints.changed(replace(CLAIMED, state=JobState.RUNNING))
    hints.changed(replace(CLAIMED, id=2, agent="b"))
    assert not hints.has_room([*agents, Candidate("b", 1)], ())
    hints.changed(ENDED)
    assert hints.has_room(agents, ())


def test_a_job_that_came_due_is_told_of_once() -> None:
    hints = Hints()
    hints.changed(replace(QUEUED, not_before=5))
    hints.changed(replace(QUEUED, id=2, not_before=5))
    hints.changed(replace(CLAIMED, id=2))
    assert hints.next_due() == 5
    assert [hints.take_due(at) for at in (4, 5, 6)] == [False, True, False]
    assert hints.next_due() is None
    hints.changed(replace(QUEUED, not_before=7))
    hints.changed(CLAIMED)
    assert not hints.take_due(7)
