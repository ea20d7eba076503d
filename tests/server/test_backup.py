"""``ferryman backup`` and ``restore`` on data folders as the server writes them: what is copied,
what is refused, and what a restore makes of folder and database.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from server.data_folder import UNKNOWN, WrongDatabase, open_data, read_record, write_record
from server.domain.jobs import Bundle, FileKind, Job, Move, NewJob
from server.maintenance.backup import back_up
from server.maintenance.files import bring
from server.maintenance.restore import as_another
from server.settings.tables import ServerTable
from server.storage.folder import stored_path
from server.store import copies
from server.store.identity import server_identity
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from server.store.stored_rows import StoredFile
from shared.clock import RealClock
from shared.files.bundles.reader import BundleReader
from shared.files.durable import FolderLock
from shared.sqlite.copies import copy_database
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.kit.inline_database import SimulatedCrash
from tests.kit.store import Store
from tests.server.data_folder import RESULT, Folder, call, filled, no_settings_of_others, rows

__all__ = ["no_settings_of_others"]
pytestmark = pytest.mark.usefixtures("no_settings_of_others")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return filled(tmp_path / "data")


def files_of(folder: Path) -> dict[str, int]:
    """Name -> mode, of files and folders."""
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.parametrize("linked", [True, False])
def test_what_is_restored_is_what_was_there(
    folder: Folder, tmp_path: Path, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linked:

        def refused(*_: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr("os.link", refused)
    reply = call("backup", tmp_path / "copy", "--data-dir", folder.path, "--verify", "--json")
    made = json.loads(reply)
    assert (made["jobs"], made["bundles"], made["results"], made["incomplete"]) == (3, 3, 1, [])
    assert made["result_bytes"] == len(RESULT)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new", "--verify")
    for sql in ("SELECT * FROM jobs", "SELECT * FROM events", "SELECT * FROM job_tags"):
        was, now = (rows(path / "ferryman.sqlite", sql) for path in (folder.path, tmp_path / "new"))
        assert was == now != []
    for bundle, digest, result in rows(
        tmp_path / "new" / "ferryman.sqlite",
        "SELECT bundle_file, bundle_digest, result_file FROM jobs",
    ):
        with BundleReader(stored_path(tmp_path / "new", FileKind.BUNDLE, bundle)) as reader:
            assert reader.summary().digest == digest
        if result:
            assert stored_path(tmp_path / "new", FileKind.RESULT, result).read_bytes() == RESULT


def test_backup_and_restored_folder_are_closed_to_others(folder: Folder, tmp_path: Path) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    for made in (tmp_path / "copy", tmp_path / "new"):
        modes = files_of(made)
        assert {modes[name] for name in modes if (made / name).is_dir()} == {0o700}
        assert {modes[name] for name in modes if (made / name).is_file()} == {0o600}
    assert set(files_of(tmp_path)) & {".copy.partial", "new/ferryman.sqlite.restoring"} == set()


def test_the_restored_server_is_another_and_gives_no_number_twice(
    folder: Folder, tmp_path: Path
) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    meta = dict(rows(tmp_path / "new" / "ferryman.sqlite", "SELECT key, value FROM meta"))
    assert meta["server"] not in ("", "the-first")
    assert json.loads(meta["former"]) == ["the-first"]

    async def next_job() -> tuple[Job, int]:
        """And the number of its first event."""
        database = await Database.open(tmp_path / "new" / "ferryman.sqlite", MIGRATIONS)
        try:
            assert await server_identity(database, "x") == (meta["server"], ("the-first",))
            jobs, new = SqlJobs(database, lambda job: None), Bundle("b", 1, "d")
            job, _ = await jobs.insert(NewJob("ann", "example", new, Limits(), 60.0, 10), "queued")
            return job, (await jobs.events(job.id))[0].seq
        finally:
            await database.close()

    job, seq = asyncio.run(next_job())
    assert job.id > 1_000_003
    assert seq > 10_000_000


def test_a_second_restore_knows_both_former_servers_and_a_rehearsal_none(
    folder: Folder, tmp_path: Path
) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new", "--skip-ids", 7)
    first = dict(rows(tmp_path / "new" / "ferryman.sqlite", "SELECT key, value FROM meta"))
    assert rows(tmp_path / "new" / "ferryman.sqlite", "SELECT seq FROM sqlite_sequence")[0] == (10,)
    call("backup", tmp_path / "again", "--data-dir", tmp_path / "new")
    call("restore", tmp_path / "again", "--data-dir", tmp_path / "newer")
    second = dict(rows(tmp_path / "newer" / "ferryman.sqlite", "SELECT key, value FROM meta"))
    assert json.loads(second["former"]) == ["the-first", first["server"]]
    call("restore", tmp_path / "again", "--data-dir", tmp_path / "tried", "--rehearsal")
    third = dict(rows(tmp_path / "tried" / "ferryman.sqlite", "SELECT key, value FROM meta"))
    assert json.loads(third["former"]) == []
    assert third["server"] not in (first["server"], second["server"])


def test_a_job_that_is_removed_meanwhile_is_left_out(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(source: sqlite3.Connection, target: Path) -> None:
        copy_database(source, target)
        ((name,),) = rows(folder.database_path, "SELECT result_file FROM jobs WHERE id = 1")
        source.execute(
            "UPDATE jobs SET state = 'Cleaned', bundle_file = NULL, result_file = NULL WHERE id = 1"
        )
        source.execute("UPDATE attempts SET result_file = NULL WHERE job_id = 1")
        stored_path(folder.path, FileKind.RESULT, name).unlink()

    monkeypatch.setattr("server.maintenance.backup.copy_database", copy)
    made = json.loads(call("backup", tmp_path / "copy", "--data-dir", folder.path, "--json"))
    assert (made["jobs"], made["incomplete"]) == (2, [])
    found = tmp_path / "copy" / "ferryman.sqlite"
    assert rows(found, "SELECT id FROM jobs ORDER BY id") == [(2,), (3,)]
    assert rows(found, "SELECT DISTINCT job_id FROM events ORDER BY job_id") == [(2,), (3,)]
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")


def give_to_schedule(path: Path) -> str:
    """The bundle of job 1 is of a schedule alone; its name."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(
            "INSERT INTO schedules (name, user_id, service, cron, time_zone, "
            "fields, bundle_file, bundle_size, bundle_digest, next_at, created_at) "
            "SELECT 'nightly', user_id, service, '0 0 * * *', 'UTC', '{}', "
            "bundle_file, bundle_size, bundle_digest, 1, 1 FROM jobs WHERE id = 1"
        )
        raw.execute("UPDATE jobs SET state = 'Cleaned', bundle_file = NULL WHERE id = 1")
        raw.commit()
        return str(raw.execute("SELECT bundle_file FROM schedules").fetchone()[0])


def test_a_bundle_that_only_a_schedule_has_is_in_the_backup(folder: Folder, tmp_path: Path) -> None:
    name = give_to_schedule(folder.database_path)
    made = json.loads(call("backup", tmp_path / "copy", "--data-dir", folder.path, "--json"))
    assert made["incomplete"] == []
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    assert stored_path(tmp_path / "new", FileKind.BUNDLE, name).exists()
    stored_path(folder.path, FileKind.BUNDLE, name).unlink()
    said = call("backup", tmp_path / "lost", "--data-dir", folder.path, code=1)
    assert f"missing file of schedule 1: bundles/{name}" in said


def test_what_a_job_left_for_children_that_are_not_made_yet_is_in_the_backup(
    folder: Folder, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(folder.database_path)) as raw:
        raw.execute(
            "INSERT INTO batches (parent_id, total, bundle_file, bundle_size, bundle_digest) "
            "SELECT 2, 3, bundle_file, bundle_size, bundle_digest FROM jobs WHERE id = 1"
        )
        raw.execute("UPDATE jobs SET state = 'Cleaned', bundle_file = NULL WHERE id = 1")
        raw.commit()
        name = str(raw.execute("SELECT bundle_file FROM batches").fetchone()[0])
    made = json.loads(call("backup", tmp_path / "copy", "--data-dir", folder.path, "--json"))
    assert made["incomplete"] == []
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    assert stored_path(tmp_path / "new", FileKind.BUNDLE, name).exists()
    stored_path(folder.path, FileKind.BUNDLE, name).unlink()
    said = call("backup", tmp_path / "lost", "--data-dir", folder.path, code=1)
    assert f"missing file of job 2: bundles/{name}" in said


def test_a_schedule_that_is_removed_meanwhile_is_left_out(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = give_to_schedule(folder.database_path)

    def copy(source: sqlite3.Connection, target: Path) -> None:
        copy_database(source, target)
        source.execute("DELETE FROM schedules")
        source.execute("DELETE FROM bundles WHERE file = ?", (name,))
        stored_path(folder.path, FileKind.BUNDLE, name).unlink()

    monkeypatch.setattr("server.maintenance.backup.copy_database", copy)
    made = json.loads(call("backup", tmp_path / "copy", "--data-dir", folder.path, "--json"))
    assert made["incomplete"] == []
    found = tmp_path / "copy" / "ferryman.sqlite"
    assert rows(found, "SELECT count(*) FROM schedules") == [(0,)]
    assert rows(found, f"SELECT count(*) FROM bundles WHERE file = '{name}'") == [(0,)]


@pytest.mark.parametrize(
    ("kind", "how", "option"),
    [
        ("results", "gone", None),
        ("bundles", "short", None),
        ("results", "changed", "--verify"),
        ("bundles", "changed", "--verify"),
    ],
)
def test_what_the_server_itself_has_lost_is_reported(
    folder: Folder, tmp_path: Path, kind: str, how: str, option: str | None
) -> None:
    column = f"{kind.removesuffix('s')}_file"
    ((name,),) = rows(folder.database_path, f"SELECT {column} FROM jobs WHERE id = 1")
    path = stored_path(folder.path, FileKind(kind), name)
    spoil(path, how)
    words = ["backup", tmp_path / "copy", "--data-dir", folder.path, *([option] if option else [])]
    assert f"of job 1: {kind}/{name}" in call(*words, code=1)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")


def test_of_several_results_in_one_file_the_damaged_one_is_reported(
    folder: Folder, tmp_path: Path
) -> None:
    ((name,),) = rows(folder.database_path, "SELECT result_file FROM jobs WHERE id = 1")
    stored = stored_path(folder.path, FileKind.RESULT, name)
    stored.write_bytes(RESULT + b"damaged" + RESULT)
    sections = [(1, 0, RESULT), (2, len(RESULT), b"another"), (3, len(RESULT) + 7, RESULT)]
    files = [
        StoredFile(job, FileKind.RESULT, name, len(data), hashlib.sha256(data).hexdigest(), offset)
        for job, offset, data in sections
    ]
    cut = StoredFile(4, FileKind.RESULT, name, len(RESULT), files[0].digest, stored.stat().st_size)
    for digests, damaged in ((True, [2, 4]), (False, [4])):
        (target := tmp_path / f"copy-{digests}").mkdir()
        brought = bring(folder.path, target, [*files, cut], digests=digests)
        assert [file.job_id for file in brought.damaged] == damaged
        assert brought.files[FileKind.RESULT] == 1


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "short":
        path.write_bytes(content[:-1])
    elif how == "changed":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize(
    ("name", "how", "option"),
    [
        ("results", "gone", None),
        ("results", "changed", "--verify"),
        ("ferryman.sqlite", "gone", None),
        ("backup.json", "gone", None),
    ],
)
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    folder: Folder, tmp_path: Path, name: str, how: str, option: str | None
) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    shutil.rmtree(folder.path)
    found = tmp_path / "copy" / name
    spoil(next(path for path in (found, *found.rglob("*")) if path.is_file()), how)
    words = [tmp_path / "copy", "--data-dir", tmp_path / "new", *([option] if option else [])]
    call("restore", *words, code=74)
    assert [path.name for path in (tmp_path / "new").glob("*") if path.name != "lock"] == []


def test_nothing_is_written_over(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    reply = call("backup", tmp_path / "there", "--data-dir", folder.path, code=73)
    assert "exists already" in reply
    reply = call("backup", tmp_path / "away" / "today", "--data-dir", folder.path, code=73)
    assert f"{tmp_path / 'away'}: no such folder: make it first" in reply
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    before = files_of(folder.path)
    assert "is there already" in call(
        "restore", tmp_path / "copy", "--data-dir", folder.path, code=73
    )
    (tmp_path / "empty").mkdir()
    lock = FolderLock(tmp_path / "empty")
    assert "in use" in call("restore", tmp_path / "copy", "--data-dir", tmp_path / "empty", code=73)
    lock.close()
    assert {**before, "lock": 0o600} == files_of(folder.path)
    (tmp_path / "elsewhere.toml").write_text(
        f'[server]\ndb_path = "{folder.database_path}"\ndata_dir = "{tmp_path / "empty"}"\n'
    )
    call("restore", tmp_path / "copy", "--config", tmp_path / "elsewhere.toml", code=73)


def test_a_folder_without_a_server_is_no_source(tmp_path: Path) -> None:
    reply = call("backup", tmp_path / "copy", "--data-dir", tmp_path / "typo", code=73)
    assert "no database of a server" in reply
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_a_newer_version_is_neither_backed_up_nor_restored(
    folder: Folder, tmp_path: Path
) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    for path in (folder.database_path, tmp_path / "copy" / "ferryman.sqlite"):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("INSERT INTO schema_version VALUES (99)")
    assert "newer version" in call("backup", tmp_path / "other", "--data-dir", folder.path, code=74)
    assert "newer version" in call(
        "restore", tmp_path / "copy", "--data-dir", tmp_path / "new", code=74
    )
    assert not (tmp_path / "other").exists()


async def test_backups_are_whole_while_jobs_come_and_go(folder: Folder, tmp_path: Path) -> None:
    """Jobs complete and are cleaned or deleted without a pause; nothing waits for a backup."""
    database = await Database.open(folder.database_path, MIGRATIONS)
    jobs = Store(database, [])
    done = asyncio.Event()

    async def come_and_go() -> int:
        count = 0
        while not done.is_set():
            job = await folder.add(jobs, "dan", to=JobState.COMPLETED)
            if count % 2:
                move = Move(job.id, 1, JobState.COMPLETED, JobState.CLEANED, 13, "")
                cleaned, files = await jobs.clean([move])
                assert cleaned == 1
            else:
                files = await jobs.delete(job.id)
            await folder.storage.delete(files)
            count += 1
        return count

    users = [asyncio.create_task(come_and_go()) for _ in range(3)]
    for number in range(4):
        target = tmp_path / f"copy{number}"
        made = await asyncio.to_thread(
            back_up, folder.path, folder.database_path, target, RealClock(), "x", digests=True
        )
        assert made.incomplete == ()
        words = ("restore", target, "--data-dir", tmp_path / f"new{number}", "--verify")
        await asyncio.to_thread(call, *words)
    done.set()
    assert sum(await asyncio.gather(*users)) > 10
    await database.close()


# -- what a restore makes of it


def test_a_restored_server_signs_anew_and_names_the_tokens_that_are_good(
    folder: Folder, tmp_path: Path
) -> None:
    """A token that was revoked since the backup is good again, and a used ticket would be."""
    token = (
        "INSERT INTO tokens (id, digest, name, role, created_at, created_by, expires_at, "
        "revoked_at, version) VALUES (?, '', ?, 'operator', 1, 'x', ?, ?, 1)"
    )
    with closing(sqlite3.connect(folder.database_path)) as connection:
        connection.execute("INSERT INTO meta VALUES ('signing_key', 'ab')")
        connection.execute(token, ("t1", "live", None, None))
        connection.execute(token, ("t2", "revoked", None, 2))
        connection.execute(token, ("t3", "expired", 3, None))
        connection.commit()
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    said = call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    assert "live: ferryman token revoke t1" in said
    assert "t2" not in said
    assert "t3" not in said
    meta = dict(rows(tmp_path / "new" / "ferryman.sqlite", "SELECT key, value FROM meta"))
    assert "signing_key" not in meta
    said = call("restore", tmp_path / "copy", "--data-dir", tmp_path / "more", "--json")
    assert json.loads(said)["tokens"] == ["t1"]


def give_delivery(path: Path, job_id: int) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(
            "INSERT INTO deliveries (job_id, user_id, principal, url, "
            "target, event, body, next_at, created_at) VALUES "
            "(?, 'ann', 'ann', 'https://a.example.org/', "
            "'https://a.example.org', 'job.completed', '{}', 5, 5)",
            (job_id,),
        )
        raw.commit()


def test_a_rehearsal_has_nothing_to_deliver(folder: Folder, tmp_path: Path) -> None:
    give_delivery(folder.database_path, 2)
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "tried", "--rehearsal")
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    found = {
        name: (
            rows(path, "SELECT state, next_at FROM deliveries"),
            rows(path, "SELECT count(*) FROM meta WHERE key = 'rehearsal'"),
        )
        for name in ("tried", "new")
        for path in [tmp_path / name / "ferryman.sqlite"]
    }
    assert found["tried"] == ([("failed", None)], [(1,)])
    assert found["new"] == ([("pending", 5)], [(0,)])


def test_a_job_that_is_left_out_leaves_no_delivery(folder: Folder) -> None:
    for job_id in (1, 2):
        give_delivery(folder.database_path, job_id)
    with closing(sqlite3.connect(folder.database_path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        copies.leave_out(connection, [1])
    assert rows(folder.database_path, "SELECT job_id FROM deliveries") == [(2,)]


def test_a_folder_that_had_a_server_gets_the_restored_one_with_numbers_above_its_own(
    folder: Folder, tmp_path: Path
) -> None:
    """What is left of a folder whose files and database are gone is no obstacle."""
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    new = tmp_path / "new"
    (new / UNKNOWN).mkdir(parents=True)
    write_record(new, copies.Marks("gone", 5_000_000, 9, 3))
    (new / "clock.json").write_text("{}")
    said = call("restore", tmp_path / "copy", "--data-dir", new, "--json")
    assert json.loads(said)["next_id"] == 6_000_001
    record = read_record(new)
    assert record is not None
    ((server,),) = rows(new / "ferryman.sqlite", "SELECT value FROM meta WHERE key = 'server'")
    assert (record.server, record.last_job) == (server, 6_000_000)


def test_a_restore_that_is_killed_before_its_end_leaves_no_folder_to_start_with(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)

    def killed(*how: Any, **more: Any) -> int:
        as_another(*how, **more)
        raise SimulatedCrash

    with monkeypatch.context() as patched:
        patched.setattr("server.maintenance.restore.as_another", killed)
        patched.setattr("server.maintenance.restore.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(SimulatedCrash):
            call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")

    async def start() -> None:
        async with AsyncExitStack() as stack:
            await open_data(ServerTable(data_dir=tmp_path / "new"), RealClock(), stack)

    with pytest.raises(WrongDatabase, match="is missing"):
        asyncio.run(start())
