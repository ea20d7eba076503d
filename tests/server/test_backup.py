"""``ferryman backup``, ``restore`` and ``admin verify`` on data folders as the server writes them:
what is copied, refused and repaired, and what a restore makes of folder and database.
"""

import asyncio
import json
import re
import shutil
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from server.domain.jobs import FileKind
from server.settings.tables import ServerTable
from server.storage.folder import stored_path
from server.store import identity
from server.store.data_folder import UNKNOWN, WrongDatabase, open_data, write_record
from server.store.migrations import MIGRATIONS
from shared.clock import RealClock
from shared.files.bundles.reader import BundleReader
from shared.files.durable import FolderLock
from shared.sqlite.database import Database
from shared.sqlite.files import copy_database
from shared.wire import JobState
from tests.kit.each import each
from tests.kit.store import Store
from tests.model.inline_database import SimulatedCrash
from tests.server.data_folder import RESULT, Folder, call, filled, record_of, rows


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return filled(tmp_path / "data")


def backup(folder: Folder, *words: object, to: str = "copy", code: int = 0) -> str:
    """Copy it to a folder beside it."""
    target = folder.path.parent / to
    return call("backup", target, "--data-dir", folder.path, *words, code=code)


def restore(folder: Folder, *words: object, to: str = "new", code: int = 0) -> str:
    """Make another folder of that copy."""
    beside = folder.path.parent
    return call("restore", beside / "copy", "--data-dir", beside / to, *words, code=code)


def meta_of(folder: Path) -> dict[str, str]:
    return dict(rows(folder / "ferryman.sqlite", "SELECT key, value FROM meta"))


def modes_of(folder: Path) -> dict[str, int]:
    """Of files and folders."""
    paths = (folder, *folder.rglob("*"))
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in paths}


def spoil(path: Path, how: str = "changed", at: int | None = None) -> None:
    """Of a changed one, the byte at this place or in the middle."""
    content = bytearray(path.read_bytes())
    path.unlink()  # a copy may be the same file
    if how == "changed":
        content[len(content) // 2 if at is None else at] ^= 1
    if how != "gone":
        path.write_bytes(content[:-1] if how == "short" else content)


@each("linked", [True, False])
def test_what_is_restored_is_what_was_there_and_closed_to_others(tmp_path, monkeypatch, linked):
    folder, beside = filled(tmp_path / str(linked) / "data"), tmp_path / str(linked)
    if not linked:
        refused = Mock(side_effect=OSError(18, "Invalid cross-device link"))
        monkeypatch.setattr("os.link", refused)
    made = json.loads(backup(folder, "--verify", "--json"))
    assert (made["jobs"], made["bundles"], made["results"], made["incomplete"]) == (3, 3, 1, [])
    assert made["result_bytes"] == len(RESULT)
    restore(folder, "--verify")
    new = beside / "new" / "ferryman.sqlite"
    for table in ("jobs", "events", "job_tags"):
        was, now = (rows(path, f"SELECT * FROM {table}") for path in (folder.database_path, new))
        assert was == now != []
    sql = "SELECT bundle_file, bundle_digest, result_file FROM jobs"
    for bundle, digest, result in rows(new, sql):
        with BundleReader(stored_path(new.parent, FileKind.BUNDLE, bundle)) as reader:
            assert reader.summary().digest == digest
        if result:
            assert stored_path(new.parent, FileKind.RESULT, result).read_bytes() == RESULT
    for there in (beside / "copy", beside / "new"):
        modes = modes_of(there)
        assert {modes[name] for name in modes if (there / name).is_dir()} == {0o700}
        assert {modes[name] for name in modes if (there / name).is_file()} == {0o600}
    assert {*modes_of(beside)} & {".copy.partial", "new/ferryman.sqlite.restoring"} == set()


A_DELIVERY = """
INSERT INTO deliveries (job_id, user_id, principal, url, target, event, body, next_at, created_at)
    VALUES ({}, 'ann', 'ann', 'https://a.org/', 'https://a.org', 'job.completed', '{{}}', 5, 5)
"""


def test_a_restored_server_is_another_which_signs_anew_and_a_rehearsal_delivers_nothing(
    folder, tmp_path
):
    """A token that was revoked since the backup is good again, and a used ticket would be."""
    folder.sql("INSERT INTO meta VALUES ('signing_key', 'ab')")
    for token in ("'live', 'live', NULL, NULL", "'t2', 't2', 3, NULL", "'t3', 't3', NULL, 2"):
        folder.sql(
            "INSERT INTO tokens (digest, role, created_at, created_by, id, name, "
            f"expires_at, revoked_at) VALUES ('', 'operator', 1, 'x', {token})"
        )
    folder.sql(A_DELIVERY.format(2))
    backup(folder)
    said = restore(folder, "--skip-ids", 7)
    assert re.findall(r"(\S+): ferryman token revoke (\S+)", said) == [("live", "live")]
    new = tmp_path / "new"
    left = tmp_path / "left"  # of a lost server: it is no obstacle, and its numbers count
    (left / UNKNOWN).mkdir(parents=True)
    write_record(left, identity.Marks("gone", 5_000_000, 9, 3))
    (left / "clock.json").write_text("{}")
    next_id = json.loads(restore(folder, "--json", to="left"))["next_id"]
    assert next_id > 6_000_000  # more where a second has passed
    record = record_of(left)
    assert (record.server, record.last_job) == (meta_of(left)["server"], next_id - 1)

    meta = meta_of(new)
    assert meta["server"] not in ("", "the-first")
    assert (json.loads(meta["former"]), "signing_key" in meta) == (["the-first"], False)
    sequence = "SELECT seq FROM sqlite_sequence ORDER BY name DESC"
    assert rows(new / "ferryman.sqlite", sequence)[0] == (10,)
    made = tmp_path / "copy" / "backup.json"
    made.write_text(json.dumps(json.loads(made.read_text()) | {"made_at": "2016-01-01T00:00:00Z"}))
    assert json.loads(restore(folder, "--json", to="more"))["tokens"] == ["live"]
    ((last,), (event,), *_) = rows(tmp_path / "more" / "ferryman.sqlite", sequence)
    assert (last > 10**9, event > 10_000_000) == (True, True), "ten for each second since then"

    (tmp_path / "copy").rename(tmp_path / "first-copy")
    backup(Folder(new))
    restore(folder, to="newer")
    assert json.loads(meta_of(tmp_path / "newer")["former"]) == ["the-first", meta["server"]]
    restore(folder, "--rehearsal", to="tried")
    tried = meta_of(tmp_path / "tried")
    assert json.loads(tried["former"]) == []
    assert tried["server"] not in (meta["server"], meta_of(tmp_path / "newer")["server"])
    for name, found in (("tried", ("failed", None)), ("newer", ("pending", 5))):
        path = tmp_path / name / "ferryman.sqlite"
        assert rows(path, "SELECT state, next_at FROM deliveries") == [found]
        assert ("rehearsal" in meta_of(path.parent)) == (name == "tried")


OF_JOB_1 = "bundle_file, bundle_size, bundle_digest"
ONLY_A_SCHEDULE = f"""
INSERT INTO schedules (name, user_id, service, cron, time_zone, fields, {OF_JOB_1}, next_at,
    created_at) SELECT 'nightly', user_id, service, '0 0 * * *', 'UTC', '{{}}', {OF_JOB_1}, 1, 1
    FROM jobs WHERE id = 1;
UPDATE jobs SET state = 'Cleaned', bundle_file = NULL WHERE id = 1;
"""
ONLY_CHILDREN_TO_COME = f"""
INSERT INTO batches (parent_id, total, {OF_JOB_1}) SELECT 2, 3, {OF_JOB_1} FROM jobs WHERE id = 1;
UPDATE jobs SET state = 'Cleaned', bundle_file = NULL WHERE id = 1;
"""


@each("given, whose", [(ONLY_A_SCHEDULE, "schedule 1"), (ONLY_CHILDREN_TO_COME, "job 2")])
def test_a_bundle_that_no_job_has_any_more_is_in_the_backup(tmp_path, given, whose):
    folder = filled(tmp_path / whose / "data")
    ((name,),) = rows(folder.database_path, "SELECT bundle_file FROM jobs WHERE id = 1")
    folder.sql(given)
    assert json.loads(backup(folder, "--json"))["incomplete"] == []
    restore(folder)
    assert stored_path(tmp_path / whose / "new", FileKind.BUNDLE, name).exists()
    stored_path(folder.path, FileKind.BUNDLE, name).unlink()
    folder.sql(f"UPDATE jobs SET bundle_file = '{name}' WHERE id = 3")
    said = backup(folder, to="lost", code=1)
    assert all(f"missing file of {one}: bundles/{name}" in said for one in (whose, "job 3"))


def test_what_is_removed_meanwhile_is_left_out(folder, tmp_path, monkeypatch):
    """A job with its delivery, and a schedule with its bundle."""
    sql = "SELECT bundle_file, result_file FROM jobs WHERE id = 1"
    ((kept, result),) = rows(folder.database_path, sql)
    folder.sql(ONLY_A_SCHEDULE)
    folder.sql("UPDATE jobs SET state = 'Completed' WHERE id = 1")
    folder.sql(f"{A_DELIVERY.format(1)};{A_DELIVERY.format(2)}")

    def copy(source: sqlite3.Connection, target: Path) -> None:
        copy_database(source, target)
        source.execute("UPDATE jobs SET state = 'Cleaned', result_file = NULL WHERE id = 1")
        source.execute("UPDATE attempts SET result_file = NULL WHERE job_id = 1")
        source.execute("DELETE FROM schedules")
        source.execute("DELETE FROM bundles WHERE file = ?", (kept,))
        stored_path(folder.path, FileKind.RESULT, result).unlink()
        stored_path(folder.path, FileKind.BUNDLE, kept).unlink()

    with monkeypatch.context() as patch:
        patch.setattr("server.maintenance.backup.copy_database", copy)
        made = json.loads(backup(folder, "--json"))
    assert (made["jobs"], made["incomplete"]) == (2, [])
    found = tmp_path / "copy" / "ferryman.sqlite"
    assert rows(found, "SELECT id FROM jobs ORDER BY id") == [(2,), (3,)]
    assert rows(found, "SELECT DISTINCT job_id FROM events ORDER BY job_id") == [(2,), (3,)]
    assert rows(found, "SELECT job_id FROM deliveries") == [(2,)]
    assert rows(found, "SELECT count(*) FROM schedules") == [(0,)]
    assert rows(found, f"SELECT count(*) FROM bundles WHERE file = '{kept}'") == [(0,)]
    restore(folder)


LOSSES = [("results", "gone"), ("bundles", "short"), ("results", "changed"), ("bundles", "changed")]


@each("kind, how", [*LOSSES, ("ferryman.sqlite", "gone"), ("backup.json", "gone")])
def test_what_is_lost_is_reported_by_a_backup_and_refused_by_a_restore(tmp_path, kind, how):
    folder, beside = filled(tmp_path / f"{kind}-{how}" / "data"), tmp_path / f"{kind}-{how}"
    options = ["--verify"] if how == "changed" else []
    backup(folder)
    found, name = beside / "copy" / kind, ""
    if (kind, how) in LOSSES:
        sql = f"SELECT {kind.removesuffix('s')}_file FROM jobs WHERE id = 1"
        ((name,),) = rows(folder.database_path, sql)
        found = stored_path(beside / "copy", FileKind(kind), name)
    spoil(found, how)
    restore(folder, *options, code=74)
    assert {path.name for path in (beside / "new").glob("*")} <= {"lock"}
    if name:
        shutil.rmtree(beside / "copy")
        spoil(stored_path(folder.path, FileKind(kind), name), how)
        if kind == "bundles":
            folder.sql(f"UPDATE jobs SET bundle_file = '{name}' WHERE id = 3")
        said = backup(folder, *options, code=1)
        for number in (1, 3) if kind == "bundles" else (1,):
            assert f"of job {number}: {kind}/{name}" in said
        restore(folder)


def test_nothing_is_written_over_and_no_other_database_is_taken(folder, tmp_path):
    (tmp_path / "there").mkdir()
    assert "exists already" in backup(folder, to="there", code=73)
    missing = f"{tmp_path / 'away'}: no such folder: make it first"
    assert missing in backup(folder, to="away/today", code=73)
    said = call("backup", tmp_path / "copy", "--data-dir", tmp_path / "typo", code=73)
    assert "no database of a server" in said
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "typo").exists()
    backup(folder)
    before = modes_of(folder.path)
    assert "is there already" in restore(folder, to="data", code=73)
    (tmp_path / "empty").mkdir()
    with closing(FolderLock(tmp_path / "empty")):
        assert "in use" in restore(folder, to="empty", code=73)
    assert {**before, "lock": 0o600} == modes_of(folder.path)
    elsewhere = tmp_path / "elsewhere.toml"
    lines = f'db_path = "{folder.database_path}"\ndata_dir = "{tmp_path / "empty"}"\n'
    elsewhere.write_text(f"[server]\n{lines}")
    call("restore", tmp_path / "copy", "--config", elsewhere, code=73)
    for path in (folder.path, tmp_path / "copy"):
        Folder(path).sql("INSERT INTO schema_version VALUES (99)")
    assert "newer version" in backup(folder, to="other", code=74)
    assert "newer version" in restore(folder, code=74)
    assert not (tmp_path / "other").exists()


def test_a_restore_that_is_killed_before_its_end_leaves_no_folder_to_start_with(
    folder, tmp_path, monkeypatch
):
    backup(folder)

    def killed(*how: Any) -> None:
        write_record(*how)
        raise SimulatedCrash

    with monkeypatch.context() as patched:
        patched.setattr("server.maintenance.backup.write_record", killed)
        patched.setattr("server.maintenance.backup.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(SimulatedCrash):
            restore(folder)

    async def start() -> None:
        async with AsyncExitStack() as stack:
            await open_data(ServerTable(data_dir=tmp_path / "new"), RealClock(), stack)

    with pytest.raises(WrongDatabase, match="is missing"):
        asyncio.run(start())


# -- verify


@pytest.fixture
def ended(tmp_path: Path) -> Folder:
    """Bob's job has ended too."""
    return filled(tmp_path / "data", bob=JobState.COMPLETED)


def admin(folder: Folder, *words: object, code: int = 0) -> str:
    return call("admin", *words, "--data-dir", folder.path, code=code)


def found_in(folder: Folder, *words: str, code: int = 1) -> tuple[int, list[str], dict[str, Any]]:
    """How much was repaired, the kinds of what a command found, and all that it says."""
    found = json.loads(admin(folder, "verify", "--json", *words, code=code))
    return found["repaired"], [one["kind"] for one in found["findings"]], found


def stored(folder: Folder, kind: FileKind) -> list[Path]:
    of = {FileKind.BUNDLE: "file FROM bundles", FileKind.RESULT: "result_file FROM attempts"}
    found = rows(folder.database_path, f"SELECT {of[kind]} ORDER BY 1")
    return [stored_path(folder.path, kind, name) for (name,) in found]


@each("name", ["data", "a#b", "a?b", "a%41b"])
def test_a_sound_folder_of_any_name_is_found_sound_beside_a_server_too(tmp_path, name):
    folder = filled(tmp_path / name.encode().hex() / name, bob=JobState.COMPLETED)
    shown = admin(folder, "verify")
    assert "2 results" in shown
    assert "all is well" in shown
    assert [path.name for path in folder.path.parent.iterdir()] == [name]
    with closing(FolderLock(folder.path)):
        assert found_in(folder, code=0)[2]["left"] == 0
        admin(folder, "verify", "--repair", code=73)


def test_damaged_bytes_are_found_in_files_and_tables_and_shared_no_more(ended):
    bundles = stored(ended, FileKind.BUNDLE)
    for path in (bundles[0], stored(ended, FileKind.RESULT)[0]):
        whole = path.read_bytes()
        for at in (60, len(whole) // 2, len(whole) - 5):
            spoil(path, at=at)
            found = found_in(ended)[2]["findings"]
            assert [one for one in found if path.name in one["message"]], f"byte {at} of {path}"
            path.write_bytes(whole)
    *_, one, other = sorted(bundles, key=lambda path: path.stat().st_size)
    whole = one.read_bytes()
    one.write_bytes(other.read_bytes())
    assert (len(whole), found_in(ended)[1]) == (one.stat().st_size, ["wrong_digest"])
    one.write_bytes(whole)
    admin(ended, "verify")
    spoil(bundles[0], at=60)
    assert bundles[0].name in admin(ended, "verify", "--repair", code=1)
    shared = f"SELECT shared FROM bundles WHERE file = '{bundles[0].name}'"
    assert rows(ended.database_path, shared) == [(0,)], "no later upload gets it"
    assert bundles[0].exists(), "evidence is left"


WRONG = {
    "bundle_refs": "UPDATE bundles SET refs = refs + 3",
    "results_size": "UPDATE jobs SET results_size = 5 WHERE id = 2",
    "tags": "DELETE FROM job_tags WHERE job_id = 3",
}
"""What is counted wrongly."""


def test_what_a_repair_can_mend_is_found_named_and_mended(ended):
    ended.sql(";".join(WRONG.values()))
    stray = stored_path(ended.path, FileKind.RESULT, f"{'ab' * 10}{'0' * 12}")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"no row refers to it")
    other = ended.path / "results" / "notes.txt"
    other.write_text("an operator's")
    (ended.path / "staging" / ("f" * 32)).write_bytes(b"half an upload")
    stored(ended, FileKind.RESULT)[0].unlink()
    before = ended.database_path.read_bytes()
    admin(ended, "verify", "--quick", code=1)
    _, kinds, found = found_in(ended)
    assert {*kinds} == {*WRONG, "missing_file", "stray_file"}
    assert stray.name in str(found)
    assert ended.database_path.read_bytes() == before
    assert found_in(ended, "--repair", code=0)[0] == len(kinds) + 1, "the half upload, too"
    assert (stray.exists(), other.exists()) == (False, True)
    assert list((ended.path / "staging").iterdir()) == []
    sql = "SELECT message FROM jobs WHERE state = 'Completed' AND result_file IS NULL"
    ((message,),) = rows(ended.database_path, sql)
    assert "its result is lost" in message
    lost = "SELECT count(*) FROM events WHERE event = 'job.result_lost'"
    assert rows(ended.database_path, lost) == [(1,)]
    assert "all is well" in admin(ended, "verify")


@each("how", ["unreadable", "not mounted", "no folder"])
def test_what_cannot_be_read_now_is_not_given_up(tmp_path, how):
    folder = filled(tmp_path / how / "data", bob=JobState.COMPLETED)
    lost = folder.path / FileKind.RESULT
    if how == "unreadable":
        lost = stored(folder, FileKind.RESULT)[0]
    away = lost.rename(folder.path / "away")
    if how == "unreadable":
        lost.symlink_to(lost.name)  # ELOOP, as a failing disk says EIO
    elif how == "not mounted":
        lost.mkdir()
    repaired, kinds, _ = found_in(folder, "--repair")
    assert repaired == 0
    assert how != "unreadable" or kinds == ["unreadable_file"]
    away.rename(lost)
    admin(folder, "verify")


def test_a_damaged_database_does_not_say_which_files_are_strays(ended):
    sql = "SELECT sql FROM sqlite_master WHERE name = 'attempts_results'"
    ((made,),) = rows(ended.database_path, sql)
    other = "PRAGMA writable_schema = on; UPDATE sqlite_master SET sql = '{} WHERE {}' WHERE "
    other += "name = 'attempts_results'"
    index, condition = made.split(" WHERE ")
    ended.sql(other.format(index, "result_file IS NULL"))
    ended.sql("REINDEX attempts_results")  # now it lacks all rows that it should have
    ended.sql(other.format(index, condition))
    repaired, kinds, _ = found_in(ended, "--repair")
    assert repaired == 0
    assert {"database_damaged", "not_repaired"} <= {*kinds}
    ended.sql("REINDEX attempts_results")
    admin(ended, "verify")


def test_rows_are_looked_at_too_where_all_of_the_schema_is_there(ended):
    ended.sql("UPDATE jobs SET bundle_file = NULL WHERE id = 3")
    assert "counted again" in admin(ended, "verify", "--repair")
    assert rows(ended.database_path, "SELECT min(refs) FROM bundles") == [(1,)], "it is gone"
    ended.sql("INSERT INTO job_tags VALUES ('x', 99)")
    assert "refers to a row of jobs" in admin(ended, "verify", code=1)
    ended.sql("DELETE FROM schema_version")
    assert "start the server once" in admin(ended, "verify", code=74)


@pytest.fixture
def with_rows(folder) -> Folder:
    """One more job, whose bundle and result are small."""

    async def add() -> None:
        database = await Database.open(folder.database_path, MIGRATIONS)
        await folder.add_small(Store(database, []), "dee")
        await database.close()

    asyncio.run(add())
    return folder


def test_small_contents_are_in_the_copy_of_the_database(with_rows):
    made = json.loads(backup(with_rows, "--verify", "--json"))
    assert (made["jobs"], made["bundles"], made["results"], made["incomplete"]) == (4, 4, 2, [])
    copy = with_rows.path.parent / "copy"
    assert len([path for path in (copy / "bundles").rglob("*") if path.is_file()]) == 3
    restore(with_rows, "--verify")
    databases = with_rows.database_path, copy.parent / "new" / "ferryman.sqlite"
    was, now = (rows(one, "SELECT * FROM contents") for one in databases)
    assert (was == now, len(was)) == (True, 2)
    assert "all is well" in admin(with_rows, "verify")


def test_a_damaged_row_is_found_and_given_up_and_one_of_nobody_is_removed(with_rows):
    """And the copy of one says that it is incomplete."""
    with_rows.sql("UPDATE contents SET bytes = zeroblob(length(bytes)) WHERE name LIKE '1%'")
    with_rows.sql("INSERT INTO contents VALUES ('stray', x'00')")
    assert found_in(with_rows, "--quick")[1] == ["stray_row"]
    assert found_in(with_rows)[1] == ["wrong_digest", "stray_row"]
    assert "damaged file of job 4: results/1" in backup(with_rows, "--verify", code=1)
    assert found_in(with_rows, "--repair", code=0)[0] == 2
    assert len(rows(with_rows.database_path, "SELECT * FROM contents")) == 1, "the bundle"
    assert "all is well" in admin(with_rows, "verify")
    with_rows.sql("DELETE FROM contents")
    assert found_in(with_rows)[1] == ["missing_file"]
