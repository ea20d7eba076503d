"""Connections to a SQLite file, each with a thread of its own: all that is used of aiosqlite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import aiosqlite

from shared.sql import T
from shared.sqlite.files import file_size

Connection: TypeAlias = aiosqlite.Connection
_PRAGMAS: Final = (
    "busy_timeout=10000",
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",  # what was deleted is overwritten, whichever SQLite this is
)


async def connect(path: Path, *, reads: bool) -> Connection:
    """Open the file, which is there; ``reads``: to read only. Raises sqlite3.Error."""
    connection = await aiosqlite.connect(path, isolation_level=None)
    try:
        await run_in(connection, lambda raw: _set_up(raw, path, reads=reads))
    except BaseException:
        await connection.close()  # else its thread would keep the program from ending
        raise
    return connection


async def run_in(connection: Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run a whole piece of work in its thread, where aiosqlite's own methods run one statement."""
    value: T = await connection._execute(work, connection._conn)  # type: ignore[no-untyped-call]
    return value


def _set_up(connection: sqlite3.Connection, path: Path, *, reads: bool) -> None:
    """Make it ready for statements; a new file also learns to give space back."""
    connection.row_factory = sqlite3.Row
    if not file_size(path):  # possible in an empty file only
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    if reads:
        connection.execute("PRAGMA query_only=ON")
