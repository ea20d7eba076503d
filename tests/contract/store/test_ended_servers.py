"""A server that stood still may be taken for dead, and the results that it has just stored deleted.

No row may refer to them afterwards.
"""

from __future__ import annotations

import pytest

from server.domain.jobs import Move, Result
from server.domain.leases import LENGTH_S, Lease, of_agent, of_server
from server.ports import LeaseLost
from server.store.jobs import SqlJobs
from server.store.leases import SqlLeases
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.contract.store.conftest import claim, new
from tests.kit.clock import SimClock
from tests.kit.store import moved

RESULT = Result("result", 3, "ab")


@pytest.fixture
def paused(database: Database) -> SqlLeases:
    return SqlLeases(database, "a" * 12)


async def leases_of(server: SqlLeases) -> tuple[Lease, Lease]:
    """Its own, and that of its agent."""
    own, agent = await server.acquire([of_server(server.owner), of_agent("node")])
    return own, agent


async def stand_still(database: Database, clock: SimClock) -> None:
    await clock.advance(LENGTH_S)
    assert await SqlLeases(database, "b" * 12).running_servers() == set()


@pytest.mark.parametrize("late", [False, True])
async def test_a_result_is_refused_until_the_server_has_leases_again(
    jobs: SqlJobs, paused: SqlLeases, database: Database, clock: SimClock, late: bool
) -> None:
    _, agent = await leases_of(paused)
    job, _ = await jobs.insert(new(), "queued")
    await moved(jobs, claim(job))

    async def end(lease: Lease, **facts: Result) -> bool:
        move = Move(
            job.id,
            1,
            JobState.PROCESSING,
            JobState.FAILED,
            30,
            "",
            changes={"ended_at": 30},
            facts=facts,
            lease=lease,
        )
        return await jobs.move(move) is not None

    async def keep(lease: Lease) -> bool:
        if late:
            return await jobs.attach_result((await jobs.get(job.id)).key, RESULT, lease)
        try:
            return await end(lease, result=RESULT)
        except LeaseLost:
            return False

    if late:
        assert await end(agent)
    await stand_still(database, clock)
    assert not await keep(agent)
    assert await jobs.files_in_use([RESULT.file]) == set()
    _, agent = await leases_of(paused)
    assert await keep(agent)
