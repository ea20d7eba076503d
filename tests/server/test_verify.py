"""``ferryman admin`` on data folders as the server writes them, with something wrong in each."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tests.kit.each import each
from tests.server.data_folder import Folder, call, filled, own_settings, rows

__all__ = ["own_settings"]
pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return filled(tmp_path / "data", bob=JobState.COMPLETED)


def admin(folder: Folder, *words: object, code: int = 0) -> str:
    return call("admin", *words, "--data-dir", folder.path, code=code)


def stored(folder: Folder, kind: FileKind, number: int = 0) -> Path:
    of = {FileKind.BUNDLE: "file FROM bundles", FileKind.RESULT: "result_file FROM attempts"}
    found = rows(folder.database_path, f"SELECT {of[kind]} ORDER BY 1")
    return stored_path(folder.path, kind, found[number][0])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def found_in(folder: Folder, *words: str, code: int = 1) -> dict[str, Any]:
    """What a command found."""
    found: dict[str, Any] = json.loads(admin(folder, "verify", "--json", *words, code=code))
    return found


def kinds_of(found: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in found["findings"]]


@each("name", ["data", "a#b", "a?b", "a%41b"])
def test_a_sound_folder_of_any_name_is_found_sound_beside_a_server_too(tmp_path, name):
    folder = filled(tmp_path / name.encode().hex() / name, bob=JobState.COMPLETED)
    shown = admin(folder, "verify")
    assert "2 results" in shown
    assert "all is well" in shown
    assert [path.name for path in folder.path.parent.iterdir()] == [name]
    lock = FolderLock(folder.path)
    try:
        assert found_in(folder, code=0)["left"] == 0
        admin(folder, "verify", "--repair", code=73)
    finally:
        lock.close()


def test_damaged_bytes_are_found_wherever_they_are_and_shared_no_more(folder):
    bundles = [stored(folder, FileKind.BUNDLE, number) for number in range(3)]
    for kind in FileKind:
        path = stored(folder, kind)
        whole = path.read_bytes()
        for at in (40, len(whole) // 2, len(whole) - 5):
            flip(path, at)
            found = found_in(folder)["findings"]
            assert [one for one in found if path.name in one["message"]], f"byte {at} of {kind}"
            path.write_bytes(whole)
    *_, one, other = sorted(bundles, key=lambda path: path.stat().st_size)
    whole = one.read_bytes()
    one.write_bytes(other.read_bytes())
    assert (len(whole), kinds_of(found_in(folder))) == (one.stat().st_size, ["wrong_digest"])
    one.write_bytes(whole)
    admin(folder, "verify")
    flip(path := stored(folder, FileKind.BUNDLE), 40)
    assert path.name in admin(folder, "verify", "--repair", code=1)
    shared = f"SELECT shared FROM bundles WHERE file = '{path.name}'"
    assert rows(folder.database_path, shared) == [(0,)], "no later upload gets it"
    assert path.exists(), "evidence is left"


def test_a_lost_result_is_given_up_and_its_job_says_so(folder):
    stored(folder, FileKind.RESULT).unlink()
    admin(folder, "verify", "--quick", code=1)
    found = found_in(folder, "--repair", code=0)
    assert (found["repaired"], kinds_of(found)) == (1, ["missing_file"])
    sql = "SELECT message FROM jobs WHERE state = 'Completed' AND result_file IS NULL"
    ((message,),) = rows(folder.database_path, sql)
    assert "its result is lost" in message
    lost = "SELECT count(*) FROM events WHERE event = 'job.result_lost'"
    assert rows(folder.database_path, lost) == [(1,)]
    admin(folder, "verify")


@each("how", ["unreadable", "not mounted", "no folder"])
def test_what_cannot_be_read_now_is_not_given_up(tmp_path, how):
    folder = filled(tmp_path / how / "data", bob=JobState.COMPLETED)
    lost = folder.path / FileKind.RESULT if how != "unreadable" else stored(folder, FileKind.RESULT)
    away = lost.rename(folder.path / "away")
    if how == "unreadable":
        lost.symlink_to(lost.name)  # ELOOP, as a failing disk says EIO
    elif how == "not mounted":
        lost.mkdir()
    found = found_in(folder, "--repair")
    assert found["repaired"] == 0
    assert how != "unreadable" or kinds_of(found) == ["unreadable_file"]
    away.rename(lost)
    admin(folder, "verify")


def test_a_damaged_database_does_not_say_which_files_are_strays(folder):
    sql = "SELECT sql FROM sqlite_master WHERE name = 'attempts_results'"
    ((made,),) = rows(folder.database_path, sql)
    other = "PRAGMA writable_schema = on; UPDATE sqlite_master SET sql = '{} WHERE {}' WHERE "
    other += "name = 'attempts_results'"
    index, condition = made.split(" WHERE ")
    folder.sql(other.format(index, "result_file IS NULL"))
    folder.sql("REINDEX attempts_results")  # now it lacks all rows that it should have
    folder.sql(other.format(index, condition))
    found = found_in(folder, "--repair")
    assert found["repaired"] == 0
    assert {"database_damaged", "not_repaired"} <= {*kinds_of(found)}
    folder.sql("REINDEX attempts_results")
    admin(folder, "verify")


def test_files_without_rows_are_named_and_removed_by_a_repair(folder):
    stray, other = lay_stray(folder), folder.path / "results" / "notes.txt"
    other.write_text("an operator's")
    (folder.path / "staging" / ("f" * 32)).write_bytes(b"half an upload")
    assert stray.name in admin(folder, "verify", code=1)
    assert found_in(folder, "--repair", code=0)["repaired"] == 2
    assert not stray.exists()
    assert other.exists()
    assert list((folder.path / "staging").iterdir()) == []
    admin(folder, "verify")


@each(
    "kind, change",
    [
        ("bundle_refs", "UPDATE bundles SET refs = refs + 3"),
        ("results_size", "UPDATE jobs SET results_size = 5 WHERE id = 1"),
        ("tags", "DELETE FROM job_tags WHERE job_id = 3"),
    ],
)
def test_what_is_counted_wrongly_is_counted_again(tmp_path, kind, change):
    folder = filled(tmp_path / kind, bob=JobState.COMPLETED)
    folder.sql(change)
    before, found = folder.database_path.read_bytes(), found_in(folder)
    assert {*kinds_of(found)} == {kind}
    assert folder.database_path.read_bytes() == before
    assert found_in(folder, "--repair", code=0)["repaired"] == len(found["findings"])
    assert "all is well" in admin(folder, "verify")


def test_rows_are_looked_at_too_where_all_of_the_schema_is_there(folder):
    folder.sql("UPDATE jobs SET bundle_file = NULL WHERE id = 3")
    assert "counted again" in admin(folder, "verify", "--repair")
    assert rows(folder.database_path, "SELECT min(refs) FROM bundles") == [(1,)], "it is gone"
    folder.sql("INSERT INTO job_tags VALUES ('x', 99)")
    assert "refers to a row of jobs" in admin(folder, "verify", code=1)
    folder.sql("DELETE FROM schema_version")
    assert "start the server once" in admin(folder, "verify", code=74)


@each("how", ["another", "older", "new"])
def test_a_repair_by_a_database_that_is_not_the_folders_removes_nothing(tmp_path, how):
    folder = filled(tmp_path / how)
    with closing(sqlite3.connect(folder.database_path)) as connection:
        marks = copies.marks(connection)
    if how == "new":  # in a folder of the version before
        folder.database_path.unlink()
        asyncio.run(_made(folder.database_path))
    else:
        other = {"server": "x"} if how == "another" else {"last_event": marks.last_event + 1}
        write_record(folder.path, replace(marks, **other))
    lay_stray(folder)
    before = {path for path in folder.path.rglob("*") if path.is_file()}
    assert "nothing was repaired" in admin(folder, "verify", "--repair", code=74)
    assert before <= {path for path in folder.path.rglob("*") if path.is_file()}


def lay_stray(folder: Folder) -> Path:
    """A file that no row refers to."""
    stray = stored_path(folder.path, FileKind.RESULT, f"{'ab' * 10}{'0' * 12}")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"somebody's")
    return stray


async def _made(path: Path) -> None:
    database = await Database.open(path, MIGRATIONS)
    await server_identity(database, "fresh")
    await database.close()
