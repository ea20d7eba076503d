"""From one version of the schema to the next, with a copy made before."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from shared.sqlite import files
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable, Migration, schema_version

ONE: Migration = (
    "CREATE TABLE things (n INTEGER PRIMARY KEY) STRICT",
    "INSERT INTO things VALUES (1)",
)
TWO: Migration = ("ALTER TABLE things ADD COLUMN word TEXT",)
BROKEN: Migration = ("ALTER TABLE things ADD COLUMN word TEXT", "ALTER TABLE missing ADD COLUMN x")

DIES: Final = f"""
import os, signal, sqlite3, sys
from pathlib import Path
from shared.sqlite.files import migrate

def step():
    yield {TWO[0]!r}
    yield "UPDATE things SET word = 'changed'"
    os.kill(os.getpid(), signal.SIGKILL)

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size=1")  # what the step has changed is in the log already
migrate(connection, Path(sys.argv[1]), ((), step()))
"""


async def opened(path: Path, *migrations: Migration) -> Path | None:
    before = {*path.parent.glob("*.schema-*")}
    await (await Database.open(path, migrations)).close()
    return next(iter({*path.parent.glob("*.schema-*")} - before), None)


def version_and_columns(path: Path) -> tuple[int, list[str]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(things)")]
        return schema_version(connection), columns


async def test_a_copy_is_kept_of_what_was_before_and_of_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    for _ in ("new", "up to date"):
        assert await opened(path, ONE) is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.sqlite", "x.sqlite.lock"]
    copy = await opened(path, ONE, TWO)
    assert copy == tmp_path / "x.sqlite.schema-1"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert version_and_columns(copy) == (1, ["n"])
    assert version_and_columns(path) == (2, ["n", "word"])
    # Back to the copy, and forward again: the first copy is not written over.
    path.write_bytes(copy.read_bytes())
    assert await opened(path, ONE) is None
    assert await opened(path, ONE, TWO) == tmp_path / "x.sqlite.schema-1.2"


async def test_changes_that_are_only_in_the_log_are_in_the_copy(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    await opened(path, ONE)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:  # keeps the log alive
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("INSERT INTO things VALUES (2)")
        copy = await opened(path, ONE, TWO)
    assert copy is not None
    with closing(sqlite3.connect(copy)) as found:
        assert found.execute("SELECT count(*) FROM things").fetchone() == (2,)


async def test_a_step_that_fails_or_a_copy_that_has_no_room_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "x.sqlite"
    await opened(path, ONE)
    with pytest.raises(DatabaseUnavailable, match="no such table: missing"):
        await opened(path, ONE, BROKEN)
    assert version_and_columns(path) == (1, ["n"])
    for copy in tmp_path.glob("*schema*"):
        copy.unlink()
    full = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=20_000))
    monkeypatch.setattr(files, "shutil", full)
    with pytest.raises(DatabaseUnavailable, match="the disk has 20000 free") as end:
        await opened(path, ONE, TWO)
    assert end.value.full
    assert version_and_columns(path) == (1, ["n"])
    assert not list(tmp_path.glob("*schema*"))
    monkeypatch.undo()
    assert await opened(path, ONE, TWO) is not None


async def test_a_kill_in_a_step_leaves_all_as_it_was_and_the_next_start_makes_the_step(tmp_path):
    path = tmp_path / "x.sqlite"
    await opened(path, ONE)
    with closing(sqlite3.connect(path)) as connection:
        more = "WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 9000)"
        connection.execute(f"INSERT INTO things {more} SELECT n FROM n")
        connection.commit()
    log = path.with_name("x.sqlite-wal")
    assert not log.exists() or not log.stat().st_size
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-P", "-c", DIES, path])
    assert killed.returncode == -signal.SIGKILL
    assert log.stat().st_size > 0, "it was killed before the step had written anything"
    assert version_and_columns(path) == (1, ["n"])
    assert await opened(path, ONE, TWO) == tmp_path / "x.sqlite.schema-1.2"
    assert version_and_columns(path) == (2, ["n", "word"])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*), count(word) FROM things").fetchone() == (
            9000,
            0,
        )
