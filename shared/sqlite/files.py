"""Database files: what can be wrong with one, its schema, and copies of it while it is in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from shared.files import durable

_KEPT_FREE: Final = 16 << 20
"""Bytes that a copy must leave free."""
Migration: TypeAlias = tuple[str, ...]
"""Statements that lead from one version of the schema to the next."""


class NewerSchema(Exception):
    """The database was written by a later version; this one must not touch it."""

    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(
            f"{path}: the database has schema version {version}, this program knows {known}: it "
            "was written by a newer version. Install that version again, or go back to the copy "
            "that was made before the upgrade (docs/backup.md, Rollback)"
        )


class NoRoomForCopy(Exception):
    """The disk is too full to copy the database first."""

    def __init__(self, target: Path, needed: int, free: int) -> None:
        super().__init__(
            f"{target}: a copy of the database needs {needed} bytes, the disk has {free} free"
        )


class DatabaseUnavailable(Exception):
    """The database cannot take or give data now.

    Attributes:
        full: the disk is full (HTTP 507); else it is damaged, locked or unreadable (503).
        damaged: the file is corrupt; only an operator can repair that.
    """

    def __init__(self, cause: sqlite3.Error | NoRoomForCopy) -> None:
        text = str(cause)
        self.full = isinstance(cause, NoRoomForCopy) or "full" in text
        malformed = "malformed" in text and "malformed JSON" not in text  # that is one value
        self.damaged = malformed or "not a database" in text
        if isinstance(cause, sqlite3.Error):
            text = f"the database is unusable: {text}"
            text = "no space left for the database" if self.full else text
        super().__init__(text)


def schema_version(connection: sqlite3.Connection) -> int:
    """0: a new database."""
    known = "SELECT 1 FROM sqlite_master WHERE name = 'schema_version'"
    if connection.execute(known).fetchone() is None:
        return 0
    return int(connection.execute("SELECT max(version) FROM schema_version").fetchone()[0] or 0)


def migrate(
    connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]
) -> Path | None:
    """Make the steps that are missing, each in a transaction of its own.

    Returns:
        The copy of the database that was made first; None: there was nothing to do, or it is new.

    Raises:
        NewerSchema, NoRoomForCopy: nothing was changed.
        OSError: the copy cannot be written; nothing was changed.
    """
    version, copy = check_version(connection, path, len(migrations)), None
    if 0 < version < len(migrations):
        copy = unused_name(path.with_name(f"{path.name}.schema-{version}"))
        copy_database(connection, copy)
    if not version:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL) STRICT"
        )
    for number in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        for statement in migrations[number]:
            connection.execute(statement)
        connection.execute("INSERT INTO schema_version (version) VALUES (?)", (number + 1,))
        connection.execute("COMMIT")
    return copy


def unused_name(path: Path) -> Path:
    """A name that no earlier copy has: none is written over."""
    number, unused = 1, path
    while unused.exists():
        number += 1
        unused = path.with_name(f"{path.name}.{number}")
    return unused


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


@contextmanager
def connected(path: Path, mode: str = "rw", timeout_s: float = 10) -> Iterator[sqlite3.Connection]:
    """The database for the block, whatever its folder is called; it is not made.

    Args:
        mode: ``ro`` or ``rw``.
        timeout_s: how long a statement waits for other programs.
    """
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, timeout_s, isolation_level=None, uri=True)
    connection.row_factory = sqlite3.Row
    with closing(connection):
        yield connection


def check_version(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The version of its schema. Raises NewerSchema where this program does not know it."""
    version = schema_version(connection)
    if version > known:
        raise NewerSchema(path, version, known)
    return version


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
