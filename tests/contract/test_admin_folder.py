"""``ferryman admin`` on data folders as the server writes them, with something wrong in each."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server.data_folder import mismatch, write_record
from server.domain.files import FileKind
from server.maintenance.__main__ import program
from server.maintenance.verify import OldSchema
from server.storage.folder import stored_path
from server.store import copies
from server.store.identity import server_identity
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.clock import RealClock
from shared.files.locks import FolderLock
from shared.sqlite.copies import copy_database
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.contract.test_backup import Folder, rows
from tests.support.dev_program import environment
from tests.support.first_release import lay_out
from tests.support.past_week import write_past_week


@pytest.fixture(autouse=True)
def _no_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)


def packed() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("out.txt", "1")
    return content.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr("tests.contract.test_backup.RESULT", packed())
    folder = Folder(tmp_path / "data")

    async def fill() -> None:
        database = await Database.open(folder.database_path, MIGRATIONS)
        await server_identity(database, "the-first")
        jobs = SqlJobs(database, lambda job: None)
        for user, state in (
            ("ann", JobState.COMPLETED),
            ("bob", JobState.COMPLETED),
            ("cy", JobState.QUEUED),
        ):
            await folder.add(jobs, user, to=state)
        await database.close()

    asyncio.run(fill())
    return folder


def admin(folder: Folder, *words: object, code: int = 0) -> str:
    given = ["admin", *(str(word) for word in words), "--data-dir", str(folder.path)]
    done = CliRunner().invoke(program, given, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def change(folder: Folder, sql: str) -> None:
    with closing(sqlite3.connect(folder.database_path)) as database, database:
        database.executescript(sql)


def stored(folder: Folder, kind: FileKind, number: int = 0) -> Path:
    column, table = {
        FileKind.BUNDLE: ("file", "bundles"),
        FileKind.RESULT: ("result_file", "attempts"),
    }[kind]
    sql = f"SELECT {column} FROM {table} ORDER BY {column} LIMIT 1 OFFSET {number}"
    return stored_path(folder.path, kind, rows(folder.database_path, sql)[0][0])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_size_is_predicted_from_the_last_week(folder: Folder, tmp_path: Path) -> None:
    assert "nothing is predicted before a day of history" in admin(folder, "size")
    assert json.loads(admin(folder, "size", "--json"))["growth"] is None
    asyncio.run(write_past_week(folder.database_path, RealClock().now()))
    rows_of = "INSERT INTO services (name, settings) VALUES"
    change(
        folder,
        f"""{rows_of} ('folding', '{{"forget_after": "0s"}}');
        {rows_of} ('docking', '{{"forget_after": "nonsense"}}')""",
    )
    shown = admin(folder, "size")
    assert "database grows for ever, files settle at about" in shown
    assert "never forgotten: the jobs of folding" in shown
    growth = json.loads(admin(folder, "size", "--json"))["growth"]
    assert growth["database_bytes"] is None
    assert growth["jobs_a_day"] > 500
    config = tmp_path / "server.toml"
    config.write_text("[services.folding]\nforget_after = '1d'\n")
    assert "database settles at about" in admin(folder, "size", "--config", config)


def test_a_sound_folder_is_found_sound_beside_a_server_too(folder: Folder) -> None:
    shown = admin(folder, "verify")
    assert "3 jobs" in shown
    assert "2 results" in shown
    assert "all is well" in shown
    lock = FolderLock(folder.path)
    try:
        assert json.loads(admin(folder, "verify", "--json"))["left"] == 0
        admin(folder, "verify", "--repair", code=73)
        admin(folder, "vacuum", code=73)
        admin(folder, "rollback", "--yes", code=74)
    finally:
        lock.close()


@pytest.mark.parametrize("kind", list(FileKind))
def test_a_flipped_byte_is_found_wherever_it_is(folder: Folder, kind: FileKind) -> None:
    path = stored(folder, kind)
    whole = path.read_bytes()
    for at in (40, len(whole) // 2, len(whole) - 5):
        flip(path, at)
        found = json.loads(admin(folder, "verify", "--json", code=1))["findings"]
        assert [one for one in found if path.name in one["message"]], f"byte {at}"
        path.write_bytes(whole)
    admin(folder, "verify")


def test_a_lost_result_is_given_up_and_its_job_says_so(folder: Folder) -> None:
    stored(folder, FileKind.RESULT).unlink()
    admin(folder, "verify", "--quick", code=1)
    found = json.loads(admin(folder, "verify", "--repair", "--json"))
    assert found["repaired"] == 1
    assert [one["kind"] for one in found["findings"]] == ["missing_file"]
    path = folder.database_path
    sql = "SELECT message FROM jobs WHERE state = 'Completed' AND result_file IS NULL"
    ((message,),) = rows(path, sql)
    assert "its result is lost" in message
    assert rows(path, "SELECT count(*) FROM events WHERE event = 'job.result_lost'") == [(1,)]
    admin(folder, "verify")


def test_a_damaged_bundle_is_named_and_no_later_upload_gets_it(folder: Folder) -> None:
    path = stored(folder, FileKind.BUNDLE)
    flip(path, 40)
    assert path.name in admin(folder, "verify", "--repair", code=1)
    shared = f"SELECT shared FROM bundles WHERE file = '{path.name}'"
    assert rows(folder.database_path, shared) == [(0,)]
    assert path.exists(), "evidence is left"


def test_a_bundle_of_the_same_size_with_other_files_is_found(folder: Folder) -> None:
    one, other = stored(folder, FileKind.BUNDLE), stored(folder, FileKind.BUNDLE, 1)
    if one.stat().st_size != other.stat().st_size:
        other = stored(folder, FileKind.BUNDLE, 2)
    if one.stat().st_size != other.stat().st_size:
        one = stored(folder, FileKind.BUNDLE, 1)
    one.write_bytes(other.read_bytes())
    found = json.loads(admin(folder, "verify", "--json", code=1))["findings"]
    assert [one["kind"] for one in found] == ["wrong_digest"]


def test_a_file_that_cannot_be_read_now_is_not_given_up(folder: Folder) -> None:
    path = stored(folder, FileKind.RESULT)
    whole = path.rename(path.with_name("whole"))
    path.symlink_to(path.name)  # ELOOP, as a failing disk says EIO
    found = json.loads(admin(folder, "verify", "--repair", "--json", code=1))
    assert [(one["kind"], one["repaired"]) for one in found["findings"]] == [
        ("unreadable_file", "")
    ]
    whole.rename(path)
    admin(folder, "verify")


@pytest.mark.parametrize("mount_point", [True, False])
def test_results_on_a_disk_that_is_not_mounted_are_not_given_up(
    folder: Folder, mount_point: bool
) -> None:
    results = folder.path / FileKind.RESULT
    away = results.rename(folder.path / "away")
    if mount_point:
        results.mkdir()
    assert json.loads(admin(folder, "verify", "--repair", "--json", code=1))["repaired"] == 0
    if mount_point:
        results.rmdir()
    away.rename(results)
    admin(folder, "verify")


def test_a_damaged_database_does_not_say_which_files_are_strays(folder: Folder) -> None:
    sql = "SELECT sql FROM sqlite_master WHERE name = 'attempts_results'"
    ((made,),) = rows(folder.database_path, sql)
    other = "PRAGMA writable_schema = on; UPDATE sqlite_master SET sql = '{} WHERE {}' WHERE "
    other += "name = 'attempts_results'"
    index, condition = made.split(" WHERE ")
    change(folder, other.format(index, "result_file IS NULL"))
    change(folder, "REINDEX attempts_results")  # now it lacks all rows that it should have
    change(folder, other.format(index, condition))
    found = json.loads(admin(folder, "verify", "--repair", "--json", code=1))
    assert found["repaired"] == 0
    assert {"database_damaged", "not_repaired"} <= {one["kind"] for one in found["findings"]}
    change(folder, "REINDEX attempts_results")
    admin(folder, "verify")


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b"])
def test_a_folder_may_have_any_name(folder: Folder, name: str) -> None:
    folder.path = folder.path.rename(folder.path.with_name(name))
    admin(folder, "verify")
    admin(folder, "upgrade", "--check")
    assert [path.name for path in folder.path.parent.iterdir()] == [name]


def test_files_without_rows_are_named_and_removed_by_a_repair(folder: Folder) -> None:
    stray = stored_path(folder.path, FileKind.RESULT, f"{'ab' * 10}{'0' * 12}")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"left")
    other = folder.path / "results" / "notes.txt"
    other.write_text("an operator's")
    (folder.path / "staging" / ("f" * 32)).write_bytes(b"half an upload")
    assert stray.name in admin(folder, "verify", code=1)
    assert json.loads(admin(folder, "verify", "--repair", "--json"))["repaired"] == 2
    assert not stray.exists()
    assert other.exists()
    assert list((folder.path / "staging").iterdir()) == []
    admin(folder, "verify")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE jobs SET state = 'Failed' WHERE id = 1", "its history ends with Completed"),
        ("DELETE FROM events WHERE job_id = 1 AND state = 'Processing'", "a gap"),
        ("DELETE FROM events WHERE job_id = 3", "no history"),
        ("UPDATE jobs SET ended_at = NULL WHERE id = 1", "no time of its end"),
        ("UPDATE jobs SET bundle_file = NULL WHERE id = 3", "has no bundle"),
        ("UPDATE jobs SET state = 'Lost' WHERE id = 3", "which there is not"),
        ("UPDATE jobs SET result_file = 'x' WHERE id = 1", "none of its attempts'"),
        ("UPDATE jobs SET attempt = 0 WHERE id = 1", "there is an attempt 1"),
        (
            "UPDATE events SET state = 'Completed' WHERE job_id = 1 AND state = 'Submitted'",
            "a move that there is not",
        ),
        (
            "INSERT INTO job_tags VALUES ('x', 99)",
            "refers to a row of jobs",
        ),
    ],
)
def test_rows_that_contradict_each_other_are_named(folder: Folder, damage: str, words: str) -> None:
    change(folder, damage)
    assert words in admin(folder, "verify", code=1)


COUNTS = {
    "bundle_refs": "UPDATE bundles SET refs = refs + 3",
    "results_size": "UPDATE jobs SET results_size = 5 WHERE id = 1",
    "tags": "DELETE FROM job_tags WHERE job_id = 3",
}


@pytest.mark.parametrize("kind", COUNTS)
def test_what_is_counted_wrongly_is_counted_again(folder: Folder, kind: str) -> None:
    assert admin(folder, "recount") == "all counts are right\n"
    change(folder, COUNTS[kind])
    before = folder.database_path.read_bytes()
    found = json.loads(admin(folder, "recount", "--dry-run", "--json", code=1))
    assert {one["kind"] for one in found["items"]} == {kind}
    assert folder.database_path.read_bytes() == before
    lock = FolderLock(folder.path)  # a server runs
    try:
        assert json.loads(admin(folder, "recount", "--json"))["mended"] == len(found["items"])
    finally:
        lock.close()
    assert admin(folder, "recount") == "all counts are right\n"
    admin(folder, "verify")


def test_a_bundle_that_nobody_uses_any_more_goes(folder: Folder) -> None:
    change(folder, "UPDATE jobs SET bundle_file = NULL WHERE id = 3")
    assert "mended 1 count" in admin(folder, "recount")
    assert rows(folder.database_path, "SELECT min(refs) FROM bundles") == [(1,)]


def test_a_vacuum_gives_back_what_is_free_and_makes_old_files_shrink_by_themselves(
    folder: Folder,
) -> None:
    change(
        folder,
        """
        PRAGMA journal_mode=DELETE; PRAGMA auto_vacuum=NONE; VACUUM;
        CREATE TABLE filler (x BLOB);
        INSERT INTO filler VALUES (zeroblob(1000000));
        DROP TABLE filler;
        """,
    )
    size = json.loads(admin(folder, "size", "--json"))
    assert size["free_bytes"] > 900_000
    done = json.loads(admin(folder, "vacuum", "--json"))
    assert done["after"] < done["before"] - 900_000
    assert rows(folder.database_path, "PRAGMA auto_vacuum") == [(2,)]
    assert "jobs" in admin(folder, "size")
    admin(folder, "verify")


def test_an_old_database_is_upgraded_first(tmp_path: Path) -> None:
    path = tmp_path / "old"
    lay_out("server", path)
    folder = Folder.__new__(Folder)
    folder.path, folder.database_path = path, path / "ferryman.sqlite"
    shown = admin(folder, "upgrade", "--check")
    assert "schema 1" in shown
    assert "about" in shown
    assert "ferryman admin upgrade" in admin(folder, "verify", code=74)
    assert "schema-1" in admin(folder, "upgrade")
    assert "nothing is to be done" in admin(folder, "upgrade")
    assert json.loads(admin(folder, "verify", "--json"))["checked"]["jobs"] == 7
    assert issubclass(OldSchema, Exception)


def test_a_rollback_makes_another_server_of_the_copy(folder: Folder) -> None:
    path = folder.database_path
    with closing(sqlite3.connect(path)) as database:
        copy_database(database, path.with_name(f"{path.name}.schema-{len(MIGRATIONS)}"))
    change(folder, "UPDATE jobs SET name = 'since'")
    stored(folder, FileKind.RESULT).unlink()  # its job was deleted since

    plan: dict[str, Any] = json.loads(admin(folder, "rollback", "--dry-run", "--json"))
    assert (plan["jobs"], plan["lost_jobs"]) == (3, 0)
    assert rows(path, "SELECT value FROM meta WHERE key = 'server'") == [("the-first",)]
    assert "--yes" in admin(folder, "rollback", code=2)

    done = json.loads(admin(folder, "rollback", "--yes", "--json"))
    assert (done["jobs"], done["left_out"]) == (2, 1)
    assert done["next_id"] > 1_000_000
    meta = dict(rows(path, "SELECT key, value FROM meta"))
    assert meta["server"] != "the-first"
    assert json.loads(meta["former"]) == ["the-first"]
    assert rows(path, "SELECT DISTINCT name FROM jobs") == [(None,)]
    assert rows(Path(done["kept"]), "SELECT count(*) FROM jobs WHERE name = 'since'") == [(3,)]
    assert not list(folder.path.glob("*.rolling-back*"))
    admin(folder, "verify", "--repair")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_rollback_by_root_leaves_the_database_to_the_server(folder: Folder) -> None:
    path = folder.database_path
    with closing(sqlite3.connect(path)) as database:
        copy_database(database, path.with_name(f"{path.name}.schema-{len(MIGRATIONS)}"))
    os.chown(folder.path, 1234, 1235)
    admin(folder, "rollback", "--yes")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_a_rollback_of_the_first_schema_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "old"
    lay_out("server", path)
    folder = Folder.__new__(Folder)
    folder.path, folder.database_path = path, path / "ferryman.sqlite"
    admin(folder, "upgrade")
    admin(folder, "rollback", "--yes", "--skip-ids", 5)
    assert rows(folder.database_path, "SELECT max(version) FROM schema_version") == [(1,)]
    assert rows(folder.database_path, "SELECT count(*) FROM jobs") == [(7,)]


def test_a_damaged_copy_is_no_way_back(folder: Folder) -> None:
    copy = folder.path / "ferryman.sqlite.schema-5"
    copy.write_bytes(b"no database" * 1_000)
    before = folder.database_path.read_bytes()
    admin(folder, "rollback", "--yes", code=74)
    admin(folder, "rollback", "--yes", "--copy", folder.path / "none", code=74)
    assert folder.database_path.read_bytes() == before


@pytest.mark.parametrize("how", ["another", "older", "new"])
def test_a_repair_by_a_database_that_is_not_the_folders_removes_nothing(
    folder: Folder, how: str
) -> None:
    with closing(sqlite3.connect(folder.database_path)) as connection:
        marks = copies.marks(connection)
    if how == "new":  # in a folder of the version before
        folder.database_path.unlink()
        asyncio.run(_made(folder.database_path))
    else:
        other = {"server": "x"} if how == "another" else {"last_event": marks.last_event + 1}
        write_record(folder.path, replace(marks, **other))
    stray = stored_path(folder.path, FileKind.RESULT, f"{'ab' * 10}{'0' * 12}")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"somebody's")
    before = {path for path in folder.path.rglob("*") if path.is_file()}
    assert "nothing was repaired" in admin(folder, "verify", "--repair", code=74)
    assert before <= {path for path in folder.path.rglob("*") if path.is_file()}


async def _made(path: Path) -> None:
    database = await Database.open(path, MIGRATIONS)
    await server_identity(database, "fresh")
    await database.close()


def test_a_rollback_makes_the_folder_the_other_servers_too(folder: Folder) -> None:
    path = folder.database_path
    with closing(sqlite3.connect(path)) as database:
        write_record(folder.path, copies.marks(database))
        copy_database(database, path.with_name(f"{path.name}.schema-{len(MIGRATIONS)}"))
    later = stored_path(folder.path, FileKind.RESULT, "ab" * 16)
    later.parent.mkdir(exist_ok=True)
    later.write_bytes(b"of a job since then")
    done = json.loads(admin(folder, "rollback", "--yes", "--json"))
    assert done["moved"] == 1  # the older version would delete it within a second
    assert stored_path(Path(done["aside"]), FileKind.RESULT, later.name).is_file()
    assert stored(folder, FileKind.RESULT).is_file()
    with closing(sqlite3.connect(path)) as database:
        assert mismatch(database, folder.path) == ""
