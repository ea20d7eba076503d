"""``ferryman admin`` on data folders as the server writes them, with something wrong in each."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from server.data_folder import write_record
from server.domain.jobs import FileKind
from server.storage.folder import stored_path
from server.store import copies
from server.store.identity import server_identity
from server.store.migrations import MIGRATIONS
from shared.files.durable import FolderLock
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.server.data_folder import Folder, call, filled, no_settings_of_others, rows

__all__ = ["no_settings_of_others"]
pytestmark = pytest.mark.usefixtures("no_settings_of_others")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return filled(tmp_path / "data", bob=JobState.COMPLETED)


def admin(folder: Folder, *words: object, code: int = 0) -> str:
    return call("admin", *words, "--data-dir", folder.path, code=code)


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


def test_a_sound_folder_is_found_sound_beside_a_server_too(folder: Folder) -> None:
    shown = admin(folder, "verify")
    assert "2 results" in shown
    assert "all is well" in shown
    lock = FolderLock(folder.path)
    try:
        assert json.loads(admin(folder, "verify", "--json"))["left"] == 0
        admin(folder, "verify", "--repair", code=73)
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
    folder.sql(other.format(index, "result_file IS NULL"))
    folder.sql("REINDEX attempts_results")  # now it lacks all rows that it should have
    folder.sql(other.format(index, condition))
    found = json.loads(admin(folder, "verify", "--repair", "--json", code=1))
    assert found["repaired"] == 0
    assert {"database_damaged", "not_repaired"} <= {one["kind"] for one in found["findings"]}
    folder.sql("REINDEX attempts_results")
    admin(folder, "verify")


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b"])
def test_a_folder_may_have_any_name(folder: Folder, name: str) -> None:
    folder.path = folder.path.rename(folder.path.with_name(name))
    admin(folder, "verify")
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


def test_a_reference_to_no_row_is_named(folder: Folder) -> None:
    folder.sql("INSERT INTO job_tags VALUES ('x', 99)")
    assert "refers to a row of jobs" in admin(folder, "verify", code=1)


COUNTS = {
    "bundle_refs": "UPDATE bundles SET refs = refs + 3",
    "results_size": "UPDATE jobs SET results_size = 5 WHERE id = 1",
    "tags": "DELETE FROM job_tags WHERE job_id = 3",
}


@pytest.mark.parametrize("kind", COUNTS)
def test_what_is_counted_wrongly_is_counted_again(folder: Folder, kind: str) -> None:
    folder.sql(COUNTS[kind])
    before = folder.database_path.read_bytes()
    found = json.loads(admin(folder, "verify", "--json", code=1))["findings"]
    assert {one["kind"] for one in found} == {kind}
    assert folder.database_path.read_bytes() == before
    assert json.loads(admin(folder, "verify", "--repair", "--json"))["repaired"] == len(found)
    assert "all is well" in admin(folder, "verify")


def test_a_bundle_that_nobody_uses_any_more_goes(folder: Folder) -> None:
    folder.sql("UPDATE jobs SET bundle_file = NULL WHERE id = 3")
    assert "counted again" in admin(folder, "verify", "--repair")
    assert rows(folder.database_path, "SELECT min(refs) FROM bundles") == [(1,)]


def test_a_database_without_all_of_the_schema_is_not_looked_at(folder: Folder) -> None:
    folder.sql("DELETE FROM schema_version")
    assert "start the server once" in admin(folder, "verify", code=74)


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
