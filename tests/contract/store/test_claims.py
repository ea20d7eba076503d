"""What every store must do when jobs are claimed: the right ones, and never too many."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from server.domain.choose import Candidate
from server.domain.jobs import Job, Move
from server.domain.leases import LENGTH_S, of_agent
from server.domain.service import ByUser, Service
from server.ports import LeaseLost
from server.store.jobs import SqlJobs
from server.store.leases import SqlLeases
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.contract.store.conftest import new
from tests.kit.clock import SimClock

ANY = [Candidate("node", None)]


async def added(jobs: SqlJobs, *users: str, service: str = "s") -> list[int]:
    return [(await jobs.insert(new(user, service), "queued"))[0].id for user in users]


async def claimed(
    jobs: SqlJobs, service: Service, most: int = 99, candidates: Sequence[Candidate] = ANY
) -> list[str]:
    """Whose jobs were claimed, in order."""
    return [job.user_id for job in await jobs.claim_fairly(service, candidates, most, 20)]


async def ended(jobs: SqlJobs, job: Job) -> None:
    move = Move(job.id, job.attempt, job.state, JobState.FAILED, 30, "", changes={"ended_at": 30})
    assert await jobs.move(move) is not None


async def test_everybody_gets_one_before_anybody_gets_two_and_each_gets_the_oldest(
    jobs: SqlJobs,
) -> None:
    first, *_ = await added(jobs, "ann", "ann", "ann", "bob", "cy")
    found = await jobs.claim_fairly(Service("s"), ANY, 4, 20)
    assert [job.user_id for job in found] == ["ann", "bob", "cy", "ann"]
    assert found[0].id == first
    assert {(job.state, job.attempt, job.agent) for job in found} == {
        (JobState.PROCESSING, 1, "node")
    }


async def test_turns_go_on_where_they_ended_also_in_another_run_of_the_server(
    jobs: SqlJobs, database: Database
) -> None:
    await added(jobs, *["ann", "bob", "cy"] * 3)
    order = []
    for _ in range(4):
        order += await claimed(SqlJobs(database, lambda job: None), Service("s"), 2)
    assert order == ["ann", "bob", "cy"] * 2 + ["ann", "bob"]


@pytest.mark.parametrize("most", [1, 2, 3, 7])
async def test_whatever_their_names_all_users_are_served_equally_often(
    jobs: SqlJobs, most: int
) -> None:
    """The order of names is the database's own; only that it is always the same one matters."""
    users = ["ann", "Bob", "_x", "9", "zoe", "ZOE", "a.b", "a-b", "a@b", "Ann"]
    service = Service("s", runs_per_user=9, max_runs=99)
    await added(jobs, *users * 4)
    served = Counter[str]()
    while found := await claimed(jobs, service, most):
        served.update(found)
        assert max(served.values()) - min(served[user] for user in users) <= 1
    assert set(served.values()) == {4}


async def test_nobody_is_looked_at_twice_in_one_round(jobs: SqlJobs) -> None:
    await added(jobs, "bob")
    assert await claimed(jobs, Service("s")) == ["bob"]
    await added(jobs, *["ann"] * 5, "cy")
    assert await claimed(jobs, Service("s"), 4) == ["cy", "ann", "ann", "ann"]


async def test_a_user_who_may_have_no_more_is_passed_over(jobs: SqlJobs) -> None:
    service = Service("s", runs_per_user=1, max_runs=9)
    await added(jobs, "ann", "ann", "bob", "cy")
    assert await claimed(jobs, service) == ["ann", "bob", "cy"]
    await added(jobs, "bob", "dee")
    assert await claimed(jobs, service) == ["dee"]


async def test_some_users_may_run_more_or_less_than_others(jobs: SqlJobs) -> None:
    service = Service(
        "s", runs_per_user=2, max_runs=20, runs_by_user=ByUser({"bob": 5, "cy": 1, "d*": 9})
    )
    added_ids = await added(jobs, *["ann", "bob", "cy", "dee"] * 7)
    found = await jobs.claim_fairly(service, ANY, 20, 20)
    assert Counter(job.user_id for job in found) == {"ann": 2, "bob": 5, "cy": 1, "dee": 7}
    assert [job.user_id for job in found[:6]] == ["ann", "bob", "cy", "dee", "ann", "bob"]
    of_bob = [job.id for job in found if job.user_id == "bob"]
    assert of_bob == added_ids[1::4][:5]
    assert await claimed(jobs, service) == []


async def test_of_several_who_claim_at_once_none_goes_beyond_a_quota(jobs: SqlJobs) -> None:
    service = Service("s", runs_per_user=2, max_runs=5)
    await added(jobs, *["ann", "bob", "cy"] * 4)
    found = await asyncio.gather(*(claimed(jobs, service, 2) for _ in range(10)))
    users = Counter(user for each in found for user in each)
    assert users.total() == 5
    assert max(users.values()) == 2


async def test_slots_of_an_agent_are_counted_over_all_services(jobs: SqlJobs) -> None:
    await added(jobs, *["ann"] * 3)
    await added(jobs, *["ann"] * 3, service="t")
    candidates = [Candidate("small", 2), Candidate("large", 3)]
    assert len(await claimed(jobs, Service("s"), candidates=candidates)) == 3
    assert len(await claimed(jobs, Service("t"), candidates=candidates)) == 2
    held = Counter[str]()
    for one in await jobs.held():
        held[one.agent] += one.slots
    assert held == {"small": 2, "large": 3}


async def test_an_attempt_that_has_ended_needs_no_slot_and_its_successor_does(
    jobs: SqlJobs,
) -> None:
    await added(jobs, *["ann"] * 4)
    candidates, service = [Candidate("node", 1)], Service("s")
    (job,) = await jobs.claim_fairly(service, candidates, 9, 20)
    assert await jobs.claim_fairly(service, candidates, 9, 20) == []
    (second,) = await jobs.claim_fairly(service, candidates, 9, 20, [job.key])
    assert await jobs.claim_fairly(service, candidates, 9, 20, [job.key]) == []
    await ended(jobs, second)
    await jobs.move(
        Move(job.id, 1, JobState.PROCESSING, JobState.QUEUED, 30, "again", changes={"agent": None})
    )
    (again,) = await jobs.claim_fairly(service, candidates, 9, 20, [job.key])
    assert (again.id, again.attempt) == (job.id, 2)
    assert await jobs.claim_fairly(service, candidates, 9, 20, [job.key]) == []


async def test_quotas_count_jobs_whose_attempt_has_ended(jobs: SqlJobs) -> None:
    await added(jobs, "ann", "ann")
    service = Service("s", runs_per_user=1)
    (job,) = await jobs.claim_fairly(service, ANY, 9, 20)
    assert await jobs.claim_fairly(service, ANY, 9, 20, [job.key]) == []


async def test_a_job_that_is_to_be_cancelled_is_not_claimed(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    await jobs.request_cancel(job, 15)
    assert await claimed(jobs, Service("s")) == []
    assert [one.id for one in await jobs.to_cancel()] == [job]


async def test_who_has_lost_the_lease_of_an_agent_claims_nothing_for_it(
    jobs: SqlJobs, database: Database, clock: SimClock
) -> None:
    await added(jobs, "ann", "bob")
    first, second = (SqlLeases(database, letter * 12) for letter in "ab")
    (lost,) = await first.acquire([of_agent("node")])
    await clock.advance(LENGTH_S)
    (held,) = await second.acquire([of_agent("node")])
    candidates = {lease: [Candidate("node", None, lease)] for lease in (lost, held)}
    assert await claimed(jobs, Service("s"), candidates=candidates[lost]) == []
    assert await claimed(jobs, Service("s"), candidates=candidates[held]) == ["ann", "bob"]


async def test_a_move_under_a_lease_that_another_has_by_now_is_not_made(
    jobs: SqlJobs, database: Database
) -> None:
    await added(jobs, "ann")
    (job,) = await jobs.claim_fairly(Service("s"), ANY, 9, 20)
    first, second = (SqlLeases(database, letter * 12) for letter in "ab")
    (lost,) = await first.acquire([of_agent("node")])
    (held,) = await second.acquire([of_agent("node")], alone=True)
    moves = [
        Move(job.id, 1, JobState.PROCESSING, JobState.SUBMITTED, 30, "has it", lease=lease)
        for lease in (lost, held)
    ]
    with pytest.raises(LeaseLost, match="another server uses agent node"):
        await jobs.move(moves[0])
    assert (await jobs.get(job.id)).state is JobState.PROCESSING
    assert len(await jobs.events(job.id)) == 2
    assert await jobs.move(moves[1]) is not None


async def test_a_user_s_jobs_are_sent_by_priority_and_then_by_age(jobs: SqlJobs) -> None:
    """The turns of the users do not depend on it."""
    for user, priority in (("ann", 0), ("ann", -100), ("ann", 7), ("ann", 100), ("ann", 7)):
        await jobs.insert(new(user, priority=priority), "queued")
    await jobs.insert(new("bob", priority=-100), "queued")
    service = Service("s", runs_per_user=9, max_runs=9)
    claimed = []
    while found := await jobs.claim_fairly(service, [Candidate("node", 9)], 2, 20):
        claimed += [job.id for job in found]
    assert claimed[:2] in ([4, 6], [6, 4])
    assert [one for one in claimed if one != 6] == [4, 3, 5, 1, 2]


async def test_the_place_in_the_queue_counts_priorities(jobs: SqlJobs) -> None:
    found = [
        (await jobs.insert(new(priority=priority), "queued"))[0] for priority in (0, 5, -5, 0, 5)
    ]
    before = await jobs.queued_before([job.id for job in found], 9)
    assert [before[job.id] for job in found] == [2, 0, 4, 3, 1]
    assert set((await jobs.queued_before([found[2].id], 3)).values()) == {3}


async def tasks_of_an_array(jobs: SqlJobs, database: Database, count: int) -> list[int]:
    """Their ids."""
    ids = await added(jobs, *["ann"] * count)
    await database.write(lambda tx: tx.rows("UPDATE jobs SET array_index = id"))
    return ids


async def test_tasks_of_a_service_that_packs_take_a_part_of_a_slot(
    database: Database,
) -> None:
    service = Service("s", runs_per_user=100, max_runs=100, pack=10)
    services = {"s": service, "t": Service("t")}
    jobs = SqlJobs(database, lambda job: None, services=services)
    agents = [Candidate("node", 2, packs=True)]
    tasks = await tasks_of_an_array(jobs, database, 60)
    first = await jobs.claim_fairly(service, agents, 99, 20)
    assert [one.id for one in first] == tasks[:20]
    assert await jobs.claim_fairly(service, agents, 99, 20) == []
    for one in first[:15]:
        await ended(jobs, one)
    await added(jobs, "bob", "bob", "bob", service="t")
    # half of a slot is taken by five tasks: so two whole jobs begin, and no task beside them
    assert len(await jobs.claim_fairly(services["t"], agents, 99, 20)) == 2
    assert await jobs.claim_fairly(service, agents, 99, 20) == []


async def test_what_is_no_task_of_an_array_takes_a_whole_slot_also_where_tasks_are_packed(
    database: Database,
) -> None:
    service = Service("s", runs_per_user=100, max_runs=100, pack=10)
    jobs = SqlJobs(database, lambda job: None, services={"s": service})
    await added(jobs, *["ann"] * 9)
    agents = [Candidate("node", 2, packs=True)]
    assert len(await jobs.claim_fairly(service, agents, 99, 20)) == 2
    assert await jobs.claim_fairly(service, agents, 99, 20) == []


async def test_an_agent_that_does_not_pack_gets_no_more_than_its_slots(database: Database) -> None:
    service = Service("s", runs_per_user=100, max_runs=100, pack=10)
    jobs = SqlJobs(database, lambda job: None, services={"s": service})
    await tasks_of_an_array(jobs, database, 9)
    assert len(await jobs.claim_fairly(service, [Candidate("old", 2)], 99, 20)) == 2
    assert await jobs.claim_fairly(service, [Candidate("old", 2)], 99, 20) == []
