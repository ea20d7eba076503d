"""What the loops and lists read costs the same however much has ended or is delayed.

Counted in steps of SQLite's machine, of the statements that the store really runs.
"""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from server.domain import states
from server.domain.choose import Candidate
from server.domain.service import Service
from server.domain.webhooks import Delivery
from server.store import queue, webhooks
from server.store.migrations import MIGRATIONS
from server.store.pages import Filter
from shared.sqlite.database import Database
from shared.wire import JobState, Limits, Reason
from tests.kit.store import Store, every, service

FEW, MANY = 3_000, 15_000
"""More than one page looks at, in any case."""
FILL = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {many})
    INSERT INTO jobs (state, user_id, service, limits, timeout_s, message, bundle_size,
                      bundle_digest, created_at, queued_at, not_before, ended_at, expires_at,
                      submitted_by, reason, name, parent_id, schedule_id, dead_letter,
                      queue_timeout_s)
    SELECT '{state}', 'ann', 's', '{limits}', 60, 'x', 1, 'd', n, {queued_at}, {not_before},
           {ended}, {ended}, 'portal', 'timeout', 'nightly', 1, 1, 1, 1000 * n
    FROM numbers
"""
MORE = (
    "UPDATE jobs SET priority = id % 201 - 100 WHERE state = 'Queued' AND not_before = 0",
    "INSERT INTO job_tags (tag, job_id) SELECT 'x', id FROM jobs",
    """
    INSERT INTO dependencies (job_id, on_id, inputs, state)
    SELECT id, id - 1, 1, CASE state WHEN 'Completed' THEN 'met' ELSE 'failed' END
    FROM jobs WHERE ended_at IS NOT NULL
    """,
)
Call = Callable[[Store], Awaitable[object]]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Store, Callable[[], int]]]:
    """A new database; how many steps SQLite's machine has made there, in tens."""
    count, real = 0, sqlite3.connect

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def connect(*args: Any, **how: Any) -> Any:
        connection = real(*args, **how)
        connection.set_progress_handler(step, 10)
        return connection

    with mock.patch("sqlite3.connect", connect):
        database = await Database.open(path, MIGRATIONS)
    try:
        yield Store(database, []), lambda: count
    finally:
        await database.close()


ENDED: Any = ((JobState.COMPLETED, 1, 0, 10**9), (JobState.FAILED, 1, 0, 10**9))
"""State, queued_at, not_before, ended_at."""
QUEUED: Any = ((JobState.QUEUED, 1, 10**9, "NULL"), (JobState.QUEUED, 1, 0, "NULL"))


async def fill(jobs: Store, many: int, *rows: tuple[JobState, int, int, Any]) -> None:
    """Many of each, of one user; all have a tag."""
    limits = Limits().model_dump_json()
    for state, queued_at, not_before, ended in rows:
        values = {"queued_at": queued_at, "not_before": not_before, "ended": ended}
        await jobs.sql(FILL.format(many=many, state=state.value, limits=limits, **values))
    for sql in MORE:
        await jobs.sql(sql)


SWEEPS: dict[str, Call] = {
    "claim_fairly": lambda jobs: jobs.claim_fairly(Service("s"), [Candidate("node", 4)], 10, 20),
    "release_delayed": lambda jobs: jobs.release_delayed(2),
    "unmade": lambda jobs: jobs.database.read(queue.unmade, "ann"),
    "waits_since": lambda jobs: jobs.database.read(queue.waits_since, ["s", "none"]),
    "due_batches": lambda jobs: jobs.due_batches(["s"], 100),
    "in_states": lambda jobs: jobs.in_states(states.AT_AGENT, "node"),
    "to_cancel": lambda jobs: jobs.to_cancel(),
    "expired": lambda jobs: jobs.expired(5, 200),
    "of_service": lambda jobs: jobs.of_service("s", 100),
    "overdue": lambda jobs: jobs.overdue("s", 0, 10**9, 100),
    "broken_dependencies": lambda jobs: jobs.broken_dependencies(),
    "waiting_for": lambda jobs: jobs.waiting_for(5),
    "counts": lambda jobs: jobs.counts(Filter(user_id="ann"), 1_000),
    "counts of the top level": lambda jobs: jobs.counts(Filter(top_level=True), 1_000),
    "users": lambda jobs: jobs.users("", 50),
    "waiting_users": lambda jobs: jobs.waiting_users("s", 50, 100),
    "files_in_use": lambda jobs: jobs.files_in_use(["a", "b"]),
}
CHOICES: tuple[dict[str, Any], ...] = (
    {"name": "nightly"},
    {"name": "other"},
    {"reason": Reason.TIMEOUT},
    {"dead_letter": True},
    {"text": "nowhere"},
    {"text": "nowhere", "user_id": "ann"},
    {"parent_id": 1},
    {"schedule_id": 1},
    {"among": (JobState.FAILED, JobState.RUNNING)},
    {"since": 1_000},
    {"until": 1_000},
    {"since": 500, "until": 1_000},
)
BESIDE: tuple[dict[str, Any], ...] = ({}, {"user_id": "bob"}, {"tag": "x"}, {"submitted_by": "p"})
TOP_LEVEL: tuple[dict[str, Any], ...] = (
    *every(user_id=(None, "ann", "bob"), service=(None, "s")),
    {"state": JobState.COMPLETED},
    {"state": JobState.RUNNING},
    {"tag": "x"},
    {"text": "nowhere"},
    {"among": (JobState.FAILED, JobState.RUNNING)},
)
LISTS = [
    Filter(**given)
    for given in (
        *every(
            user_id=(None, "ann", "bob"),
            service=(None, "s", "t"),
            state=(None, JobState.FAILED, JobState.RUNNING),
            tag=(None, "x", "y"),
            submitted_by=(None, "portal", "other"),
        ),
        *(given | more for given in CHOICES for more in BESIDE),
        *(given | {"top_level": True} for given in TOP_LEVEL),
    )
]


def listing(where: Filter) -> Call:
    return lambda jobs: jobs.page(where, None, 50)


async def test_sweeps_and_lists_cost_the_same_however_much_there_is(tmp_path: Path) -> None:
    asked = SWEEPS | {f"list {where}": listing(where) for where in LISTS}
    costs: dict[str, list[int]] = {name: [] for name in asked}
    for many in (FEW, MANY):
        async with opened(tmp_path / f"{many}.sqlite") as (jobs, steps):
            await fill(jobs, many, *ENDED, *QUEUED)
            await jobs.totals()  # what is queued is counted once
            for name, call in asked.items():
                before = steps()
                await call(jobs)
                costs[name].append(steps() - before)
    assert {name: cost for name, cost in costs.items() if cost[1] > cost[0] * 1.2 + 5} == {}
    for name in ("claim_fairly", "in_states", f"list {Filter()}"):  # by each connection
        assert min(costs[name]) > 0, name


async def test_to_count_what_waits_costs_the_same_however_much_has_ended(tmp_path: Path) -> None:
    costs = []
    for many in (FEW, MANY):
        async with opened(tmp_path / f"{many}.sqlite") as (jobs, steps):
            await fill(jobs, many, *ENDED)
            before = steps()
            counted = await jobs.totals()
            assert (counted.queued, counted.slots) == ({}, {})
            costs.append(steps() - before)
    assert costs[1] <= costs[0] + 2


async def test_a_claim_costs_what_it_claims_not_the_free_slots_of_all_agents(tmp_path) -> None:
    costs, takes = [], Candidate.takes
    async with opened(tmp_path / "server.sqlite") as (jobs, steps):
        await jobs.added("ann", "ann")
        with mock.patch.object(Candidate, "takes", autospec=True, side_effect=takes) as looks:
            agents = [Candidate(f"node{number}", 100) for number in range(50)]
            assert len(await jobs.claim_fairly(service(), agents, 100, 20)) == 2
        assert looks.call_count == 50 + 2, "each agent, and again the two that got one"
        await fill(jobs, FEW, (JobState.QUEUED, 1, 0, "NULL"))
        await jobs.totals()  # what is queued is counted once
        for most in (1, 100):
            before = steps()
            claimed = await jobs.claim_fairly(service(), [Candidate(f"of {most}", 1)], most, 20)
            costs.append(steps() - before)
            assert len(claimed) == 1
    assert costs[1] <= costs[0] + 5, "no more jobs are read than agents take"


async def test_a_claim_costs_the_same_however_many_jobs_hold_slots(tmp_path: Path) -> None:
    costs, of, node = [], Service("s", 10**6, 10**6), [Candidate("node", None)]
    for many in (FEW, MANY):
        async with opened(tmp_path / f"{many}.sqlite") as (jobs, steps):
            await fill(jobs, many, (JobState.RUNNING, 1, 0, "NULL"))
            await jobs.added("ann")
            assert len(await jobs.claim_fairly(of, node, 1, 20)) == 1, "all are read once"
            await jobs.added("bob")
            before = steps()
            assert len(await jobs.claim_fairly(of, node, 1, 20)) == 1
            costs.append(steps() - before)
    assert costs[1] <= costs[0] + 5


async def deliver(
    jobs: Store, principal: str, host: str, many: int, next_at: int, *, each_its_own: bool = False
) -> None:
    number = "n" if each_its_own else "''"
    await jobs.sql(
        f"""
        WITH RECURSIVE numbers (n) AS
            (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {many})
        INSERT INTO deliveries (job_id, user_id, principal, url, target, event,
                                body, next_at, created_at)
        SELECT n, 'ann', '{principal}', 'https://{host}' || {number} || '/',
               'https://{host}' || {number} || ':443', 'job.ended', '{{}}', {next_at}, 1
        FROM numbers
        """
    )


@pytest.mark.parametrize("of_one_portal", [True, False])
async def test_a_dead_receiver_makes_no_look_for_webhooks_longer(tmp_path, of_one_portal):
    costs, other = [], "ann" if of_one_portal else "bob"
    targets = {"https://dead:443"} if of_one_portal else set()
    principals = set() if of_one_portal else {"ann"}
    for many in (FEW, MANY):
        async with opened(tmp_path / f"{many}.sqlite") as (jobs, steps):
            await deliver(jobs, "ann", "dead", many, 1)
            await deliver(jobs, "ann", "late", 1, 1_000)
            await deliver(jobs, other, "well", 3, 2)
            before = steps()
            found, _ = await jobs.database.read(
                webhooks.due, 10, 32, ("", ""), targets=targets, principals=principals
            )
            costs.append(steps() - before)
            assert {one.url for one in found} == {"https://well/"}
    assert costs[1] <= costs[0] + 2


async def test_a_receiver_is_found_however_many_others_have_to_wait(jobs: Store) -> None:
    await deliver(jobs, "ann", "dead", 1_000, 1)
    await deliver(jobs, "ann", "a", 1_000, 1_000, each_its_own=True)
    await deliver(jobs, "ann", "well", 1, 2)
    found, walked, dead = list[Delivery](), ("", ""), {"https://dead:443"}
    for _ in range(10):
        some, walked = await jobs.database.read(
            webhooks.due, 10, 32, walked, targets=dead, principals=()
        )
        found += some
    assert {one.url for one in found} == {"https://well/"}
