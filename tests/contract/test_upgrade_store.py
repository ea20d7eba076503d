"""What the schema's steps make of the rows of the first release, and the way back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from server.domain.jobs import Bundle
from server.domain.placement import Candidate
from server.domain.service import Service
from server.ports import Filter
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.sqlite.migrations import migrate
from shared.wire import JobState
from tests.contract.store.conftest import new
from tests.support.first_release import lay_out


async def test_waiting_delayed_and_ended_jobs_are_where_they_belong(tmp_path: Path) -> None:
    path = lay_out("server", tmp_path / "data")
    with closing(sqlite3.connect(path)) as before, before:
        before.execute("UPDATE jobs SET not_before = 5 WHERE id = 6")  # over long ago
        before.execute("UPDATE jobs SET state = 'Cleaned', bundle_file = NULL WHERE id = 2")
        before.execute("INSERT INTO idempotency_keys VALUES ('1', 'gone', 2, 9), ('1', 'k', 1, 9)")
        before.execute("INSERT INTO job_tags VALUES ('t', 1), ('t', 7)")
    database = await Database.open(path, MIGRATIONS)
    jobs = SqlJobs(database, lambda job: None)
    service, candidates = Service("example"), [Candidate("node", None)]
    try:
        assert [job.id for job in await jobs.claim_fairly(service, candidates, 9, 9)] == [7]
        now = 4_000_000_000_000_000
        assert await jobs.release_delayed(now) == 1
        assert [job.id for job in await jobs.claim_fairly(service, candidates, 9, 9)] == [6]
        listed = {
            where: [job.id for job in (await jobs.page(where, None, 50))[0]]
            for where in (
                Filter(),
                Filter(user_id="1", state=JobState.RUNNING),
                Filter(service="example", tag="t"),
                Filter(state=JobState.CANCELLED),
            )
        }
        assert list(listed.values()) == [[7, 6, 5, 4, 3, 2, 1], [5, 4], [7, 1], [3]]
        assert await jobs.by_idempotency_key("1", "gone") is None
        known = await jobs.by_idempotency_key("1", "k")
        assert known is not None
        assert known.id == 1
        assert await jobs.cleaned_services() == ["example"]
        assert await jobs.forget("example", now, 9) == 1
        assert (await jobs.insert(new(), "queued"))[0].id == 8
    finally:
        await database.close()


async def test_jobs_that_were_at_an_agent_have_their_last_attempt_and_bundles_are_counted(
    tmp_path: Path,
) -> None:
    path = lay_out("server", tmp_path / "data")
    with closing(sqlite3.connect(path)) as before, before:
        # Job 7 has the content of job 6, in a file of its own.
        before.execute(
            """
            UPDATE jobs SET (bundle_digest, bundle_size) = (
                SELECT bundle_digest, bundle_size FROM jobs WHERE id = 6
            ) WHERE id = 7
            """
        )
        stored = dict(before.execute("SELECT id, result_file FROM jobs").fetchall())
        files = dict(before.execute("SELECT id, bundle_file FROM jobs").fetchall())
    database = await Database.open(path, MIGRATIONS)
    jobs = SqlJobs(database, lambda job: None)
    try:
        for job_id in range(1, 8):
            job = await jobs.get(job_id)
            attempts = await jobs.attempts(job_id)
            if job.agent is None:
                assert attempts == [], job
                continue
            (attempt,) = attempts
            assert (attempt.number, attempt.agent, attempt.state) == (
                job.attempt,
                job.agent,
                job.state,
            )
            assert (attempt.payload_id, attempt.exit_code) == (job.payload_id, job.exit_code)
            assert attempt.limits == job.limits
            assert (attempt.result.file if attempt.result else None) == stored[job_id]
            assert (attempt.ended_at is not None) == job.ended
        # The copy of the database from before needs its files, whatever the Cleaner removes.
        everything = [name for name in (*files.values(), *stored.values()) if name]
        assert await jobs.files_in_use(everything) == set(everything)
        for job_id, file in files.items():
            job = await jobs.get(job_id)
            assert (job.bundle.file if job.bundle else None) == file
        content = (await jobs.get(7)).bundle
        assert content is not None
        added, _ = await jobs.insert(
            new(bundle=Bundle("f" * 32, content.size, content.digest)), "queued"
        )
        assert added.bundle == content
    finally:
        await database.close()


def upgrade_steps(path: Path, many: int) -> int:
    """Steps of SQLite's virtual machine, in hundreds, to upgrade a database with more jobs, each
    with a bundle of its own.
    """
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(jobs)")]
        values = ["9 + n" if c == "id" else "n" if c == "bundle_digest" else c for c in columns]
        values = ["'f' || n" if value == "bundle_file" else value for value in values]
        database.execute(
            "WITH RECURSIVE numbers (n) AS "
            f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {many}) "
            f"INSERT INTO jobs SELECT {', '.join(values)} FROM jobs, numbers WHERE jobs.id = 1"
        )
        database.set_progress_handler(step, 100)
        migrate(database, path, MIGRATIONS)
    return count


def test_an_upgrade_costs_as_much_for_each_job_however_many_there_are(tmp_path: Path) -> None:
    few = upgrade_steps(lay_out("server", tmp_path / "few"), 200)
    many = upgrade_steps(lay_out("server", tmp_path / "many"), 2_000)
    assert many < 12 * few
