"""What is done to a server's database while the server does not run, and what it takes on disk."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.maintenance.verify import open_known
from server.store.migrations import MIGRATIONS
from shared.files.locks import FileLock, FolderLock
from shared.sqlite.copies import file_size, uri_of
from shared.sqlite.database import Database
from shared.sqlite.errors import NewerSchema, NoRoomForCopy
from shared.sqlite.migrations import schema_version

_BYTES_A_SECOND: Final = 40_000_000
"""That a change of the schema copies and changes, on a slow disk."""
_KEPT_FREE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Vacuumed:
    before: int
    """Bytes."""
    after: int


@dataclass(frozen=True, slots=True)
class TableSize:
    name: str
    rows: int
    bytes: int | None
    """With its indexes; None: this SQLite cannot tell."""


@dataclass(frozen=True, slots=True)
class DatabaseSize:
    bytes: int
    free_bytes: int
    """Of pages that are not in use, inside the file."""
    log_bytes: int
    """Of the write-ahead log."""
    tables: tuple[TableSize, ...]
    """The largest first."""


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    schema: int
    known: int
    """That of this program."""
    copy_bytes: int
    """That the copy will take."""
    free_bytes: int
    seconds: int
    """Roughly."""


def vacuum(data_dir: Path, db_path: Path) -> Vacuumed:
    """Write the whole database again, without free pages and remains of deleted rows. Afterwards it
    gives space back by itself, whichever version made it.

    Raises:
        FolderInUse: a server runs.
        FileNotFoundError, NewerSchema, OldSchema, NoRoomForCopy, sqlite3.Error
    """
    folder = FolderLock(data_dir)
    try:
        lock = FileLock(db_path.with_name(f"{db_path.name}.lock"), db_path, "database")
        try:
            with closing(open_known(db_path, writable=True)) as connection:
                before = _bytes_on_disk(db_path)
                connection.execute("PRAGMA journal_mode=DELETE")
                free = shutil.disk_usage(db_path.parent).free
                needed = 2 * file_size(db_path) + _KEPT_FREE
                if free < needed:
                    raise NoRoomForCopy(db_path, needed, free)
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("VACUUM")
                connection.execute("PRAGMA journal_mode=WAL")
            return Vacuumed(before, _bytes_on_disk(db_path))
        finally:
            lock.close()
    finally:
        folder.close()


def size(db_path: Path) -> DatabaseSize:
    """What it takes; a server may run.

    Raises:
        FileNotFoundError, NewerSchema, OldSchema, sqlite3.Error
    """
    with closing(open_known(db_path)) as connection:
        page, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "freelist_count")
        )
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            )
        ]
        used = _bytes_of(connection)
        tables = [
            TableSize(
                name,
                connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0],  # noqa: S608
                None if used is None else used.get(name, 0),
            )
            for name in names
        ]
    tables.sort(key=lambda table: (-(table.bytes or 0), -table.rows, table.name))
    log = file_size(db_path.with_name(f"{db_path.name}-wal"))
    return DatabaseSize(file_size(db_path), free * page, log, tuple(tables))


def _bytes_of(connection: sqlite3.Connection) -> dict[str, int] | None:
    """Table -> bytes with its indexes."""
    try:
        rows = connection.execute(
            """
            SELECT tbl_name, sum(pgsize) FROM dbstat
            JOIN sqlite_master ON sqlite_master.name = dbstat.name
            WHERE aggregate = TRUE GROUP BY tbl_name
            """
        ).fetchall()
    except sqlite3.OperationalError:  # SQLite without that table
        return None
    return dict(rows)


def upgrade_plan(db_path: Path) -> UpgradePlan:
    """What an upgrade would do; a server of the older version may run.

    Raises:
        FileNotFoundError, NewerSchema, sqlite3.Error
    """
    if not db_path.is_file():
        raise FileNotFoundError(2, "there is no database of a server", str(db_path))
    with closing(sqlite3.connect(uri_of(db_path, "ro"), uri=True)) as connection:
        schema = schema_version(connection)
    if schema > len(MIGRATIONS):
        raise NewerSchema(db_path, schema, len(MIGRATIONS))
    needed = _bytes_on_disk(db_path) if schema < len(MIGRATIONS) else 0
    free = shutil.disk_usage(db_path.parent).free
    seconds = -(-2 * needed // _BYTES_A_SECOND)
    return UpgradePlan(schema, len(MIGRATIONS), needed, free, seconds)


def upgrade(data_dir: Path, db_path: Path) -> Path | None:
    """Bring the schema up to date as a start of the server would.

    Returns:
        The copy that was made before; None: nothing was to be done.

    Raises:
        FolderInUse, NewerSchema, DatabaseUnavailable, FileNotFoundError
    """
    if not db_path.is_file():
        raise FileNotFoundError(2, "there is no database of a server", str(db_path))
    folder = FolderLock(data_dir)
    try:
        return asyncio.run(_upgrade(db_path))
    finally:
        folder.close()


async def _upgrade(db_path: Path) -> Path | None:
    database = await Database.open(db_path, MIGRATIONS)
    await database.close()
    return database.upgraded_from


def _bytes_on_disk(db_path: Path) -> int:
    return sum(file_size(db_path.with_name(f"{db_path.name}{end}")) for end in ("", "-wal"))
