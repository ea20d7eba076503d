"""The migrations that a release has: they are never changed."""

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

_5: Migration = (
    """
    CREATE TABLE attempts (
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        number INTEGER NOT NULL,
        state TEXT NOT NULL,
        agent TEXT NOT NULL,
        agent_id TEXT,
        payload_id INTEGER,
        lease INTEGER NOT NULL DEFAULT 0,
        limits TEXT NOT NULL,
        timeout_s REAL NOT NULL,
        claimed_at INTEGER NOT NULL,
        submitted_at INTEGER,
        started_at INTEGER,
        ended_at INTEGER,
        message TEXT NOT NULL DEFAULT '',
        reason TEXT,
        exit_code INTEGER,
        stderr_tail TEXT NOT NULL DEFAULT '',
        warnings TEXT NOT NULL DEFAULT '[]',
        enforcement TEXT NOT NULL DEFAULT '{}',
        usage TEXT,
        result_file TEXT,
        result_size INTEGER,
        result_sha256 TEXT,
        stdout_bytes INTEGER,
        stderr_bytes INTEGER,
        PRIMARY KEY (job_id, number)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX attempts_results ON attempts (result_file) WHERE result_file IS NOT NULL",
    # Earlier attempts of a job were not recorded: the last one is what its row says.
    """
    INSERT INTO attempts
    SELECT id, attempt, state, agent, NULL, payload_id, 0, limits, timeout_s,
           coalesce((SELECT max(at) FROM events WHERE job_id = jobs.id AND state = 'Processing'),
                    queued_at),
           submitted_at, started_at, ended_at, message, reason, exit_code, stderr_tail, warnings,
           enforcement, usage, result_file, result_size, result_sha256, NULL, NULL
    FROM jobs WHERE agent IS NOT NULL AND attempt > 0 AND state != 'Cleaned'
    """,
    """
    CREATE TABLE bundles (
        file TEXT PRIMARY KEY,
        digest TEXT NOT NULL,
        size INTEGER NOT NULL,
        refs INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        shared INTEGER NOT NULL DEFAULT 1
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX bundles_by_content ON bundles (digest, size) WHERE shared = 1",
    # Each job had a file of its own and keeps it, so that the copy of the database that was made
    # before this step has its files, too. Later jobs share the newest of each content.
    """
    INSERT INTO bundles (file, digest, size, refs, created_at, shared)
    SELECT bundle_file, bundle_digest, bundle_size, 1, created_at,
           CASE id WHEN max(id) OVER (PARTITION BY bundle_digest, bundle_size) THEN 1 ELSE 0 END
    FROM jobs WHERE bundle_file IS NOT NULL
    """,
    "DROP INDEX jobs_bundles",
    "DROP INDEX jobs_results",
    # Bytes of the results of all attempts.
    "ALTER TABLE jobs ADD COLUMN results_size INTEGER NOT NULL DEFAULT 0",
    "UPDATE jobs SET results_size = result_size WHERE result_file IS NOT NULL",
    "DROP INDEX jobs_stored",
    """
    CREATE INDEX jobs_stored ON jobs (user_id, bundle_size, results_size)
        WHERE bundle_file IS NOT NULL
    """,
    # The principal who uploaded it; NULL: before there were principals.
    "ALTER TABLE jobs ADD COLUMN submitted_by TEXT",
    "CREATE INDEX jobs_by_submitter ON jobs (submitted_by, id) WHERE submitted_by IS NOT NULL",
    """
    CREATE TABLE agents (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        address TEXT NOT NULL,
        state TEXT NOT NULL,
        message TEXT NOT NULL DEFAULT '',
        labels TEXT NOT NULL DEFAULT '{}',
        resources TEXT NOT NULL DEFAULT '{}',
        version TEXT,
        created_at INTEGER NOT NULL,
        last_heard_at INTEGER,
        unreachable_s REAL NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX agents_by_name ON agents (name) WHERE state != 'retired'",
    """
    CREATE TABLE leases (
        name TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        token INTEGER NOT NULL,
        until INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    # Who of a service's users was served last: the next one in order is due.
    """
    CREATE TABLE services (
        name TEXT PRIMARY KEY,
        last_user TEXT NOT NULL DEFAULT ''
    ) STRICT, WITHOUT ROWID
    """,
)

RELEASED: Final = (_1, _2, _3, _4, _5)
