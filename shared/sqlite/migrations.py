"""Database files: check them, bring them to the schema of this program, copy them while in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

from shared.files import durable

Migration: TypeAlias = tuple[str, ...]
"""Statements that lead from one version of the schema to the next."""

_SPARE: Final = 16 << 20
"""Bytes that a copy must leave free."""


class NewerSchema(Exception):
    """The database was written by a later version; this one must not touch it."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"{path}: the database has schema version {found}, this program knows {known}: it was "
            "written by a newer version. Install that version again, or go back to the copy that "
            "was made before the upgrade (operator guide, Upgrade and rollback)"
        )


class NoRoomForCopy(Exception):
    """The disk is too full to copy the database first."""

    def __init__(self, target: Path, needed: int, free: int) -> None:
        super().__init__(
            f"{target}: a copy of the database needs {needed} bytes, the disk has {free} free"
        )


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
    version = schema_version(connection)
    if version > len(migrations):
        raise NewerSchema(path, version, len(migrations))
    copy = None
    if 0 < version < len(migrations):
        copy = _unused(path.with_name(f"{path.name}.schema-{version}"))
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


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copy it as of now into one durable file, mode 0600; others may write meanwhile.

    Raises:
        NoRoomForCopy
        OSError, sqlite3.Error: the copy cannot be written. ``target`` is not there then.
    """
    pages = source.execute("PRAGMA page_count").fetchone()[0]
    needed = pages * source.execute("PRAGMA page_size").fetchone()[0] + _SPARE
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
        durable.seal(partial, target)
    except BaseException:
        durable.remove_quietly(partial)
        raise


def file_size(path: Path) -> int:
    """0: it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where the file's structure is damaged."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {found}")


def _unused(path: Path) -> Path:
    """An earlier copy is never written over."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found
