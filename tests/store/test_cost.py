"""What the loops and lists read costs the same however much has ended or is delayed.

Counted in steps of SQLite's machine, of the statements that the store really runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from server.domain import states
from server.domain.choose import Candidate
from server.domain.service import Service
from server.ports import Filter
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from server.store.queue import READY
from server.store.webhooks import SqlDeliveries
from shared.sqlite.database import Database
from shared.wire import JobState, Limits, Reason

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
Call = Callable[[SqlJobs], Awaitable[object]]


async def filled(path: Path, many: int) -> Database:
    """Ended, delayed and waiting jobs of one user; all have a tag."""
    database = await Database.open(path, MIGRATIONS)
    limits = Limits().model_dump_json()
    for state, count, queued_at, not_before, ended in (
        (JobState.COMPLETED, many, 1, 0, 10**9),
        (JobState.FAILED, many, 1, 0, 10**9),
        (JobState.QUEUED, many, 1, 10**9, "NULL"),
        (JobState.QUEUED, many, 10**9, 10**9, "NULL"),  # not_before was given at upload
        (JobState.QUEUED, many, 1, 0, "NULL"),
    ):
        sql = FILL.format(
            many=count,
            state=state.value,
            limits=limits,
            queued_at=queued_at,
            not_before=not_before,
            ended=ended,
        )
        await database._writer.rows(sql)
    await database._writer.rows(
        "UPDATE jobs SET priority = id % 201 - 100 WHERE state = 'Queued' AND not_before = 0"
    )
    await database._writer.rows("INSERT INTO job_tags (tag, job_id) SELECT 'x', id FROM jobs")
    await database._writer.rows(
        """
        INSERT INTO dependencies (job_id, on_id, inputs, state)
        SELECT id, id - 1, 1, CASE state WHEN 'Completed' THEN 'met' ELSE 'failed' END
        FROM jobs WHERE ended_at IS NOT NULL
        """
    )
    return database


async def steps(database: Database, call: Call) -> int:
    """Of SQLite's virtual machine, in tens."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    connections = (database._reader, database._lists, database._writer)
    for connection in connections:
        await connection.run(lambda raw: raw.set_progress_handler(step, 10))
    await call(SqlJobs(database, lambda job: None))
    for connection in connections:
        await connection.run(lambda raw: raw.set_progress_handler(None, 0))
    return count


SWEEPS: dict[str, Call] = {
    "claim_fairly": lambda jobs: jobs.claim_fairly(Service("s"), [Candidate("node", 4)], 10, 20),
    "release_delayed": lambda jobs: jobs.release_delayed(2),
    "queued_services": lambda jobs: jobs.queued_services(),
    "held": lambda jobs: jobs.held(),
    "queued": lambda jobs: jobs.queued("s", "ann", 100),
    "due_batches": lambda jobs: jobs.due_batches(["s"], 100),
    "in_states": lambda jobs: jobs.in_states(states.AT_AGENT, "node"),
    "to_cancel": lambda jobs: jobs.to_cancel(),
    "expired": lambda jobs: jobs.expired(5, 200),
    "longest_queued": lambda jobs: jobs.longest_queued("s", 100),
    "overdue": lambda jobs: jobs.overdue("s", 0, 10**9, 100),
    "broken_dependencies": lambda jobs: jobs.broken_dependencies(),
    "repair_dependencies": lambda jobs: jobs.repair_dependencies(10**9),
    "waiting_for": lambda jobs: jobs.waiting_for(5),
    "counts": lambda jobs: jobs.counts(Filter(user_id="ann"), 1_000),
    "counts of the top level": lambda jobs: jobs.counts(Filter(top_level=True), 1_000),
    "users": lambda jobs: jobs.users("", 50),
    "waiting_users": lambda jobs: jobs.waiting_users("s", 50, 100),
    "files_in_use": lambda jobs: jobs.files_in_use(["a", "b"]),
}


def listing(where: Filter) -> Call:
    return lambda jobs: jobs.page(where, None, 50)


LISTS = {
    f"list {where}": listing(where)
    for where in (
        Filter(*given)
        for given in itertools.product(
            (None, "ann", "bob"),
            (None, "s", "t"),
            (None, JobState.FAILED, JobState.RUNNING),
            (None, "x", "y"),
            (None, "portal", "other"),
        )
    )
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
TOP_LEVEL: tuple[dict[str, Any], ...] = (
    {},
    {"user_id": "ann"},
    {"user_id": "bob"},
    {"service": "s"},
    {"user_id": "ann", "service": "s"},
    {"state": JobState.COMPLETED},
    {"state": JobState.RUNNING},
    {"tag": "x"},
    {"text": "nowhere"},
    {"among": (JobState.FAILED, JobState.RUNNING)},
)
BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {"user_id": "bob"},
    {"tag": "x"},
    {"submitted_by": "other"},
)
LISTS |= {
    f"list {where}": listing(where)
    for where in (Filter(**(given | more)) for given in CHOICES for more in BESIDE)
}
LISTS |= {
    f"list {where}": listing(where)
    for where in (Filter(top_level=True, **given) for given in TOP_LEVEL)
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filled")


async def test_sweeps_and_lists_cost_the_same_however_much_there_is(folders: Path) -> None:
    counts: dict[int, dict[str, int]] = {}
    for many in (FEW, MANY):
        database = await filled(folders / f"{many}.sqlite", many)
        try:
            counts[many] = {
                name: await steps(database, call) for name, call in (SWEEPS | LISTS).items()
            }
        finally:
            await database.close()
    grown = {
        name: (few, counts[MANY][name])
        for name, few in counts[FEW].items()
        if counts[MANY][name] > few * 1.2 + 5
    }
    assert grown == {}


async def test_what_may_be_sent_is_read_from_the_index_in_its_order(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "empty.sqlite", MIGRATIONS)
    plan = await database.rows(
        f"EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE {READY} AND service = 's' "
        "AND user_id = 'ann' ORDER BY priority DESC, id LIMIT 5"
    )
    await database.close()
    steps = [row["detail"] for row in plan]
    assert any("jobs_queued" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


DELIVERIES = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :many)
    INSERT INTO deliveries (job_id, user_id, principal, url, target, event,
                            body, next_at, created_at)
    SELECT n, 'ann', :principal,
           'https://' || :host || CASE WHEN :one THEN '' ELSE n END || '/',
           'https://' || :host || CASE WHEN :one THEN '' ELSE n END || ':443',
           'job.ended', '{}', :next_at, 1
    FROM numbers
"""


async def deliver(database: Database, principal: str, host: str, many: int, next_at: int) -> None:
    values = {"principal": principal, "host": host, "many": many, "next_at": next_at, "one": True}
    await database._writer.rows(DELIVERIES, values)


@pytest.mark.parametrize("of_one_portal", [True, False])
async def test_a_dead_receiver_makes_no_look_for_webhooks_longer(
    tmp_path: Path, of_one_portal: bool
) -> None:
    counts, other = [], "ann" if of_one_portal else "bob"
    for many in (FEW, MANY):
        database = await Database.open(tmp_path / f"{many}.sqlite", MIGRATIONS)
        await deliver(database, "ann", "dead", many, 1)
        await deliver(database, "ann", "late", 1, 1_000)
        await deliver(database, other, "well", 3, 2)

        async def look(jobs: SqlJobs, database: Database = database) -> None:
            deliveries = SqlDeliveries(database)
            targets = {"https://dead:443"} if of_one_portal else set()
            principals = set() if of_one_portal else {"ann"}
            found = await deliveries.due(10, 32, targets=targets, principals=principals)
            assert found
            assert {one.url for one in found} == {"https://well/"}

        counts.append(await steps(database, look))
        await database.close()
    assert counts[1] <= counts[0] + 2


async def test_a_receiver_is_found_however_many_others_have_to_wait(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "x.sqlite", MIGRATIONS)
    await deliver(database, "ann", "dead", 1_000, 1)
    values = {"principal": "ann", "host": "a", "many": 1_000, "next_at": 1_000, "one": False}
    await database._writer.rows(DELIVERIES, values)
    await deliver(database, "ann", "well", 1, 2)
    deliveries = SqlDeliveries(database)
    found = []
    for _ in range(10):
        found += await deliveries.due(10, 32, targets={"https://dead:443"}, principals=())
    await database.close()
    assert {one.url for one in found} == {"https://well/"}
