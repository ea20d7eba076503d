"""Buckets of what happened when, and what each user had a day."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from server.domain.allowances import DAY, day_of
from server.domain.jobs import Job
from server.domain.statistics import Over, Tree, add
from shared.clock import SECOND, Micros, utc
from shared.sql import AMONG, Tx, among

_PUT: Final = """
    INSERT INTO statistics (at, service, document) VALUES (:at, :service, :document)
    ON CONFLICT (at, service) DO UPDATE SET document = :document
"""
_SUMS: Final = (
    "completed",
    "failed",
    "cancelled",
    "waited_us",
    "ran_us",
    "cpu_us",
    "bundle_bytes",
    "result_bytes",
)
_ADD: Final = f"""
    INSERT INTO daily_usage (user_id, day, service, {", ".join(_SUMS)})
    VALUES (:user_id, :day, :service, {", ".join(f":{name}" for name in _SUMS)})
    ON CONFLICT (user_id, day, service) DO UPDATE SET
    {", ".join(f"{name} = daily_usage.{name} + :{name}" for name in _SUMS)}
"""  # noqa: S608 - no user input


def add_counted(tx: Tx, counted: Mapping[tuple[Micros, str], Tree], before: Micros) -> None:
    """Add to the buckets, one for each begin and service, and delete those that began before
    ``before``.
    """
    for (at, service), more in counted.items():
        key = {"at": at, "service": service}
        rows = tx.rows("SELECT document FROM statistics WHERE at = :at AND service = :service", key)
        numbers: Tree = json.loads(rows[0]["document"]) if rows else {}
        add(numbers, more)
        document = json.dumps(numbers, separators=(",", ":"))
        tx.rows(_PUT, key | {"document": document})
    tx.rows("DELETE FROM statistics WHERE at < :before", {"before": before})


def count_over(tx: Tx, took: Over, at: Micros, job: Job) -> None:
    """Count for the job's user, on the day of ``at``, what is over, in its own transaction."""
    own = job.parent_id is None and job.schedule_id is None and job.run == 1
    count(
        tx,
        job,
        at,
        **({job.state.lower(): 1} if job.ended else {}),
        waited_us=round(took.wait_s * SECOND),
        ran_us=round((took.run_s or 0) * SECOND),
        cpu_us=round((took.cpu_s or 0) * SECOND),
        bundle_bytes=job.bundle.size if own and job.ended and job.bundle is not None else 0,
        result_bytes=took.result_bytes or 0,
    )


def count(tx: Tx, job: Job, at: Micros, **more: int) -> None:
    """Add to what the job's user had on the day of ``at``."""
    of = {"user_id": job.user_id, "day": day_of(at), "service": job.service}
    tx.rows(_ADD, dict.fromkeys(_SUMS, 0) | more | of)


def daily_usage(tx: Tx, user: str, since: Micros) -> list[dict[str, Any]]:
    """What was over of the user's on each day from that of ``since`` on, by service, the latest
    first.
    """
    rows = tx.rows(
        "SELECT * FROM daily_usage WHERE user_id = :user AND day >= :day "
        "ORDER BY day DESC, service",
        {"user": user, "day": day_of(since)},
    )
    same = ("service", "completed", "failed", "cancelled", "bundle_bytes", "result_bytes")
    return [
        {name: row[name] for name in same}
        | {f"{name}_s": row[f"{name}_us"] / SECOND for name in ("waited", "ran", "cpu")}
        | {"day": utc(row["day"] * DAY).date()}
        for row in rows
    ]


def buckets(tx: Tx, since: Micros, services: Collection[str]) -> list[tuple[Micros, str, Tree]]:
    """Begin, service and numbers of those that begin since then."""
    rows = tx.rows(
        f"""
        SELECT at, service, document FROM statistics
        WHERE at >= :since AND service {AMONG}
        """,  # noqa: S608 - no user input
        among(services) | {"since": since},
    )
    return [(row["at"], row["service"], json.loads(row["document"])) for row in rows]
