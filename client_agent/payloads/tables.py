"""The agent's tables, as numbered migrations."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from shared.sqlite.database import Database
from shared.sqlite.migrations import Migration

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_1: Final[Migration] = (
    """
    CREATE TABLE payloads (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        server TEXT,
        key TEXT,
        job_id INTEGER,
        attempt INTEGER,
        -- What its server ordered, and where its bundle is, as JSON.
        given TEXT NOT NULL,
        state TEXT NOT NULL,
        changed INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL DEFAULT 0,
        loc TEXT NOT NULL DEFAULT '',
        pid INTEGER NOT NULL DEFAULT 0,
        enforcement TEXT NOT NULL DEFAULT '{}',
        -- How it ended, as JSON.
        outcome TEXT,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        ended_at INTEGER,
        cleaned_at INTEGER,
        UNIQUE (server, key)
    ) STRICT
    """,
    "CREATE INDEX payloads_of_job ON payloads (server, job_id, attempt)",
    # Acknowledged payloads are looked up only by their keys, so these indexes stay small.
    "CREATE INDEX payloads_told ON payloads (changed) WHERE acknowledged = 0",
    "CREATE INDEX payloads_live ON payloads (id) WHERE ended_at IS NULL",
    """
    CREATE INDEX payloads_kept ON payloads (ended_at)
        WHERE ended_at IS NOT NULL AND cleaned_at IS NULL
    """,
    "CREATE INDEX payloads_cleaned ON payloads (cleaned_at) WHERE cleaned_at IS NOT NULL",
    """
    CREATE TABLE refusals (
        server TEXT NOT NULL,
        key TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (server, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX refusals_of_job ON refusals (server, job_id, attempt)",
    # Change numbers continue from here, even if the row with the highest was removed.
    "CREATE TABLE sequence (value INTEGER NOT NULL) STRICT",
    "INSERT INTO sequence (value) VALUES (0)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    # The highest token of a lease that was seen from each server.
    """
    CREATE TABLE leases (
        server TEXT PRIMARY KEY,
        token INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)

MIGRATIONS: Final = (_1,)


async def open_database(path: Path) -> Database:
    """Open or make it, with the schema of now. Raises DatabaseUnavailable, NewerSchema, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = await Database.open(path, MIGRATIONS)
    if database.upgraded_from is not None:
        log.info("database.upgraded", copy=str(database.upgraded_from))
    return database
