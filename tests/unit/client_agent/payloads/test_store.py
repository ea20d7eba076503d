from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.errors import KeyRefused, NoSuchPayload, NotEnded, StaleAttempt
from client_agent.payloads.payload import Outcome
from client_agent.payloads.store import MIGRATIONS, Payloads
from shared.ids import AttemptKey
from shared.sqlite.database import Database
from shared.wire import PayloadState, Reason, ResultInfo, Usage
from tests.kit.agent import SERVER, new_payload
from tests.kit.clock import SimClock

DAY = 86_400.0


@pytest.fixture
def clock():
    return SimClock()


@pytest.fixture
async def database(tmp_path):
    opened = await Database.open(tmp_path / "agent.sqlite", MIGRATIONS)
    yield opened
    await opened.close()


@pytest.fixture
async def payloads(database, clock):
    return await Payloads.open(database, clock)


async def added(payloads, key="1.1", **more):
    payload, created = await payloads.add(new_payload(key, **more))
    assert created
    return payload


async def ended(payloads, key="1.1", state=PayloadState.COMPLETED):
    payload = await added(payloads, key)
    await payloads.start(payload.id, 7, "/work", {})
    return await payloads.end(
        payload.id, PayloadState.RUNNING, Outcome(state, result=ResultInfo(size=1, sha256="ab"))
    )


async def test_a_new_payload_is_prepared_and_has_the_fields_that_a_reference_server_reads(payloads):
    payload = await added(payloads)
    doc = payload.doc().model_dump(mode="json")
    assert doc["status"] == "Prepared"
    assert {name: doc[name] for name in ("loc", "pid", "killed", "input")} == {
        "loc": "",
        "pid": 0,
        "killed": False,
        "input": {},
    }


async def test_a_known_key_gives_its_payload(payloads):
    first = await added(payloads)
    again, created = await payloads.add(new_payload(bundle="other"))
    assert (again, created) == (first, False)


async def test_of_many_at_once_with_the_same_key_one_wins(payloads):
    answers = await asyncio.gather(*(payloads.add(new_payload(bundle=f"b{n}")) for n in range(20)))
    assert len({payload.id for payload, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


async def test_the_same_key_of_another_server_is_another_attempt(payloads):
    one = await added(payloads)
    other = await added(payloads, server="server-two")
    assert one.id != other.id


async def test_payloads_without_key_never_collide(payloads):
    one, other = await added(payloads, None), await added(payloads, None)
    assert one.id != other.id
    assert (one.job_id, one.attempt) == (one.id, 1)


async def test_an_attempt_older_than_one_known_is_stale(payloads):
    await added(payloads, "5.2")
    with pytest.raises(StaleAttempt, match=r"5\.1 is stale: attempt 2 "):
        await payloads.add(new_payload("5.1"))
    await added(payloads, "5.3")
    await added(payloads, "6.1")


async def test_an_attempt_older_than_one_that_was_refused_is_stale(payloads):
    assert await payloads.settle(SERVER, AttemptKey.parse("5.2")) is None
    with pytest.raises(StaleAttempt):
        await payloads.add(new_payload("5.1"))


async def test_a_key_settled_as_unknown_is_refused_for_good(database, clock):
    payloads = await Payloads.open(database, clock)
    assert await payloads.settle(SERVER, AttemptKey.parse("1.1")) is None
    assert await payloads.settle(SERVER, AttemptKey.parse("1.1")) is None
    reopened = await Payloads.open(database, clock)
    with pytest.raises(KeyRefused):
        await reopened.add(new_payload("1.1"))
    with pytest.raises(KeyRefused):
        await reopened.look_up(SERVER, AttemptKey.parse("1.1"), "0" * 64)
    await added(reopened, "1.2")


async def test_settling_a_known_key_gives_its_payload_and_refuses_nothing(payloads):
    payload = await added(payloads)
    assert await payloads.settle(SERVER, AttemptKey.parse("1.1")) == payload
    assert (await payloads.add(new_payload()))[0] == payload


async def test_settling_and_submitting_at_once_agree_on_one_answer(payloads):
    settled: Any
    taken: Any
    for job in range(1, 30):
        key = f"{job}.1"
        settled, taken = await asyncio.gather(
            payloads.settle(SERVER, AttemptKey(job, 1)),
            payloads.add(new_payload(key)),
            return_exceptions=True,
        )
        if settled is None:
            assert isinstance(taken, KeyRefused)
        else:
            assert settled == taken[0]


async def test_only_one_of_two_changes_from_the_same_state_succeeds(payloads):
    payload = await added(payloads)
    started, killed = await asyncio.gather(
        payloads.start(payload.id, 7, "/work", {"memory": "hard"}),
        payloads.end(payload.id, PayloadState.PREPARED, Outcome(PayloadState.KILLED)),
    )
    assert (started is None) != (killed is None)
    assert (await payloads.get(payload.id)).state in (PayloadState.RUNNING, PayloadState.KILLED)


async def test_a_change_that_is_not_in_the_table_is_a_defect(payloads):
    payload = await added(payloads)
    with pytest.raises(ValueError, match="Prepared does not become Completed"):
        await payloads.end(payload.id, PayloadState.PREPARED, Outcome(PayloadState.COMPLETED))


async def test_an_outcome_is_read_as_it_was_stored(payloads, clock):
    payload = await added(payloads)
    await payloads.start(payload.id, 7, "/work", {"memory": "soft"})
    await clock.advance(3)
    at = clock.now()
    await clock.advance(2)
    await payloads.end(
        payload.id,
        PayloadState.RUNNING,
        Outcome(
            PayloadState.FAILED,
            reason=Reason.EXIT_CODE,
            message="run.sh ended with exit code 3",
            exit_code=3,
            stderr_tail="oh",
            usage=Usage(wall_s=3.0),
            warnings=("pids_limit",),
            result=ResultInfo(size=10, sha256="ab"),
            ended_at=at,
        ),
    )
    doc = (await payloads.get(payload.id)).doc()
    assert (doc.status, doc.reason, doc.exit_code, doc.stderr_tail) == (
        PayloadState.FAILED,
        Reason.EXIT_CODE,
        3,
        "oh",
    )
    assert doc.usage == Usage(wall_s=3.0)
    assert doc.result == ResultInfo(size=10, sha256="ab")
    assert doc.warnings == ["pids_limit"]
    assert doc.enforcement == {"memory": "soft"}
    assert (await payloads.get(payload.id)).ended_at == at


async def test_every_change_has_a_greater_number_and_restarts_go_on(database, clock):
    payloads = await Payloads.open(database, clock)
    numbers = [(await added(payloads)).changed]
    await payloads.start(1, 7, "/work", {})
    numbers.append((await payloads.get(1)).changed)
    await payloads.end(1, PayloadState.RUNNING, Outcome(PayloadState.KILLED))
    numbers.append((await payloads.get(1)).changed)
    reopened = await Payloads.open(database, clock)
    assert reopened.seq == numbers[-1]
    numbers.append((await added(reopened, "2.1")).changed)
    assert numbers == sorted(set(numbers))


async def test_numbers_go_on_even_when_the_highest_row_was_pruned(database, clock):
    payloads = await Payloads.open(database, clock)
    payload = await ended(payloads)
    await payloads.acknowledge(payload.id, Caller())
    last = payloads.seq
    await clock.advance(2 * DAY)
    assert await payloads.prune(DAY) == 1
    reopened = await Payloads.open(database, clock)
    assert reopened.seq >= last
    assert (await added(reopened, "2.1")).changed > last


async def test_changes_are_listed_in_order_and_only_the_latest_of_each(payloads):
    for job in (1, 2, 3):
        await added(payloads, f"{job}.1")
    await payloads.start(1, 7, "/work", {})
    changes = await payloads.changed_after(0, None)
    assert [(one.id, one.state) for one in changes] == [
        (2, PayloadState.PREPARED),
        (3, PayloadState.PREPARED),
        (1, PayloadState.RUNNING),
    ]
    assert await payloads.changed_after(changes[-1].changed, None) == []
    assert [one.id for one in await payloads.changed_after(0, None, 2)] == [2, 3]


async def test_a_server_gets_only_its_own_payloads(payloads):
    await added(payloads, "1.1")
    await added(payloads, "1.1", server="server-two")
    await added(payloads, None)
    assert [one.id for one in await payloads.changed_after(0, "server-two")] == [2]
    assert len(await payloads.changed_after(0, None)) == 3


async def test_an_acknowledged_payload_is_a_tombstone_that_keeps_its_key(payloads):
    payload = await ended(payloads)
    await payloads.acknowledge(payload.id, Caller())
    await payloads.acknowledge(payload.id, Caller())
    tombstone = await payloads.settle(SERVER, AttemptKey.parse("1.1"))
    assert tombstone is not None
    assert (tombstone.state, tombstone.doc().result) == (PayloadState.CLEANED, None)
    assert (await payloads.add(new_payload()))[0].state is PayloadState.CLEANED
    assert await payloads.changed_after(0, None) == []
    assert await payloads.with_result() == set()


async def test_acknowledging_something_unknown_does_no_harm(payloads):
    payload = await ended(payloads)
    await payloads.acknowledge(payload.id + 1, Caller())
    assert await payloads.get(payload.id) == payload


@pytest.mark.parametrize("started", [False, True])
async def test_what_has_not_ended_cannot_be_acknowledged(payloads, started):
    payload = await added(payloads)
    if started:
        await payloads.start(payload.id, 7, "/work", {})
    with pytest.raises(NotEnded):
        await payloads.acknowledge(payload.id, Caller())
    assert (await payloads.get(payload.id)).state in (PayloadState.PREPARED, PayloadState.RUNNING)


async def test_results_expire_by_the_end_of_the_attempt_and_are_listed_as_cleaned(payloads, clock):
    old = await ended(payloads, "1.1")
    live = await added(payloads, "2.1")
    await clock.advance(DAY / 2)
    young = await ended(payloads, "3.1")
    await clock.advance(DAY / 2)
    assert await payloads.expire(DAY) == [old.id]
    assert await payloads.expire(DAY) == []
    states = {one.id: one.state for one in await payloads.changed_after(young.changed, None)}
    assert states == {old.id: PayloadState.CLEANED}
    assert (await payloads.get(live.id)).state is PayloadState.PREPARED
    assert await payloads.with_result() == {young.id}


async def test_tombstones_are_removed_in_time_and_not_before(payloads, clock):
    payload = await ended(payloads)
    await payloads.acknowledge(payload.id, Caller())
    await clock.advance(DAY - 1)
    assert await payloads.prune(DAY) == 0
    await clock.advance(1)
    assert await payloads.prune(DAY) == 1
    with pytest.raises(NoSuchPayload):
        await payloads.get(payload.id)


async def test_a_refusal_outlives_a_short_retention(payloads, clock):
    await payloads.settle(SERVER, AttemptKey.parse("1.1"))
    await clock.advance(3600)
    await payloads.prune(60)
    with pytest.raises(KeyRefused):
        await payloads.add(new_payload("1.1"))
    await clock.advance(DAY)
    await payloads.prune(60)
    await added(payloads, "1.1")


async def test_ids_are_never_given_twice(payloads, clock):
    payload = await ended(payloads)
    await payloads.acknowledge(payload.id, Caller())
    await clock.advance(2 * DAY)
    await payloads.prune(DAY)
    assert (await added(payloads, "2.1")).id > payload.id


async def test_waiters_are_woken_once_a_change_is_durable(payloads):
    with payloads.wakeups.of() as changed, payloads.wakeups.of(1, end_only=True) as over:
        payload = await added(payloads)
        assert not changed.is_set()  # it is the answer to whoever sent it
        await payloads.start(payload.id, 7, "/work", {})
        assert changed.is_set()
        assert not over.is_set()
        await payloads.end(payload.id, PayloadState.RUNNING, Outcome(PayloadState.COMPLETED))
        assert over.is_set()
