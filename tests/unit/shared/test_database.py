"""The adapter over SQLite: shared commits, and nothing kept of a change that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from shared.database import Database, DatabaseUnavailable, Transaction

MIGRATIONS = [("CREATE TABLE numbers (n INTEGER PRIMARY KEY) STRICT",)]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "test.sqlite", MIGRATIONS)
    yield opened
    await opened.close()


def add(*numbers: int, fail: Exception | None = None):
    async def change(tx: Transaction) -> int:
        for number in numbers:
            await tx.rows("INSERT INTO numbers (n) VALUES (:n)", {"n": number})
        if fail is not None:
            raise fail
        found = await tx.rows("SELECT count(*) AS count FROM numbers")
        return int(found[0]["count"])

    return change


async def kept(database: Database) -> list[int]:
    return [row["n"] for row in await database.rows("SELECT n FROM numbers ORDER BY n")]


async def test_a_change_is_kept_whole_or_not_at_all(database: Database) -> None:
    assert await database.write(add(1, 2)) == 2
    with pytest.raises(KeyError):
        await database.write(add(3, fail=KeyError("no")))
    assert await kept(database) == [1, 2]


async def test_a_change_that_fails_spoils_no_other_that_shares_its_commit(
    database: Database,
) -> None:
    writes = (add(1), add(2, fail=KeyError("no")), add(1), add(4))
    ends = await asyncio.gather(*map(database.write, writes), return_exceptions=True)
    first, second, third, fourth = ends
    assert (first, fourth) == (1, 2)
    assert isinstance(second, KeyError)
    assert "UNIQUE constraint failed" in str(third)
    assert not isinstance(third, DatabaseUnavailable)
    assert await kept(database) == [1, 4]


class Elsewhere:
    """Something that a change must not wait for."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def test_a_change_that_waits_for_anything_else_is_refused(database: Database) -> None:
    async def change(tx: Transaction) -> None:
        await tx.rows("INSERT INTO numbers (n) VALUES (1)")
        await Elsewhere()

    with pytest.raises(RuntimeError, match="waited for something else"):
        await database.write(change)
    assert await kept(database) == []
    assert await database.write(add(2)) == 1


async def test_after_closing_nothing_is_taken(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "test.sqlite", MIGRATIONS)
    last = asyncio.ensure_future(database.write(add(1)))
    await asyncio.wait([asyncio.ensure_future(database.close())])
    assert await last == 1
    with pytest.raises(DatabaseUnavailable, match="closed"):
        await database.write(add(2))


async def test_what_is_created_is_closed_to_others(tmp_path: Path) -> None:
    """Wherever the operator puts it."""
    tmp_path.chmod(0o755)
    path = tmp_path / "some.sqlite"
    database = await Database.open(path, MIGRATIONS)
    try:
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        await database.close()
    assert modes == dict.fromkeys((path.name, f"{path.name}-wal", f"{path.name}-shm"), 0o600)


async def test_a_mode_that_the_operator_gave_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "some.sqlite"
    await (await Database.open(path, MIGRATIONS)).close()
    path.chmod(0o640)
    await (await Database.open(path, MIGRATIONS)).close()
    assert path.stat().st_mode & 0o777 == 0o640
