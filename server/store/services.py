"""The rows of services: what operators decided about them, and how many jobs they have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from server.domain.access import Visible
from server.domain.errors import Conflict
from server.domain.service import ServiceRecord
from server.store import pages
from server.store.changes import HELD, WAITS_SINCE
from server.store.records import reader
from shared.clock import Micros, utc
from shared.sql import Tx
from shared.wire import JobState

_PUT: Final = """
    INSERT INTO services (name, settings, env, retired, changed_at)
    VALUES (:name, :settings, coalesce(:env, '{}'), 0, :at)
    ON CONFLICT (name) DO UPDATE SET settings = :settings, retired = 0, changed_at = :at,
        env = coalesce(:env, services.env)
    RETURNING *
"""
_MAX_SERVICES: Final = 1_000
_IN_USE: Final = """
    SELECT count(*) AS count FROM services
    WHERE settings IS NOT NULL AND retired = 0 AND NOT EXISTS (
        SELECT 1 FROM services WHERE name = :name AND settings IS NOT NULL AND retired = 0
    )
"""
"""How many operators have made; 0 where this is one of them."""
_RETIRE: Final = """
    UPDATE services SET retired = 1, changed_at = :at
    WHERE name = :name AND settings IS NOT NULL
    RETURNING *
"""
_PAUSE: Final = """
    INSERT INTO services (name, paused, paused_message, changed_at)
    VALUES (:name, :paused, :message, :at)
    ON CONFLICT (name) DO UPDATE
    SET paused = :paused, paused_message = :message, changed_at = :at
    RETURNING *
"""
_OF_SUBMITTER: Final = """
    SELECT state, count(*) AS jobs, min(queued_at) AS queued_at FROM (
        SELECT state, service, queued_at FROM jobs WHERE submitted_by = :submitted_by
        ORDER BY id DESC LIMIT :most
    ) AS latest WHERE service = :name GROUP BY state
"""
_HOLDS: Final = ("hold IS NULL", "hold = 'dependency'", "hold = 'parallel'")
"""Each is a place of its own in the index ``jobs_by_wait``, which has queued jobs in the order of
:data:`WAITS_SINCE`."""
_OLDEST: Final = " UNION ALL ".join(
    f"SELECT * FROM (SELECT queued_at FROM jobs WHERE state = 'Queued' AND {hold} AND {{where}} "  # noqa: S608 - no user input
    f"ORDER BY {WAITS_SINCE} LIMIT 1) AS oldest"
    for hold in _HOLDS
)


def all_services(tx: Tx) -> list[ServiceRecord]:
    """A row for each that was ever used or changed."""
    return [_record(row) for row in tx.rows("SELECT * FROM services")]


def put(
    tx: Tx, name: str, settings: Mapping[str, Any], env: Mapping[str, str] | None, at: Micros
) -> ServiceRecord:
    """Make a service, or change all of its settings, and its ``env`` where that is given. A retired
    one is in use again. Raises Conflict: operators have made too many.
    """
    if tx.rows(_IN_USE, {"name": name})[0]["count"] >= _MAX_SERVICES:
        why = f"operators have made {_MAX_SERVICES} services, which is the most: retire some"
        raise Conflict("too_many_services", why)
    values = {
        "name": name,
        "settings": json.dumps(dict(settings)),
        "env": None if env is None else json.dumps(dict(env)),
        "at": at,
    }
    return _record(tx.rows(_PUT, values)[0])


def retire(tx: Tx, name: str, at: Micros) -> ServiceRecord:
    """It takes no new jobs."""
    return _record(tx.rows(_RETIRE, {"name": name, "at": at})[0])


def set_paused(tx: Tx, name: str, message: str | None, at: Micros) -> ServiceRecord:
    """Let its queued jobs wait, and say why; None: let them be sent again."""
    paused = int(message is not None)
    values = {"name": name, "paused": paused, "message": message or "", "at": at}
    return _record(tx.rows(_PAUSE, values)[0])


def load(tx: Tx, name: str, most: int, where: Visible) -> dict[str, Any]:
    """How many jobs it has in each state, of those that somebody may see, as its document says it;
    counts no further than ``most``, and of all that one portal submitted its latest ``most``.
    """
    chosen = {"user_id": where.user_id, "submitted_by": where.submitted_by}
    own = {column: value for column, value in chosen.items() if value is not None}
    which = " AND ".join(["service = :name", *(f"{column} = :{column}" for column in own)])
    values = {"name": name, **own}
    if where.user_id is None and where.submitted_by is not None:
        rows = tx.rows(_OF_SUBMITTER, values | {"most": most})
        queued = [row for row in rows if row["state"] == JobState.QUEUED]
    else:
        counted = pages.counted({"service": ":name"} | {column: f":{column}" for column in own})
        rows = tx.rows(counted, values | {"most": most})
        queued = [*tx.rows(_OLDEST.format(where=which), values)]
    held = f"SELECT count(*) AS slots FROM jobs WHERE {HELD} AND {which}"  # noqa: S608
    (slots,) = tx.rows(held, values)
    by_state = dict.fromkeys(JobState, 0) | {JobState(row["state"]): row["jobs"] for row in rows}
    since = min((row["queued_at"] for row in queued), default=None)
    return {
        "counts": by_state,
        "oldest_queued_at": None if since is None else utc(since),
        "in_work": slots["slots"],
    }


_record: Final = reader(
    ServiceRecord, {"settings": json.loads, "env": json.loads, "paused": bool, "retired": bool}
)
