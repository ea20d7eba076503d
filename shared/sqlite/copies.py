"""Copies of database files that are in use, and the check of a file's structure."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from shared.files import durable
from shared.sqlite.errors import NoRoomForCopy

_KEPT_FREE: Final = 16 << 20
"""Bytes that a copy must leave free."""


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copy it as of now into one durable file, mode 0600; others may write meanwhile.

    Raises:
        NoRoomForCopy
        OSError, sqlite3.Error: the copy cannot be written. ``target`` is not there then.
    """
    pages = source.execute("PRAGMA page_count").fetchone()[0]
    needed = pages * source.execute("PRAGMA page_size").fetchone()[0] + _KEPT_FREE
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise NoRoomForCopy(target, needed, free)
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, nothing beside it
        durable.replace(partial, target)
    except BaseException:
        durable.remove_quietly(partial)
        raise


def uri_of(path: Path, mode: str) -> str:
    """To open the database in this mode, whatever its folder is called."""
    return f"{path.absolute().as_uri()}?mode={mode}"


def file_size(path: Path) -> int:
    """0: it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check_structure(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where the file's structure is damaged."""
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {result}")


def empty_log(connection: sqlite3.Connection) -> sqlite3.Row:
    """Move it to the file and cut it off; the first number is 1 where somebody reads."""
    row: sqlite3.Row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return row
