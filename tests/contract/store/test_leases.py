"""What every store of leases must do."""

from __future__ import annotations

import asyncio

import pytest

from server.domain.choose import Candidate
from server.domain.errors import ServerPaused
from server.domain.jobs import Bundle, Move
from server.domain.leases import LENGTH_S, RENEW_EVERY_S, Lease, of_agent, of_server
from server.domain.service import Service
from server.ports import LeaseLost
from server.store.jobs import SqlJobs
from server.store.leases import SqlLeases
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.contract.store.conftest import new
from tests.kit.clock import SimClock
from tests.kit.store import Store

NORTH, SOUTH = of_agent("north"), of_agent("south")
LONGER_S = LENGTH_S + 1.0


@pytest.fixture
def first(database: Database) -> SqlLeases:
    return SqlLeases(database, "a" * 12)


@pytest.fixture
def second(database: Database) -> SqlLeases:
    return SqlLeases(database, "b" * 12)


async def one(leases: SqlLeases, name: str = NORTH, **how: bool) -> Lease:
    (lease,) = await leases.acquire([name], **how)
    return lease


async def test_of_two_who_want_the_same_leases_each_lease_has_one_holder(
    first: SqlLeases, second: SqlLeases
) -> None:
    names = [of_agent(str(number)) for number in range(20)]
    tries = (who.acquire([name]) for name in names for who in (first, second))
    found = await asyncio.gather(*tries)
    held = [lease.name for leases in found for lease in leases]
    assert sorted(held) == sorted(names)


async def test_a_lease_stays_with_its_holder_while_it_is_renewed(
    first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    lease = await one(first)
    for _ in range(10):
        await clock.advance(RENEW_EVERY_S)
        assert await second.acquire([NORTH]) == []
        assert await first.renew() == [lease]


async def test_a_lease_that_has_run_out_goes_to_another_with_a_higher_token(
    first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    before = await one(first)
    await clock.advance(LENGTH_S - 1.0)
    assert await second.acquire([NORTH]) == []
    await clock.advance(1.0)
    after = await one(second)
    assert after.owner == second.owner
    assert after.token > before.token
    assert await first.renew() == []
    assert await first.acquire([NORTH]) == []


async def test_a_lease_that_has_run_out_and_that_nobody_took_is_still_held(
    first: SqlLeases, clock: SimClock
) -> None:
    lease = await one(first)
    await clock.advance(LONGER_S)
    assert await first.renew() == [lease]
    assert await one(first) == lease


async def test_who_is_alone_takes_over_at_once(first: SqlLeases, second: SqlLeases) -> None:
    before = await one(first)
    await one(first, of_server(first.owner))
    after = await one(second, alone=True)
    assert after.token > before.token
    assert await first.renew() == []
    assert await second.running_servers() == set()


async def test_a_token_is_never_given_twice_though_the_clock_stands_still_or_goes_back(
    first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    tokens = []
    for turn in range(6):
        tokens.append((await one((first, second)[turn % 2], alone=True)).token)
        clock.jump(-3_600.0)
    assert tokens == sorted(set(tokens))


async def test_an_agent_that_is_renamed_gets_no_lower_token(
    first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    before = await one(first, NORTH)
    clock.jump(-3_600.0)
    assert (await one(second, SOUTH)).token >= before.token


async def test_tokens_go_on_though_the_database_was_put_back_from_an_earlier_copy(
    database: Database, first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    copied = latest = await one(first)
    for who in (second, first, second):
        latest = await one(who, alone=True)
    await clock.advance(60.0)
    put_back = {"owner": copied.owner, "token": copied.token}
    await database.write(
        lambda tx: tx.rows("UPDATE leases SET owner = :owner, token = :token", put_back)
    )
    assert (await one(second, alone=True)).token > latest.token


async def test_what_is_released_is_free_at_once_and_its_token_is_not_forgotten(
    first: SqlLeases, second: SqlLeases
) -> None:
    before = await one(first)
    await first.release()
    assert (await one(second)).token > before.token
    assert await one(second, SOUTH), "others are not touched by that"


async def test_a_server_is_running_until_its_lease_has_run_out(
    first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    await one(first, of_server(first.owner))
    await one(first)
    await clock.advance(LENGTH_S / 2)
    await one(second, of_server(second.owner))
    assert await first.running_servers() == {first.owner, second.owner}
    await clock.advance(LENGTH_S / 2)
    assert await second.running_servers() == {second.owner}
    renewed = await first.renew()
    assert renewed == [], "they ended for good"
    await second.release()
    assert await first.running_servers() == set()


async def test_a_server_that_was_taken_for_dead_inserts_no_job_with_its_file(
    database: Database, first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    jobs = SqlJobs(database, lambda job: None)
    await one(first, of_server(first.owner))
    lease = first.own
    await jobs.insert(new(bundle=Bundle("a", 1, "d")), "queued", lease=lease)
    await clock.advance(LONGER_S)  # the first one stands still; nobody has noticed yet
    await jobs.insert(new(bundle=Bundle("b", 1, "d")), "queued", lease=lease)
    assert await second.running_servers() == set()
    for digest in ("d", "another"):
        with pytest.raises(ServerPaused):
            await jobs.insert(new(bundle=Bundle("c", 1, digest)), "queued", lease=lease)
    assert await jobs.files_in_use(["a", "b", "c"]) == {"a"}
    await clock.advance(1.0)
    await one(first, of_server(first.owner))
    assert first.own != lease
    job, is_new = await jobs.insert(new(bundle=Bundle("e", 1, "e")), "queued", lease=first.own)
    assert (job.id, is_new) == (3, True)
    counted = await database.rows("SELECT file, refs FROM bundles ORDER BY file")
    assert [(row["file"], row["refs"]) for row in counted] == [("a", 2), ("e", 1)]


async def test_who_has_lost_the_lease_of_an_agent_claims_nothing_for_it(
    jobs: Store, first: SqlLeases, second: SqlLeases, clock: SimClock
) -> None:
    await jobs.added("ann", "bob")
    lost = await one(first)
    await clock.advance(LENGTH_S)
    held = await one(second)
    for lease, count in ((lost, 0), (held, 2)):
        candidates = [Candidate("north", None, lease)]
        assert len(await jobs.claim_fairly(Service("s"), candidates, 9, 20)) == count


async def test_a_move_under_a_lease_that_another_has_by_now_is_not_made(
    jobs: Store, first: SqlLeases, second: SqlLeases
) -> None:
    job = await jobs.claimed()
    lost = await one(first)
    held = await one(second, alone=True)
    moves = [
        Move(job.id, 1, JobState.PROCESSING, JobState.SUBMITTED, 30, "has it", lease=lease)
        for lease in (lost, held)
    ]
    with pytest.raises(LeaseLost, match="another server uses agent north"):
        await jobs.move(moves[0])
    assert (await jobs.get(job.id)).state is JobState.PROCESSING
    assert len(await jobs.events(job.id)) == 2
    assert await jobs.move(moves[1]) is not None
