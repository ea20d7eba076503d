"""The schema. The first release has it as its first step; later ones add steps.

Times are integers, microseconds since 1970-01-01 UTC. JSON is TEXT. Of what an upload may ask for,
NULL is the service's.
"""

from __future__ import annotations

from typing import Final

from shared.sqlite.files import Migration

TOP: Final = "CASE WHEN parent_id IS NULL THEN 1 ELSE 0 END"
"""Of a job in the indexes of lists: 0: it is a child."""

_1: Migration = (
    """
    CREATE TABLE meta (
        key TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT
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
        cancel_requested_at INTEGER,
        upload_warnings TEXT NOT NULL DEFAULT '[]',
        results_size INTEGER NOT NULL DEFAULT 0,
        submitted_by TEXT,
        retry TEXT,
        queue_timeout_s REAL,
        heartbeat_timeout_s REAL,
        expires_after_s REAL,
        meta TEXT,
        run INTEGER NOT NULL DEFAULT 1,
        later_used INTEGER NOT NULL DEFAULT 0,
        dead_letter INTEGER NOT NULL DEFAULT 0,
        delete_requested_at INTEGER,
        heartbeat_at INTEGER,
        progress TEXT,
        output TEXT NOT NULL DEFAULT '{}',
        result_inputs INTEGER NOT NULL DEFAULT 0,
        waits_since INTEGER,
        hold TEXT,
        parent_id INTEGER REFERENCES jobs (id),
        child_name TEXT,
        array_index INTEGER,
        array_line TEXT,
        bundle_folder TEXT NOT NULL DEFAULT '',
        deferred INTEGER NOT NULL DEFAULT 0,
        gather INTEGER NOT NULL DEFAULT 0,
        schedule_id INTEGER,
        after TEXT NOT NULL DEFAULT '[]',
        inputs_from TEXT NOT NULL DEFAULT '[]',
        outputs TEXT NOT NULL DEFAULT '[]',
        result_files TEXT NOT NULL DEFAULT 'all',
        callback_url TEXT,
        idempotency_key TEXT
    ) STRICT
    """,
    # Partial, so that a million ended jobs cost the loops nothing.
    "CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL",
    """
    CREATE INDEX jobs_to_cancel ON jobs (id)
        WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL
    """,
    # not_before is 0 once the job may be sent, so that the queue's index holds no delayed jobs.
    """
    CREATE INDEX jobs_delayed ON jobs (state, not_before)
        WHERE state = 'Queued' AND not_before > 0
    """,
    "CREATE INDEX jobs_cleaned ON jobs (state, service, ended_at) WHERE state = 'Cleaned'",
    "CREATE INDEX jobs_by_submitter ON jobs (submitted_by, id) WHERE submitted_by IS NOT NULL",
    """
    CREATE INDEX jobs_waiting ON jobs (state, hold, id)
        WHERE state = 'Queued' AND hold = 'dependency'
    """,
    # The queue: what may be claimed now, each user's jobs in their order.
    """
    CREATE INDEX jobs_queued ON jobs (service, user_id, priority DESC, id)
        WHERE state = 'Queued' AND not_before = 0 AND hold IS NULL AND deferred = 0
    """,
    """
    CREATE INDEX jobs_held ON jobs (state, agent, service, user_id)
        WHERE deferred = 0 AND state IN ('Processing', 'Submitted', 'Running', 'Unknown')
    """,
    # Uploads that are repeated.
    """
    CREATE UNIQUE INDEX jobs_by_key ON jobs (user_id, idempotency_key)
        WHERE idempotency_key IS NOT NULL
    """,
    "CREATE INDEX jobs_with_key ON jobs (created_at) WHERE idempotency_key IS NOT NULL",
    # Lists, newest first.
    "CREATE INDEX jobs_by_time ON jobs (created_at, id)",
    "CREATE INDEX jobs_by_reason ON jobs (reason, id) WHERE reason IS NOT NULL",
    "CREATE INDEX jobs_by_name ON jobs (name, id) WHERE name IS NOT NULL",
    # Queue timeouts: those of jobs that have their own, and the service's (jobs_by_wait).
    """
    CREATE INDEX jobs_by_deadline ON jobs
        (service, (coalesce(waits_since, queued_at) + queue_timeout_s * 1000000.0))
        WHERE state = 'Queued' AND hold IS NULL AND queue_timeout_s > 0
    """,
    """
    CREATE INDEX jobs_deferred ON jobs (state, id)
        WHERE deferred = 1 AND state IN ('Queued', 'Running')
    """,
    # What a user's bundles and results take. The children of a batch share its bundle.
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
    # Lists and counts by state. Children are apart, because they may be most of all jobs. What is
    # compared nowhere else comes first, so that no other query takes one of these.
    f"CREATE INDEX jobs_listed ON jobs (({TOP}), state, id)",
    f"CREATE INDEX jobs_listed_by_service ON jobs (({TOP}), service, state, id)",
    f"CREATE INDEX jobs_listed_by_user ON jobs (({TOP}), user_id, state, id)",
    f"CREATE INDEX jobs_listed_by_both ON jobs (({TOP}), user_id, service, state, id)",
    """
    CREATE INDEX jobs_by_wait ON jobs (service, hold, coalesce(waits_since, queued_at), user_id)
        WHERE state = 'Queued'
    """,
    """
    CREATE TABLE job_tags (
        tag TEXT NOT NULL,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        PRIMARY KEY (tag, job_id)
    ) STRICT, WITHOUT ROWID
    """,
    # Deleting jobs: what refers to them is found without a scan.
    "CREATE INDEX job_tags_of_job ON job_tags (job_id)",
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        at INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        before TEXT,
        state TEXT NOT NULL,
        reason TEXT,
        message TEXT NOT NULL,
        event TEXT NOT NULL DEFAULT '',
        level TEXT NOT NULL DEFAULT 'info',
        agent TEXT,
        fields TEXT NOT NULL DEFAULT '{}'
    ) STRICT
    """,
    "CREATE INDEX events_of_job ON events (job_id, seq)",
    """
    CREATE TABLE attempts (
        job_id INTEGER NOT NULL REFERENCES jobs (id),
        number INTEGER NOT NULL,
        state TEXT NOT NULL,
        agent TEXT NOT NULL,
        agent_id TEXT,
        payload_id INTEGER,
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
        progress TEXT,
        output TEXT NOT NULL DEFAULT '{}',
        result_inputs INTEGER NOT NULL DEFAULT 0,
        joined_sha256 TEXT,
        PRIMARY KEY (job_id, number)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX attempts_results ON attempts (result_file) WHERE result_file IS NOT NULL",
    # Small bundles and results, by the names that others have as files.
    """
    CREATE TABLE contents (
        name TEXT PRIMARY KEY,
        bytes BLOB NOT NULL
    ) STRICT
    """,
    # A stored bundle, and how many jobs, batches and schedules refer to it.
    """
    CREATE TABLE bundles (
        file TEXT PRIMARY KEY,
        digest TEXT NOT NULL,
        size INTEGER NOT NULL,
        refs INTEGER NOT NULL,
        shared INTEGER NOT NULL DEFAULT 1
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX bundles_by_content ON bundles (digest, size) WHERE shared = 1",
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
    # last_user: who was served last, so the next one in order is due. Services that operators made
    # at run time have settings here.
    """
    CREATE TABLE services (
        name TEXT PRIMARY KEY,
        last_user TEXT NOT NULL DEFAULT '',
        paused INTEGER NOT NULL DEFAULT 0,
        paused_message TEXT NOT NULL DEFAULT '',
        settings TEXT,
        env TEXT NOT NULL DEFAULT '{}',
        retired INTEGER NOT NULL DEFAULT 0,
        changed_at INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID
    """,
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
        cancelled INTEGER NOT NULL DEFAULT 0,
        rest_after INTEGER
    ) STRICT
    """,
    # The parent is Running again, or Cleaned: its children behind this number are still to follow.
    "CREATE INDEX batches_with_rest ON batches (parent_id) WHERE rest_after IS NOT NULL",
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
        former_until INTEGER
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX tokens_by_name ON tokens (name)",
    "CREATE INDEX tokens_by_time ON tokens (created_at, id)",
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
    # What was over of a user's on a day, counted likewise: written with each end.
    """
    CREATE TABLE daily_usage (
        user_id TEXT NOT NULL,
        day INTEGER NOT NULL,
        service TEXT NOT NULL,
        completed INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        cancelled INTEGER NOT NULL,
        waited_us INTEGER NOT NULL,
        ran_us INTEGER NOT NULL,
        cpu_us INTEGER NOT NULL,
        bundle_bytes INTEGER NOT NULL,
        result_bytes INTEGER NOT NULL,
        PRIMARY KEY (user_id, day, service)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX daily_usage_by_day ON daily_usage (day)",
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
    "CREATE INDEX audit_by_target ON audit (target, seq)",
    # Webhooks: what has to be delivered, and how the tries went.
    """
    CREATE TABLE deliveries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id INTEGER NOT NULL,
        user_id TEXT NOT NULL,
        principal TEXT NOT NULL,
        url TEXT NOT NULL,
        target TEXT NOT NULL,
        event TEXT NOT NULL,
        body TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'pending',
        message TEXT NOT NULL DEFAULT '',
        tries INTEGER NOT NULL DEFAULT 0,
        tried TEXT NOT NULL DEFAULT '[]',
        next_at INTEGER,
        created_at INTEGER NOT NULL,
        ended_at INTEGER
    ) STRICT
    """,
    "CREATE INDEX deliveries_due ON deliveries (next_at) WHERE next_at IS NOT NULL",
    "CREATE INDEX deliveries_pending ON deliveries (created_at) WHERE next_at IS NOT NULL",
    "CREATE INDEX deliveries_of_job ON deliveries (job_id, id)",
    "CREATE INDEX deliveries_of_user ON deliveries (user_id, id)",
    # What is due for each receiver: one that does not answer may have very many.
    """
    CREATE INDEX deliveries_of_target ON deliveries (principal, target, next_at)
        WHERE next_at IS NOT NULL
    """,
    # How often the sessions of browsers that logged in with a token were ended.
    """
    CREATE TABLE sessions (token TEXT PRIMARY KEY, ended INTEGER NOT NULL) STRICT, WITHOUT ROWID
    """,
    # What happened when, for charts.
    """
    CREATE TABLE statistics (
        at INTEGER NOT NULL,
        service TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (at, service)
    ) STRICT, WITHOUT ROWID
    """,
)

MIGRATIONS: Final = (_1,)
