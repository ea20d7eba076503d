"""The adapter over SQLite: shared commits, and nothing kept of a change that fails."""

import asyncio
import functools
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from shared.files.durable import FolderInUse
from shared.sql import Tx
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable, Migration
from tests.kit.waiting import turns

MIGRATIONS = [("CREATE TABLE numbers (n INTEGER PRIMARY KEY) STRICT",)]


@asynccontextmanager
async def opened(path: Path, *more: Migration) -> AsyncIterator[Database]:
    database = await Database.open(path, [*MIGRATIONS, *more])
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened(tmp_path / "test.sqlite") as found:
        yield found


def add(*numbers: int, fail: Exception | None = None):
    def change(tx: Tx) -> int:
        for number in numbers:
            tx.rows("INSERT INTO numbers (n) VALUES (:n)", {"n": number})
        if fail is not None:
            raise fail
        found = tx.rows("SELECT count(*) AS count FROM numbers")
        return int(found[0]["count"])

    return change


async def kept(database: Database) -> list[int]:
    return [row["n"] for row in await database.rows("SELECT n FROM numbers ORDER BY n")]


async def test_a_change_that_fails_spoils_no_other_that_shares_its_commit(database):
    writes = (add(1), add(2, fail=KeyError("no")), add(1), add(4))
    ends = await asyncio.gather(*map(database.write, writes), return_exceptions=True)
    first, second, third, fourth = ends
    assert (first, fourth) == (1, 2)
    assert isinstance(second, KeyError)
    assert "UNIQUE constraint failed" in str(third)
    assert not isinstance(third, DatabaseUnavailable)
    assert await kept(database) == [1, 4]


async def test_where_a_change_ends_the_shared_transaction_the_others_are_made_all_the_same(
    database,
):
    await database.write(add(1))

    def gives_up(tx: Tx) -> None:
        tx.rows("INSERT OR ROLLBACK INTO numbers (n) VALUES (1)")

    writes = (add(2), gives_up, add(3))
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*map(database.write, writes), return_exceptions=True)
    assert (ends[0], ends[2]) == (2, 3)
    assert isinstance(ends[1], sqlite3.IntegrityError)
    assert await kept(database) == [1, 2, 3]


async def test_a_read_has_one_state_and_leaves_its_connection_as_it_was_also_after_an_error(
    database,
):
    reading, changed = threading.Event(), threading.Event()

    def twice(tx: Tx, *, fail: bool) -> list[int]:
        before = len(tx.rows("SELECT n FROM numbers"))
        reading.set()
        assert changed.wait(60)
        return [before, len(tx.rows("SELECT n FROM numbers")) // (not fail)]

    for number, read in enumerate((database.read, database.read_list)):
        reading.clear()
        changed.clear()
        found = asyncio.create_task(read(twice, fail=False))
        assert await asyncio.to_thread(reading.wait, 60)
        await database.write(add(number))
        changed.set()
        assert await found == [number, number]
        with pytest.raises(ZeroDivisionError):
            await read(twice, fail=True)
        assert await read(twice, fail=False) == [number + 1, number + 1]


async def test_what_follows_a_commit_is_done_in_its_order_also_where_the_caller_has_left(database):
    done = list[int]()

    def change(tx: Tx, number: int) -> None:
        tx.rows("INSERT INTO numbers (n) VALUES (:n)", {"n": number})
        tx.after(functools.partial(done.append, number))
        if number == 2:
            raise KeyError(number)

    tasks = [database.write(change, number) for number in range(4)]
    await turns()  # all are handed in
    tasks[1].cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends[1:3]] == [asyncio.CancelledError, KeyError]
    assert done == await kept(database) == [0, 1, 3]


async def test_a_defect_in_what_follows_a_commit_stops_nobody(database):
    done = list[str]()

    def change(tx: Tx) -> None:
        tx.rows("INSERT INTO numbers (n) VALUES (1)")
        tx.after([].pop)
        tx.after(functools.partial(done.append, "the next"))

    with capture_logs() as logs:
        await database.write(change)
    assert [line["event"] for line in logs] == ["database.call_failed"]
    assert (done, await database.write(add(2))) == (["the next"], 2)


async def test_after_closing_nothing_is_taken(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "test.sqlite", MIGRATIONS)
    last = database.write(add(1))
    await asyncio.wait([asyncio.ensure_future(database.close())])
    assert await last == 1
    with pytest.raises(DatabaseUnavailable, match="closed"):
        await database.write(add(2))


async def test_what_is_created_is_closed_to_others_and_a_mode_that_was_given_is_kept(tmp_path):
    """Wherever the operator puts it."""
    tmp_path.chmod(0o755)
    path = tmp_path / "some.sqlite"
    async with opened(path):
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {f"{path.name}{suffix}": 0o600 for suffix in ("", "-wal", "-shm", ".lock")}
    path.chmod(0o640)
    async with opened(path):
        assert path.stat().st_mode & 0o777 == 0o640


# -- what the connections are set to


async def test_who_reads_cannot_write_and_who_writes_is_held_to_keys_and_to_the_disk(tmp_path):
    child = "CREATE TABLE children (n INTEGER REFERENCES numbers (n)) STRICT"
    async with opened(tmp_path / "test.sqlite", (child,)) as database:
        for read in (database.read, database.read_list):
            with pytest.raises(DatabaseUnavailable, match="readonly"):
                await read(lambda tx: tx.rows("INSERT INTO numbers (n) VALUES (1)"))
        assert await kept(database) == []
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            await database.write(lambda tx: tx.rows("INSERT INTO children VALUES (7)"))
        found = await database.write(lambda tx: tx.rows("PRAGMA synchronous"))
        assert found[0]["synchronous"] == 2  # FULL


class Asked(sqlite3.Connection):
    """Tells what is to be done, and has a function that waits."""

    begun, answered = threading.Event(), threading.Event()

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.create_function("hold", 0, self._hold)
        self.set_trace_callback(lambda sql: self.begun.set() if "BEGIN" in sql else None)

    def _hold(self) -> bool:
        self.begun.set()
        return self.answered.wait(5)


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Database]:
    """A database whose connections are so."""
    connect = functools.partial(sqlite3.connect, factory=Asked)
    with mock.patch("sqlite3.connect", connect):
        database = await Database.open(tmp_path / "asked.sqlite", MIGRATIONS)
    await database.write(add(7))
    Asked.begun, Asked.answered = threading.Event(), threading.Event()
    yield database
    await database.close()


async def test_a_change_waits_for_another_programs_change(asked: Database, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "asked.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        change = asked.write(add(1))
        assert await asyncio.to_thread(Asked.begun.wait, 20)
        assert not change.done()
        other.execute("COMMIT")
    patience_ms = await asked.run(lambda raw: raw.execute("PRAGMA busy_timeout").fetchone()[0])
    assert patience_ms == 10_000
    assert await change == 2


async def test_no_other_read_waits_for_a_list(asked: Database) -> None:
    """The list is held up until the other read has been answered."""
    slow = asyncio.create_task(asked.read_list(lambda tx: tx.rows("SELECT hold() AS held")))
    assert await asyncio.to_thread(Asked.begun.wait, 20)
    assert await kept(asked) == [7]
    Asked.answered.set()
    assert (await slow)[0]["held"] == 1


async def test_what_was_deleted_can_be_given_back_to_the_disk(database, monkeypatch):
    await database.write(add(*range(50_000)))
    await database.write(lambda tx: tx.rows("DELETE FROM numbers"))

    async def pages() -> int:
        return int((await database.rows("PRAGMA page_count"))[0][0])

    before = await pages()
    monkeypatch.setattr("shared.sqlite.database._PAGES_FREED_AT_ONCE", 20)
    monkeypatch.setattr("shared.sqlite.database._FREE_PAGES_KEPT", 30)
    assert await database.maintain()
    assert await pages() == before - 20
    while await database.maintain():
        pass
    assert await pages() < 40


# -- what is wrong with it


def reported(database: Database) -> object:
    return database.failure


async def test_a_full_disk_is_reported_until_there_is_space_for_more(database: Database) -> None:
    await database.write(lambda tx: tx.rows("PRAGMA max_page_count = 1"))
    with pytest.raises(DatabaseUnavailable) as caught:
        await database.write(add(*range(5_000)))
    assert caught.value.full
    await database.write(lambda tx: tx.rows("DELETE FROM numbers"))  # nothing to write
    assert reported(database) is caught.value
    await database.write(add(1))  # fits into the pages that there are
    assert await kept(database) == [1]
    assert reported(database) is caught.value
    with pytest.raises(DatabaseUnavailable):
        await database.maintain()
    await database.write(lambda tx: tx.rows("PRAGMA max_page_count = 1000000"))
    await database.maintain()
    assert reported(database) is None
    assert not await database.rows("SELECT 1 FROM sqlite_master WHERE name = 'probe'")


async def test_a_failed_write_is_reported_until_something_could_be_written(database, tmp_path):
    """Another program holds the file for longer than is waited for."""
    await database.write(lambda tx: tx.rows("PRAGMA busy_timeout = 1"))
    with closing(sqlite3.connect(tmp_path / "test.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="locked") as caught:
            await database.write(add(1))
        other.execute("COMMIT")
    await database.write(lambda tx: tx.rows("DELETE FROM numbers"))  # nothing to write
    assert reported(database) is caught.value
    await database.write(add(1))
    assert reported(database) is None


async def filled(path: Path) -> None:
    async with opened(path) as database:
        await database.write(add(*range(20_000)))


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(10 * 4096)
        file.write(b"\xff" * 4096)


async def test_damage_is_reported_until_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "test.sqlite"
    await filled(path)
    damage(path)
    async with opened(path) as database:
        with pytest.raises(DatabaseUnavailable):
            await kept(database)
        await database.probe()
        await database.rows("SELECT 1")
        assert database.failure is not None
        assert database.failure.damaged


async def test_one_bad_value_is_no_damage(tmp_path: Path) -> None:
    async with opened(tmp_path / "test.sqlite") as database:
        with pytest.raises(DatabaseUnavailable) as caught:
            await database.rows("SELECT json('{')")
        assert not caught.value.damaged
        await database.rows("SELECT 1")
        assert database.failure is None


async def test_what_a_crash_left_and_what_is_no_database_is_found_before_it_is_used(tmp_path):
    path, crashed, sound, other = (tmp_path / f"{name}.sqlite" for name in ("t", "c", "s", "o"))
    await filled(path)
    async with opened(path) as database:
        await database.write(add(20_001))
        for copy in (crashed, sound):
            for suffix in ("", "-wal"):  # what the disk holds when the program is killed
                shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    damage(crashed)
    other.write_bytes(b"this is not a database" * 100)
    for wrong in (crashed, other):
        with pytest.raises(DatabaseUnavailable) as caught:
            await (await Database.open(wrong, MIGRATIONS)).close()
        assert caught.value.damaged
    async with opened(sound) as again:
        assert len(await kept(again)) == 20_001


@pytest.mark.parametrize("linked", [False, True])
async def test_one_process_has_it_open(tmp_path: Path, linked: bool) -> None:
    path = link = tmp_path / "test.sqlite"
    async with opened(path):
        if linked:
            link = tmp_path / "elsewhere" / "link.sqlite"
            link.parent.mkdir()
            link.symlink_to(path)
        with pytest.raises(FolderInUse, match=rf"pid {os.getpid()}\).*choose another database"):
            await (await Database.open(link, MIGRATIONS)).close()
    await (await Database.open(link, MIGRATIONS)).close()
