"""Each index is there for a query, whose plan uses it; and none of these reads a whole table."""

import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from server.store import (
    audit,
    batches,
    bundles,
    pages,
    requests,
    retention,
    schedules,
    tokens,
    users,
    webhooks,
)
from server.store import jobs as store_jobs
from server.store.audit import AuditFilter
from server.store.migrations import MIGRATIONS
from server.store.pages import Filter
from server.store.tokens import TokenFilter
from shared.sqlite.database import Database
from shared.wire import JobState, Reason
from tests.kit.store import Store
from tests.store.test_cost import SWEEPS, Call, listing

Plans = list[str]


def reads(function: Callable[..., object], *args: Any, **how: Any) -> Call:
    return lambda jobs: jobs.database.read(function, *args, **how)


def writes(function: Callable[..., object], *args: Any) -> Call:
    return lambda jobs: jobs.database.write(function, *args)


def counting(**given: Any) -> Call:
    return lambda jobs: jobs.counts(Filter(**given), 1_000)


_BOTH: dict[str, Any] = {"user_id": "ann", "service": "s"}
USES: dict[str, Call] = {
    # What may be claimed, and what has to be done by loops.
    "jobs_queued": SWEEPS["claim_fairly"],
    "jobs_held": SWEEPS["in_states"],
    "jobs_delayed": SWEEPS["release_delayed"],
    "jobs_to_cancel": SWEEPS["to_cancel"],
    "jobs_expiring": SWEEPS["expired"],
    "jobs_to_delete": lambda jobs: jobs.to_delete(100),
    "jobs_cleaned": lambda jobs: jobs.forget("s", 1, 100),
    "jobs_by_wait": SWEEPS["of_service"],
    "jobs_by_deadline": SWEEPS["overdue"],
    "jobs_deferred": SWEEPS["due_batches"],
    "jobs_waiting": SWEEPS["broken_dependencies"],
    "jobs_held_back": writes(store_jobs._release_child, 1, 1),
    "jobs_open_of_schedule": lambda jobs: jobs.database.rows(schedules._OPEN, {"id": 1}),
    # A batch's children, and what a user's jobs take.
    "batches_with_rest": writes(retention.expire_children, 1),
    "jobs_of_parent": reads(batches.children_of, 1, 10),
    "jobs_stored": lambda jobs: jobs.stored("ann"),
    # Lists and counts.
    "jobs_listed": counting(top_level=True),
    "jobs_listed_by_service": counting(service="s"),
    "jobs_listed_by_user": reads(pages.ids, Filter(user_id="ann", top_level=True), None, 100),
    "jobs_listed_by_both": counting(user_id="ann", service="s"),
    "jobs_by_submitter": listing(Filter(submitted_by="portal")),
    "jobs_by_time": listing(Filter(since=1)),
    "jobs_by_reason": listing(Filter(reason=Reason.TIMEOUT)),
    "jobs_by_name": listing(Filter(name="nightly")),
    "jobs_dead": listing(Filter(dead_letter=True)),
    "jobs_of_schedule": listing(Filter(schedule_id=1)),
    # What belongs to a job, or depends on it.
    "job_tags_of_job": writes(retention.delete_rows, [1]),
    "events_of_job": lambda jobs: jobs.moves(1, 100),
    "jobs_by_key": reads(requests.job_of_key, "ann", "k"),
    "jobs_with_key": writes(retention.forget_old, 1),
    "attempts_results": SWEEPS["files_in_use"],
    "bundles_by_content": reads(bundles.can_share, "d", 1),
    "dependencies_on": SWEEPS["waiting_for"],
    # The rest.
    "schedules_of_user": reads(users.schedules, "ann"),
    "tokens_by_name": reads(tokens.page, TokenFilter(name="x"), 10, None),
    "tokens_by_time": reads(tokens.page, TokenFilter(), 10, None),
    "used_tickets_by_end": writes(retention.forget_old, 1),
    "uploaded_by_day": writes(retention.forget_old, 1),
    "daily_usage_by_day": writes(retention.forget_old, 1),
    "audit_by_time": writes(audit.remove, 1, 10),
    "audit_by_principal": reads(audit.page, AuditFilter(principal="x"), 10, 99),
    "audit_by_target": reads(audit.page, AuditFilter(target="1"), 10, 99),
    "deliveries_due": reads(webhooks.next_at),
    "deliveries_pending": reads(webhooks.oldest),
    "deliveries_of_target": reads(webhooks._first_of_each, 1, ("", "")),
    "deliveries_of_job": reads(webhooks.of_job, 1),
    "deliveries_of_user": reads(users.found, "ann"),
}
"""Index -> a query that would read far more without it."""
FURTHER: dict[str, Call] = {
    "user": counting(user_id="ann"),
    "user and service": counting(**_BOTH),
    "in state": listing(Filter(state=JobState.FAILED, top_level=True, **_BOTH)),
}
"""Other queries that read no whole table."""
LARGE = ("jobs", "events", "attempts", "dependencies", "job_tags", "deliveries", "bundles")


@pytest.fixture
async def planned(tmp_path: Path) -> AsyncIterator[tuple[Store, Plans]]:
    """A store, and how SQLite carries out each of its statements."""
    plans: Plans = []

    class Explaining(sqlite3.Connection):
        def execute(self, sql: str, *params: Any) -> sqlite3.Cursor:
            if sql.lstrip().startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")):
                plan = super().execute(f"EXPLAIN QUERY PLAN {sql}", *params)
                plans.extend(row[3] for row in plan.fetchall())
            return super().execute(sql, *params)

    real = sqlite3.connect
    with mock.patch("sqlite3.connect", lambda *args, **how: real(*args, factory=Explaining, **how)):
        database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS)
    yield Store(database, []), plans
    await database.close()


async def test_each_index_has_a_query_that_uses_it(planned: tuple[Store, Plans]) -> None:
    jobs, plans = planned
    indexes = await jobs.rows("SELECT name FROM sqlite_master WHERE type = 'index' AND sql <> ''")
    # Of one name there is one agent: that index is a rule.
    assert set(USES) | {"agents_by_name"} == {row["name"] for row in indexes}
    idle = {}
    for index, call in USES.items():
        plans.clear()
        await call(jobs)
        if index not in re.findall(r" INDEX (\w+)", "\n".join(plans)):
            idle[index] = list(plans)
    assert idle == {}


async def test_no_query_reads_a_whole_table(planned: tuple[Store, Plans]) -> None:
    jobs, plans = planned
    scans = {}
    for name, call in (SWEEPS | USES | FURTHER).items():
        plans.clear()
        await call(jobs)
        if found := [step for step in plans if step in {f"SCAN {table}" for table in LARGE}]:
            scans[name] = found
    assert scans == {}
