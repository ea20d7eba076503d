"""The latest steps of the schema; :mod:`server.store.migrations` has all in their order."""

from __future__ import annotations

from typing import Final

from shared.sqlite.migrations import Migration

_8: Migration = (
    # How often the sessions of browsers that logged in with a token were ended.
    "CREATE TABLE sessions (token TEXT PRIMARY KEY, ended INTEGER NOT NULL) STRICT, WITHOUT ROWID",
)

_9: Migration = (
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

_10: Migration = (
    # Lists without the children of batches, which may be most of all jobs. The first column is
    # always NULL: with it SQLite chooses these indexes, and reads nothing else.
    "CREATE INDEX jobs_top_by_state ON jobs (parent_id, state, id) WHERE parent_id IS NULL",
    """
    CREATE INDEX jobs_top_by_service ON jobs (parent_id, service, state, id)
        WHERE parent_id IS NULL
    """,
    "CREATE INDEX jobs_top_by_user ON jobs (parent_id, user_id, state, id) WHERE parent_id IS NULL",
    """
    CREATE INDEX jobs_top_by_user_and_service ON jobs (parent_id, user_id, service, state, id)
        WHERE parent_id IS NULL
    """,
)

_ENDED: Final = "state NOT IN ('Queued', 'Processing', 'Submitted', 'Running', 'Unknown')"
_LISTED: Final = {
    "": (),
    "_of_service": ("service",),
    "_of_user": ("user_id",),
    "_of_user_and_service": ("user_id", "service"),
}
"""What lists are chosen by."""

_11: Migration = (
    # Lists. A move from one state to another rewrites every index that has the state. So jobs that
    # have ended are in indexes by state, and all others in indexes without one, which only an
    # upload and an end write. Children of batches are in indexes of their own, because they may be
    # most of all jobs: each job is in one of two. What is always NULL is a column, too: else SQLite
    # would read the row to compare it.
    "DROP INDEX jobs_by_state",
    "DROP INDEX jobs_by_service",
    "DROP INDEX jobs_by_user",
    "DROP INDEX jobs_by_user_and_service",
    "DROP INDEX jobs_top_by_state",
    "DROP INDEX jobs_top_by_service",
    "DROP INDEX jobs_top_by_user",
    "DROP INDEX jobs_top_by_user_and_service",
    *(
        f"CREATE INDEX jobs_ended{name} ON jobs ({', '.join(('parent_id', *by, 'state', 'id'))}) "
        f"WHERE parent_id IS NULL AND {_ENDED}"
        for name, by in _LISTED.items()
    ),
    *(
        f"CREATE INDEX jobs_ended_children{name} ON jobs "
        f"({', '.join((*by, 'state', 'id', 'parent_id'))}) WHERE parent_id IS NOT NULL AND {_ENDED}"
        for name, by in _LISTED.items()
    ),
    *(
        f"CREATE INDEX jobs_open{name} ON jobs ({', '.join(('ended_at', 'parent_id', *by, 'id'))}) "
        "WHERE parent_id IS NULL AND ended_at IS NULL"
        for name, by in _LISTED.items()
    ),
    *(
        f"CREATE INDEX jobs_open_children{name} ON jobs "
        f"({', '.join(('ended_at', *by, 'id', 'parent_id'))}) "
        "WHERE parent_id IS NOT NULL AND ended_at IS NULL"
        for name, by in _LISTED.items()
    ),
    "CREATE INDEX jobs_of_user ON jobs (user_id, id)",
    # What waits: one index instead of two.
    "DROP INDEX jobs_queued_by_age",
    "DROP INDEX jobs_by_wait",
    """
    CREATE INDEX jobs_by_wait ON jobs (service, hold, coalesce(waits_since, queued_at))
        WHERE state = 'Queued'
    """,
)

_12: Migration = (
    # What is due for each receiver: one that does not answer may have very many.
    """
    CREATE INDEX deliveries_of_target ON deliveries (signer_kind, signer_name, target, next_at)
        WHERE next_at IS NOT NULL
    """,
)

LATEST: Final = (_8, _9, _10, _11, _12)
