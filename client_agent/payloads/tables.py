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
        service TEXT NOT NULL,
        user_id TEXT NOT NULL,
        timeout_s REAL NOT NULL,
        limits TEXT NOT NULL,
        bundle_file TEXT NOT NULL,
        bundle_size INTEGER NOT NULL,
        bundle_digest TEXT NOT NULL,
        state TEXT NOT NULL,
        changed INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL DEFAULT 0,
        loc TEXT NOT NULL DEFAULT '',
        pid INTEGER NOT NULL DEFAULT 0,
        reason TEXT,
        message TEXT NOT NULL DEFAULT '',
        exit_code INTEGER,
        interrupted INTEGER NOT NULL DEFAULT 0,
        stderr_tail TEXT NOT NULL DEFAULT '',
        usage TEXT,
        warnings TEXT NOT NULL DEFAULT '[]',
        enforcement TEXT NOT NULL DEFAULT '{}',
        result_size INTEGER,
        result_sha256 TEXT,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        ended_at INTEGER,
        cleaned_at INTEGER,
        stdout_bytes INTEGER,
        stderr_bytes INTEGER,
        heartbeat_timeout_s REAL NOT NULL DEFAULT 0,
        -- What run.sh said, and that it asked to be tried later: of an attempt that has ended.
        live TEXT,
        retry_later TEXT,
        -- What a Ferryman server orders beside its bundle.
        folder TEXT NOT NULL DEFAULT '',
        entry TEXT NOT NULL DEFAULT 'run.sh',
        array_task TEXT,
        env TEXT NOT NULL DEFAULT '{}',
        inputs_file TEXT NOT NULL DEFAULT '',
        on_shutdown TEXT NOT NULL DEFAULT 'stop',
        -- Folders children/NAME with a run.sh that the result holds.
        children INTEGER NOT NULL DEFAULT 0,
        -- Which files the result is to have.
        outputs TEXT NOT NULL DEFAULT '[]',
        result_files TEXT NOT NULL DEFAULT 'all',
        -- With which others it may share a sandbox start.
        pack TEXT,
        -- Which try it is for its script; 0: the attempt of its key.
        try_number INTEGER NOT NULL DEFAULT 0,
        -- JSON that its user stored with it.
        meta TEXT NOT NULL DEFAULT '',
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
