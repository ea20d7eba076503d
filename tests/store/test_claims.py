"""Jobs are claimed: the right ones, and never too many."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from server.domain.agents import Contact
from server.domain.choose import Candidate
from server.domain.jobs import Job
from server.domain.service import ByUser, Service
from server.store import agents
from server.store.jobs import move as make_move
from shared.sql import Tx
from shared.wire import JobState
from tests.kit.each import each
from tests.kit.store import Store, end, service

ANY = [Candidate("node", None)]


async def claim(
    jobs: Store, of: Service, most: int = 99, candidates: Sequence[Candidate] = ANY, *ended: Any
) -> list[Job]:
    return await jobs.claim_fairly(of, candidates, most, 20, *ended)


def users(found: list[Job]) -> list[str]:
    return [job.user_id for job in found]


async def test_whatever_their_names_all_users_are_served_equally_often(jobs: Store) -> None:
    """The order of names is the database's own; only that it is always the same one matters."""
    names = ["ann", "Bob", "_x", "9", "zoe", "ZOE", "a.b", "a-b", "a@b", "Ann"]
    for number, most in enumerate([1, 3, 7]):
        of = Service(f"s{number}", runs_per_user=9, max_runs=99)
        await jobs.added(*names * 4, service=of.name)
        served = Counter[str]()
        while found := await claim(jobs, of, most):
            served.update(users(found))
            assert max(served.values()) - min(served[user] for user in names) <= 1
        assert set(served.values()) == {4}


async def test_turns_go_on_where_they_ended_and_who_may_have_no_more_is_passed_over(jobs):
    """Also in another run of the server."""
    of = Service("s", runs_per_user=2, max_runs=99)
    await jobs.added("bob")
    assert users(await claim(jobs, of)) == ["bob"]
    await jobs.added(*["ann"] * 5, "bob", "cy", "cy")
    order = []
    for _ in range(3):
        order += users(await claim(Store(jobs.database, []), of, 2))
    assert order == ["cy", "ann", "bob", "cy", "ann"], "nobody twice in one round"


async def test_nobody_is_looked_at_twice_in_one_round(jobs: Store) -> None:
    await jobs.added("bob")
    assert users(await claim(jobs, Service("s"))) == ["bob"]
    await jobs.added(*["ann"] * 5, "cy")
    assert users(await claim(jobs, Service("s"), 4)) == ["cy", "ann", "ann", "ann"]


async def test_all_take_turns_with_their_oldest_and_some_may_run_more_than_others(jobs: Store):
    by_user = ByUser({"bob": 5, "cy": 1, "d*": 9})
    of = Service("s", runs_per_user=2, max_runs=20, runs_by_user=by_user)
    added = await jobs.added(*["ann", "bob", "cy", "dee"] * 7)
    found = await claim(jobs, of, 20)
    assert Counter(users(found)) == {"ann": 2, "bob": 5, "cy": 1, "dee": 7}
    assert users(found)[:6] == ["ann", "bob", "cy", "dee", "ann", "bob"]
    how = {(job.state, job.attempt, job.agent) for job in found}
    assert how == {(JobState.PROCESSING, 1, "node")}
    of_bob = [job.id for job in found if job.user_id == "bob"]
    assert of_bob == [job.id for job in added[1::4][:5]]
    assert await claim(jobs, of) == []


async def test_of_several_who_claim_at_once_none_goes_beyond_a_quota(jobs: Store) -> None:
    of = Service("s", runs_per_user=2, max_runs=5)
    await jobs.added(*["ann", "bob", "cy"] * 4)
    found = await asyncio.gather(*(claim(jobs, of, 2) for _ in range(10)))
    counted = Counter(user for each in found for user in users(each))
    assert counted.total() == 5
    assert max(counted.values()) == 2


async def test_slots_of_an_agent_are_counted_over_all_services(jobs: Store) -> None:
    await jobs.added(*["ann"] * 3)
    await jobs.added(*["ann"] * 3, service="t")
    candidates = [Candidate("small", 2), Candidate("large", 3)]
    assert len(await claim(jobs, Service("s"), 99, candidates)) == 3
    assert len(await claim(jobs, Service("t"), 99, candidates)) == 2
    assert (await jobs.totals()).agents == {"small": 2, "large": 3}


@each("together", [False, True])
async def test_what_was_undone_or_renamed_holds_no_slot(jobs: Store, together: bool) -> None:
    of, one = Service(f"s{together}"), [Candidate(f"node{together}", 1)]
    _, second = await jobs.added("ann", "ann", service=of.name)
    (claimed,) = await claim(jobs, of, 9, one)
    move = end(claimed, JobState.FAILED)

    def undone(tx: Tx) -> None:
        assert make_move(tx, move) is not None
        raise ValueError

    changes = [undone, *[lambda tx: tx.rows("SELECT 1")] * together]
    writes = map(jobs.database.write, changes)
    assert isinstance((await asyncio.gather(*writes, return_exceptions=True))[0], ValueError)
    assert await claim(jobs, of, 9, one) == []
    other = f"other{together}"
    for name in (one[0].name, other):  # the same agent has another name now
        contact = Contact(name, "ferryman", other, agent_id=f"id-of-{other}")
        await jobs.database.write(agents.contacted, contact, [name], 1)
    assert await claim(jobs, of, 9, [Candidate(other, 1)]) == []
    assert [job.id for job in await claim(jobs, of, 9, one)] == [second.id]


async def test_an_attempt_that_has_ended_needs_no_slot_and_its_successor_does(jobs: Store) -> None:
    await jobs.added(*["ann"] * 4)
    one, of = [Candidate("node", 1)], Service("s")
    (job,) = await claim(jobs, of, 9, one)
    assert await claim(jobs, of, 9, one) == []
    assert await claim(jobs, of, 9, one, {job.key: "liar"}) == []
    (second,) = await claim(jobs, of, 9, one, {job.key: "node"})
    assert await claim(jobs, of, 9, one, {job.key: "node"}) == []
    await jobs.moved(end(second, JobState.FAILED))
    await jobs.to(job, JobState.QUEUED, changes={"agent": None})
    (again,) = await claim(jobs, of, 9, one, {job.key: "node"})
    assert (again.id, again.attempt) == (job.id, 2)
    assert await claim(jobs, of, 9, one, {job.key: "node"}) == []
    quota = Service("s", runs_per_user=1)
    more = await claim(jobs, quota, 9, ANY, {again.key: "node"})
    assert more == [], "quotas count it all the same"


async def test_a_users_jobs_are_sent_by_priority_and_then_by_age(jobs: Store) -> None:
    """The turns of the users do not depend on it."""
    for priority in (0, -100, 7, 100, 7):
        await jobs.upload(priority=priority)
    bobs = await jobs.upload("bob", priority=-100)
    before = await jobs.queued_before([1, 2, 3, 4, 5], 9)
    assert [before[number] for number in (4, 3, 5, 1, 2)] == [0, 1, 2, 3, 4]
    assert set((await jobs.queued_before([2], 3)).values()) == {3}
    order: list[int] = []
    while found := await claim(jobs, Service("s", runs_per_user=9), 2, [Candidate("node", 9)]):
        order += [job.id for job in found]
    assert bobs.id in order[:2]
    assert [one for one in order if one != bobs.id] == [4, 3, 5, 1, 2]


async def test_a_place_in_the_queue_counts_the_users_older_jobs_that_may_be_sent(jobs):
    first, *_, last = await jobs.added("ann", "bob", "ann", "ann")
    await jobs.upload(service="t")
    assert await jobs.queued_before([first.id, last.id], 9) == {first.id: 0, last.id: 2}
    sent = await jobs.to(first, JobState.PROCESSING, changes={"agent": "node"})
    await jobs.to(sent, JobState.QUEUED, changes={"queued_at": 30, "not_before": 50})
    assert await jobs.queued_before([last.id], 9) == {last.id: 1}


async def test_a_delayed_job_is_not_in_the_queue_until_it_is_due(jobs: Store) -> None:
    changes = {"queued_at": 30, "not_before": 50}
    await jobs.to(await jobs.claimed(), JobState.QUEUED, changes=changes)
    for now, released in ((40, 0), (49, 0), (50, 1)):
        assert await jobs.claim_fairly(Service("s"), ANY, 9, now) == []
        assert await jobs.release_delayed(now) == released, now
        assert len(await jobs.claim_fairly(Service("s"), ANY, 9, now)) == released


PACKS, PLAIN = Candidate("node", 2, packs=True), Candidate("old", 2)


@each("agent, tasks, found", [(PACKS, True, 20), (PACKS, False, 2), (PLAIN, True, 2)])
async def test_tasks_of_a_service_that_packs_take_a_part_of_a_slot(jobs, agent, tasks, found):
    packs, plain = service(f"{agent.name} {tasks}", pack=10), service(f"plain {agent.name} {tasks}")
    store = Store(jobs.database, [], services={one.name: one for one in (packs, plain)})
    added = await store.added(*["ann"] * 60, service=packs.name)
    if tasks:
        await store.sql("UPDATE jobs SET array_index = id WHERE state = 'Queued'")
    first = await claim(store, packs, 99, [agent])
    assert [one.id for one in first] == [one.id for one in added[:found]]
    assert await claim(store, packs, 99, [agent]) == []
    # Half of a slot is taken by five tasks: so two whole jobs begin, and no task beside them.
    left = first[: len(first) * 3 // 4] if found == 20 else first
    for one in left:
        await store.moved(end(one, JobState.FAILED))
    await store.added("bob", "bob", "bob", service=plain.name)
    begun = await claim(store, plain, 99, [agent])
    assert len(begun) == 2
    assert await claim(store, packs, 99, [agent]) == []
    for one in (*first[len(left) :], *begun):
        await store.moved(end(one, JobState.FAILED))
