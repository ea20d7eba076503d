"""One connection to a database file, in a thread of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import aiosqlite

from shared.clock import Clock
from shared.sql import Params, T
from shared.sqlite.copies import file_size

_FETCHED_AT_ONCE: Final = 64  # rows, where aiosqlite iterates
_PRAGMAS: Final = (
    "busy_timeout=10000",
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",  # what was deleted is overwritten, whichever SQLite this is
)


class Connection(aiosqlite.Connection):
    """Runs whole pieces of work in its thread, where aiosqlite's own methods run one statement."""

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: sqlite3.connect(path, isolation_level=None), _FETCHED_AT_ONCE)

    async def set_up(self, path: Path, clock: Clock) -> None:
        """Make it ready for statements, which know the time of ``clock`` as ``now_us()``; a new
        file also learns to give space back.
        """
        self.row_factory = sqlite3.Row
        await self.create_function("now_us", 0, clock.now)
        if not file_size(path):  # possible in an empty file only
            await self.rows("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in _PRAGMAS:
            await self.rows(f"PRAGMA {pragma}")

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        value: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return value

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[sqlite3.Row]:
        return list(await self.execute_fetchall(sql, params or {}))
