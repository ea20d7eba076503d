"""The schema, one step after another; a step that was released is never changed.

Times are integers, microseconds since 1970-01-01 UTC. JSON is TEXT.
"""

from __future__ import annotations

from typing import Final

from server.store.latest_migrations import LATEST
from server.store.released_migrations import RELEASED
from shared.sqlite.migrations import Migration

_6: Migration = (
    # What an upload may ask for. NULL: the service's.
    "ALTER TABLE jobs ADD COLUMN retry TEXT",
    "ALTER TABLE jobs ADD COLUMN queue_timeout_s REAL",
    "ALTER TABLE jobs ADD COLUMN heartbeat_timeout_s REAL",
    "ALTER TABLE jobs ADD COLUMN expires_after_s REAL",
    "ALTER TABLE jobs ADD COLUMN meta TEXT",
    # Its life so far.
    "ALTER TABLE jobs ADD COLUMN run INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE jobs ADD COLUMN later_used INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN dead_letter INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN delete_requested_at INTEGER",
    "ALTER TABLE jobs ADD COLUMN heartbeat_at INTEGER",
    "ALTER TABLE jobs ADD COLUMN progress TEXT",
    "ALTER TABLE jobs ADD COLUMN output TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE attempts ADD COLUMN progress TEXT",
    "ALTER TABLE attempts ADD COLUMN output TEXT NOT NULL DEFAULT '{}'",
    # Several results may be stored in one file.
    "ALTER TABLE jobs ADD COLUMN result_offset INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE attempts ADD COLUMN result_offset INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN waits_since INTEGER",
    # Batches and dependencies.
    "ALTER TABLE jobs ADD COLUMN hold TEXT",
    "ALTER TABLE jobs ADD COLUMN parent_id INTEGER REFERENCES jobs (id)",
    "ALTER TABLE jobs ADD COLUMN child_name TEXT",
    "ALTER TABLE jobs ADD COLUMN array_index INTEGER",
    "ALTER TABLE jobs ADD COLUMN array_file TEXT",
    "ALTER TABLE jobs ADD COLUMN bundle_folder TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE jobs ADD COLUMN deferred INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN gather INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN schedule_id INTEGER",
    "ALTER TABLE jobs ADD COLUMN after TEXT NOT NULL DEFAULT '[]'",
    "ALTER TABLE jobs ADD COLUMN inputs_from TEXT NOT NULL DEFAULT '[]'",
    """
    CREATE TABLE batches (
        parent_id INTEGER PRIMARY KEY REFERENCES jobs (id),
        ranges TEXT NOT NULL DEFAULT '[]',
        array_file TEXT,
        bundle_file TEXT,
        bundle_size INTEGER,
        bundle_digest TEXT,
        max_parallel INTEGER NOT NULL DEFAULT 0,
        fail_fast INTEGER NOT NULL DEFAULT 0,
        has_gather INTEGER NOT NULL DEFAULT 0,
        total INTEGER NOT NULL,
        made INTEGER NOT NULL DEFAULT 0,
        completed INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        cancelled INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    """
    CREATE TABLE dependencies (
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        on_id INTEGER NOT NULL,
        inputs INTEGER NOT NULL DEFAULT 0,
        state TEXT NOT NULL DEFAULT 'waiting',
        PRIMARY KEY (job_id, on_id)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX dependencies_on ON dependencies (on_id)",
    "CREATE INDEX dependencies_open ON dependencies (state, on_id) WHERE state = 'waiting'",
    """
    CREATE INDEX jobs_waiting ON jobs (state, hold, id)
        WHERE state = 'Queued' AND hold = 'dependency'
    """,
    # The queue: what may be claimed now, each user's jobs in their order.
    "DROP INDEX jobs_queued",
    """
    CREATE INDEX jobs_queued ON jobs (service, user_id, priority DESC, id)
        WHERE state = 'Queued' AND not_before = 0 AND hold IS NULL AND deferred = 0
    """,
    "DROP INDEX jobs_held",
    """
    CREATE INDEX jobs_held ON jobs (state, agent, service, user_id)
        WHERE deferred = 0 AND state IN ('Processing', 'Submitted', 'Running', 'Unknown')
    """,
    "DROP INDEX jobs_delayed_by_age",
    """
    CREATE INDEX jobs_delayed_by_age ON jobs (state, queued_at)
        WHERE state = 'Queued' AND not_before > 0 AND attempt > 0
    """,
    # Lists, newest first.
    "CREATE INDEX jobs_by_time ON jobs (created_at, id)",
    "CREATE INDEX jobs_by_reason ON jobs (reason, id) WHERE reason IS NOT NULL",
    "CREATE INDEX jobs_by_name ON jobs (name, id) WHERE name IS NOT NULL",
    # Queue timeouts: the service's, and those of jobs that have their own.
    """
    CREATE INDEX jobs_by_wait ON jobs (service, coalesce(waits_since, queued_at))
        WHERE state = 'Queued' AND hold IS NULL
    """,
    """
    CREATE INDEX jobs_by_deadline ON jobs
        (service, (coalesce(waits_since, queued_at) + queue_timeout_s * 1000000.0))
        WHERE state = 'Queued' AND hold IS NULL AND queue_timeout_s > 0
    """,
    """
    CREATE INDEX jobs_deferred ON jobs (state, id)
        WHERE deferred = 1 AND state IN ('Queued', 'Running')
    """,
    # The children of a batch share its bundle, which counts once.
    "DROP INDEX jobs_stored",
    """
    CREATE INDEX jobs_stored ON jobs (user_id, bundle_size, results_size, parent_id)
        WHERE bundle_file IS NOT NULL
    """,
    "CREATE INDEX jobs_of_parent ON jobs (parent_id, id) WHERE parent_id IS NOT NULL",
    """
    CREATE INDEX jobs_held_back ON jobs (parent_id, id)
        WHERE state = 'Queued' AND hold = 'parallel'
    """,
    "CREATE INDEX jobs_dead ON jobs (id) WHERE dead_letter = 1",
    "CREATE INDEX jobs_to_delete ON jobs (id) WHERE delete_requested_at IS NOT NULL",
    "CREATE INDEX jobs_of_schedule ON jobs (schedule_id, id) WHERE schedule_id IS NOT NULL",
    """
    CREATE INDEX jobs_open_of_schedule ON jobs (schedule_id, id)
        WHERE schedule_id IS NOT NULL AND ended_at IS NULL
    """,
    # Events that are no moves, too.
    "ALTER TABLE events ADD COLUMN event TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE events ADD COLUMN level TEXT NOT NULL DEFAULT 'info'",
    "ALTER TABLE events ADD COLUMN agent TEXT",
    "ALTER TABLE events ADD COLUMN fields TEXT NOT NULL DEFAULT '{}'",
    "UPDATE events SET event = 'job.' || lower(state)",
    # Services: those that operators made at run time have settings here.
    "ALTER TABLE services ADD COLUMN paused INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE services ADD COLUMN paused_message TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE services ADD COLUMN settings TEXT",
    "ALTER TABLE services ADD COLUMN env TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE services ADD COLUMN secrets TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE services ADD COLUMN retired INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE services ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE schedules (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        user_id TEXT NOT NULL,
        service TEXT NOT NULL,
        submitted_by TEXT,
        cron TEXT NOT NULL,
        time_zone TEXT NOT NULL,
        fields TEXT NOT NULL,
        bundle_file TEXT NOT NULL,
        bundle_size INTEGER NOT NULL,
        bundle_digest TEXT NOT NULL,
        has_gather INTEGER NOT NULL DEFAULT 0,
        next_at INTEGER NOT NULL,
        last_at INTEGER,
        last_job_id INTEGER,
        message TEXT NOT NULL DEFAULT '',
        created_at INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX schedules_of_user ON schedules (user_id, name)",
)

_7: Migration = (
    # What an upload may ask for.
    "ALTER TABLE jobs ADD COLUMN outputs TEXT NOT NULL DEFAULT '[]'",
    "ALTER TABLE jobs ADD COLUMN result_files TEXT NOT NULL DEFAULT 'all'",
    "ALTER TABLE jobs ADD COLUMN callback_url TEXT",
    # Who may call.
    """
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY,
        digest TEXT NOT NULL,
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        user_id TEXT,
        users TEXT NOT NULL DEFAULT '[]',
        scopes TEXT,
        created_at INTEGER NOT NULL,
        created_by TEXT NOT NULL,
        expires_at INTEGER,
        last_used_at INTEGER,
        last_used_from TEXT,
        revoked_at INTEGER,
        former_digest TEXT,
        former_until INTEGER,
        version INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX tokens_by_name ON tokens (name)",
    "CREATE INDEX tokens_by_time ON tokens (created_at, id)",
    "CREATE INDEX tokens_by_version ON tokens (version)",
    # Upload tickets that were used; the tickets themselves are signed, and not stored.
    """
    CREATE TABLE used_tickets (
        id TEXT PRIMARY KEY,
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX used_tickets_by_end ON used_tickets (expires_at)",
    # Bytes that were uploaded for a user on a day, counted from 1970-01-01 UTC.
    """
    CREATE TABLE uploaded (
        user_id TEXT NOT NULL,
        day INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        PRIMARY KEY (user_id, day)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX uploaded_by_day ON uploaded (day)",
    # Who did what.
    """
    CREATE TABLE audit (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        principal TEXT NOT NULL,
        role TEXT,
        token_id TEXT,
        acts_as TEXT,
        action TEXT NOT NULL,
        target TEXT NOT NULL DEFAULT '',
        status INTEGER NOT NULL,
        code TEXT,
        peer TEXT NOT NULL DEFAULT '',
        request_id TEXT NOT NULL DEFAULT '',
        left_out INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    "CREATE INDEX audit_by_time ON audit (at)",
    "CREATE INDEX audit_by_principal ON audit (principal, seq)",
    "CREATE INDEX audit_by_target ON audit (target, seq) WHERE target <> ''",
    # Webhooks: what has to be delivered, and how the tries went.
    """
    CREATE TABLE deliveries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id INTEGER NOT NULL,
        user_id TEXT NOT NULL,
        service TEXT NOT NULL,
        signer_kind TEXT NOT NULL,
        signer_name TEXT NOT NULL,
        url TEXT NOT NULL,
        target TEXT NOT NULL,
        event TEXT NOT NULL,
        body TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'pending',
        message TEXT NOT NULL DEFAULT '',
        tries INTEGER NOT NULL DEFAULT 0,
        tries_before INTEGER NOT NULL DEFAULT 0,
        next_at INTEGER,
        created_at INTEGER NOT NULL,
        ended_at INTEGER
    ) STRICT
    """,
    "CREATE INDEX deliveries_due ON deliveries (next_at) WHERE next_at IS NOT NULL",
    "CREATE INDEX deliveries_of_job ON deliveries (job_id, id)",
    "CREATE INDEX deliveries_of_user ON deliveries (user_id, id)",
    "CREATE INDEX deliveries_of_signer ON deliveries (signer_kind, signer_name, id)",
    "CREATE INDEX deliveries_by_end ON deliveries (ended_at) WHERE ended_at IS NOT NULL",
    """
    CREATE TABLE delivery_tries (
        delivery_id INTEGER NOT NULL REFERENCES deliveries (id),
        number INTEGER NOT NULL,
        at INTEGER NOT NULL,
        seconds REAL NOT NULL,
        status INTEGER,
        problem TEXT,
        PRIMARY KEY (delivery_id, number)
    ) STRICT, WITHOUT ROWID
    """,
)

MIGRATIONS: Final = (*RELEASED, _6, _7, *LATEST)
