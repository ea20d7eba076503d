"""Schema migrations: bring a database file to the schema of this program."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from shared.sqlite.copies import copy_database
from shared.sqlite.errors import NewerSchema

Migration: TypeAlias = tuple[str, ...]
"""Statements that lead from one version of the schema to the next."""


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
