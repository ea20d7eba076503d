"""The schema, one step after another; a step that was released is never changed.

Times are integers, microseconds since 1970-01-01 UTC. JSON is TEXT.
"""

from __future__ import annotations

from typing import Final

from shared.sqlite.migrations import Migration

_1: Migration = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT
    """,
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        state TEXT NOT NULL,
        user_id TEXT NOT NULL,
        service TEXT NOT NULL,
        name TEXT,
        tags TEXT NOT NULL DEFAULT '[]',
        priority INTEGER NOT NULL DEFAULT 0,
        limits TEXT NOT NULL,
        timeout_s REAL NOT NULL,
        attempt INTEGER NOT NULL DEFAULT 0,
        retries_used INTEGER NOT NULL DEFAULT 0,
        infra_used INTEGER NOT NULL DEFAULT 0,
        message TEXT NOT NULL DEFAULT '',
        reason TEXT,
        exit_code INTEGER,
        stderr_tail TEXT NOT NULL DEFAULT '',
        warnings TEXT NOT NULL DEFAULT '[]',
        enforcement TEXT NOT NULL DEFAULT '{}',
        usage TEXT,
        agent TEXT,
        payload_id INTEGER,
        bundle_file TEXT,
        bundle_size INTEGER NOT NULL,
        bundle_digest TEXT NOT NULL,
        result_file TEXT,
        result_size INTEGER,
        result_sha256 TEXT,
        created_at INTEGER NOT NULL,
        queued_at INTEGER NOT NULL,
        submitted_at INTEGER,
        started_at INTEGER,
        ended_at INTEGER,
        not_before INTEGER NOT NULL DEFAULT 0,
        expires_at INTEGER,
        cancel_requested_at INTEGER
    ) STRICT
    """,
    # Partial, so that a million ended jobs cost the loops nothing.
    "CREATE INDEX jobs_queued ON jobs (service, user_id, id) WHERE state = 'Queued'",
    "CREATE INDEX jobs_queued_by_age ON jobs (service, queued_at) WHERE state = 'Queued'",
    """
    CREATE INDEX jobs_held ON jobs (state, agent, service, user_id)
        WHERE state IN ('Processing', 'Submitted', 'Running', 'Unknown')
    """,
    "CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL",
    """
    CREATE INDEX jobs_to_cancel ON jobs (id)
        WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL
    """,
    "CREATE INDEX jobs_bundles ON jobs (bundle_file) WHERE bundle_file IS NOT NULL",
    "CREATE INDEX jobs_results ON jobs (result_file) WHERE result_file IS NOT NULL",
    "CREATE INDEX jobs_of_user ON jobs (user_id, id)",
    """
    CREATE TABLE job_tags (
        tag TEXT NOT NULL,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        PRIMARY KEY (tag, job_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        at INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        before TEXT,
        state TEXT NOT NULL,
        reason TEXT,
        message TEXT NOT NULL
    ) STRICT
    """,
    "CREATE INDEX events_of_job ON events (job_id, seq)",
    """
    CREATE TABLE idempotency_keys (
        user_id TEXT NOT NULL,
        key TEXT NOT NULL,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        created_at INTEGER NOT NULL,
        PRIMARY KEY (user_id, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at)",
)

_2: Migration = (
    # Lists: each choice of user, service and state finds its newest jobs without a scan; where no
    # state is chosen, the states are merged.
    "CREATE INDEX jobs_by_state ON jobs (state, id)",
    "CREATE INDEX jobs_by_service ON jobs (service, state, id)",
    "CREATE INDEX jobs_by_user ON jobs (user_id, state, id)",
    "CREATE INDEX jobs_by_user_and_service ON jobs (user_id, service, state, id)",
    "DROP INDEX jobs_of_user",
    # not_before is 0 once the job may be sent, so that the queue's index holds no delayed jobs.
    "DROP INDEX jobs_queued",
    """
    CREATE INDEX jobs_queued ON jobs (service, user_id, not_before, id)
        WHERE state = 'Queued' AND not_before = 0
    """,
    """
    CREATE INDEX jobs_delayed ON jobs (state, not_before)
        WHERE state = 'Queued' AND not_before > 0
    """,
    """
    CREATE INDEX jobs_delayed_by_age ON jobs (state, queued_at)
        WHERE state = 'Queued' AND not_before > 0
    """,
    # Deleting jobs: what refers to them is found without a scan.
    "CREATE INDEX jobs_cleaned ON jobs (state, service, ended_at) WHERE state = 'Cleaned'",
    "CREATE INDEX job_tags_of_job ON job_tags (job_id)",
    "CREATE INDEX idempotency_keys_of_job ON idempotency_keys (job_id)",
    """
    DELETE FROM idempotency_keys
    WHERE job_id IN (SELECT id FROM jobs WHERE state = 'Cleaned')
    """,
)

_3: Migration = ("ALTER TABLE jobs ADD COLUMN upload_warnings TEXT NOT NULL DEFAULT '[]'",)

_4: Migration = (
    # What a user's bundles and results take, from the index alone.
    """
    CREATE INDEX jobs_stored ON jobs (user_id, bundle_size, result_size)
        WHERE bundle_file IS NOT NULL
    """,
)

MIGRATIONS: Final = (_1, _2, _3, _4)
