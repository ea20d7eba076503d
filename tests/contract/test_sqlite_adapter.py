"""What the SQLite adapter does with changes, and with files that are not its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable, NewerSchema


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS)
    yield database
    await database.close()


async def test_a_change_that_fails_spoils_no_other(database: Database) -> None:
    async def good(tx):
        await tx.rows("INSERT INTO meta VALUES (:k, 'v')", {"k": "good"})

    async def bad(tx):
        await tx.rows("INSERT INTO meta VALUES ('bad', 'v')")
        raise KeyError("no")

    results = await asyncio.gather(
        database.write(good), database.write(bad), return_exceptions=True
    )
    assert isinstance(results[1], KeyError)
    found = await database.rows("SELECT key FROM meta")
    assert [row["key"] for row in found] == ["good"]


async def test_what_was_handed_in_is_kept_when_the_database_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    database = await Database.open(path, MIGRATIONS)

    async def insert(number: int) -> None:
        await database.write(
            lambda tx: tx.rows("INSERT INTO meta VALUES (:k, '')", {"k": str(number)})
        )

    pending = [asyncio.ensure_future(insert(number)) for number in range(5)]
    await asyncio.gather(*pending)
    await database.close()
    with pytest.raises(DatabaseUnavailable):
        await database.write(lambda tx: tx.rows("SELECT 1"))
    again = await Database.open(path, MIGRATIONS)
    try:
        assert len(await again.rows("SELECT * FROM meta")) == 5
    finally:
        await again.close()


async def test_a_file_that_is_no_database_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(DatabaseUnavailable) as caught:
        await (await Database.open(path, MIGRATIONS)).close()
    assert caught.value.damaged


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    database = await Database.open(path, (*MIGRATIONS, ("CREATE TABLE later (x TEXT) STRICT",)))
    await database.close()
    with pytest.raises(NewerSchema, match="newer version"):
        await (await Database.open(path, MIGRATIONS)).close()
