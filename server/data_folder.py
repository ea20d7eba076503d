"""The folder of everything that the server keeps: locked, with its clock and database."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from server.settings.tables import ServerTable
from server.store.migrations import MIGRATIONS
from shared.clock import Clock
from shared.files.locks import FolderLock
from shared.sqlite.database import Database
from shared.steady_clock import PersistentClock

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def database_path(table: ServerTable) -> Path:
    """Where the database is."""
    return table.db_path or table.data_dir / "ferryman.sqlite"


def lock_folder(table: ServerTable, stack: AsyncExitStack) -> None:
    """Make the folder if it is missing, and hold its lock until the stack is closed.

    Raises:
        FolderInUse, OSError
    """
    table.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stack.callback(FolderLock(table.data_dir).close)


async def open_data(
    table: ServerTable, machine: Clock, stack: AsyncExitStack
) -> tuple[PersistentClock, Database]:
    """Open them in the locked folder; the stack closes them.

    Raises:
        DatabaseUnavailable, OSError
    """
    clock = PersistentClock(table.data_dir, machine)
    path = database_path(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    database = await Database.open(path, MIGRATIONS, clock)
    stack.push_async_callback(database.close)
    if database.upgraded_from is not None:
        log.info("database.upgraded", copy=str(database.upgraded_from))
    return clock, database
