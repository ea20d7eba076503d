"""Webhooks: what has to be delivered, and how the tries went."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.domain.access import Visible
from server.domain.jobs import Job, Move
from server.domain.service import Service
from server.domain.webhook_targets import webhook_target
from server.domain.webhooks import (
    Delivery,
    NoSuchDelivery,
    Signer,
    SignerKind,
    Try,
    deliveries_of,
)
from server.store.statements import batches
from shared.clock import Micros
from shared.sql import Database, Row, Transaction

_NO_END: Final = 2**63 - 1
_LOOKED_AT: Final = 64
"""Deliveries that are due longest, of which some are left out."""
_TARGETS_WALKED: Final = 200
_PENDING: Final = "SELECT id FROM deliveries AS d WHERE d.next_at IS NOT NULL"
_NEXT_TARGET: Final = f"""
    coalesce(
        ({_PENDING} AND d.signer_kind = {{kind}} AND d.signer_name = {{name}}
         AND d.target > {{target}} ORDER BY target, next_at LIMIT 1),
        ({_PENDING} AND d.signer_kind = {{kind}} AND d.signer_name > {{name}}
         ORDER BY signer_name, target, next_at LIMIT 1),
        ({_PENDING} AND d.signer_kind > {{kind}}
         ORDER BY signer_kind, signer_name, target, next_at LIMIT 1)
    )
"""
"""What is due longest for the signer and target behind these, in the order of their index."""
_GIVEN_UP_AT_ONCE: Final = 500


async def announce(tx: Transaction, job: Job, move: Move, services: Mapping[str, Service]) -> None:
    """Add what a move has to announce, in the move's transaction."""
    service = services.get(job.service)
    for new in deliveries_of(job, move, service.webhook if service else None):
        await tx.rows(
            """
            INSERT INTO deliveries (job_id, user_id, service, signer_kind, signer_name, url, target,
                                    event, body, next_at, created_at)
            VALUES (:job_id, :user_id, :service, :kind, :name, :url, :target, :event, :body, :at,
                    :at)
            """,
            {
                "job_id": job.id,
                "user_id": job.user_id,
                "service": job.service,
                "kind": new.signer.kind,
                "name": new.signer.name,
                "url": new.url,
                "target": str(webhook_target(new.url)),
                "event": new.event,
                "body": new.body,
                "at": new.at,
            },
        )


async def delete_of(tx: Transaction, ids: str, params: Mapping[str, Any]) -> None:
    """Delete the deliveries of jobs.

    Args:
        ids: placeholders of the jobs' numbers.
    """
    await tx.rows(
        f"""
        DELETE FROM delivery_tries WHERE delivery_id IN (
            SELECT id FROM deliveries WHERE job_id IN ({ids})
        )
        """,  # noqa: S608 - placeholders
        params,
    )
    await tx.rows(f"DELETE FROM deliveries WHERE job_id IN ({ids})", params)  # noqa: S608


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries a list is of; None: any."""

    job_id: int | None = None
    state: str | None = None


class SqlDeliveries:
    """What is to be delivered; every change is durable when the call returns. Deliveries are added
    in the transaction of the move that they are about.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._walked = ("", "", "")
        """The signer and target up to which the last call has looked."""

    async def due(
        self, now: Micros, limit: int, *, targets: Collection[str], signers: Collection[Signer]
    ) -> list[Delivery]:
        # Those that are due longest. Few are left out of them, unless a receiver does not answer.
        """Those whose time has come, the longest due first.

        Args:
            targets, signers: whose deliveries are left out.
        """
        rows = await self._database.rows(
            """
            SELECT * FROM deliveries WHERE next_at IS NOT NULL AND next_at <= :now
            ORDER BY next_at LIMIT :looked_at
            """,
            {"now": now, "looked_at": _LOOKED_AT},
        )
        found = {row["id"]: row for row in rows if _may(row, targets, signers)}
        if len(found) < limit and len(rows) == _LOOKED_AT:
            first = await self._first_of_each(now)
            found |= {row["id"]: row for row in first if _may(row, targets, signers)}
        return [_delivery(row) for row in list(found.values())[:limit]]

    async def _first_of_each(self, now: Micros) -> list[Row]:
        """What is due longest for each signer and target, however much waits for one of them. Of
        very many targets only some; the next call goes on behind them.
        """
        kind, name, target = self._walked
        rows = await self._database.rows(
            f"""
            WITH RECURSIVE line (id, kind, name, target) AS (
                SELECT id, signer_kind, signer_name, target FROM deliveries
                WHERE id = {_NEXT_TARGET.format(kind=":kind", name=":name", target=":target")}
                UNION ALL
                SELECT found.id, found.signer_kind, found.signer_name, found.target
                FROM line JOIN deliveries AS found ON found.id =
                {_NEXT_TARGET.format(kind="line.kind", name="line.name", target="line.target")}
                LIMIT :most
            )
            SELECT deliveries.* FROM line JOIN deliveries ON deliveries.id = line.id
            """,  # noqa: S608 - no user input
            {"kind": kind, "name": name, "target": target, "most": _TARGETS_WALKED},
        )
        self._walked = ("", "", "")
        if len(rows) == _TARGETS_WALKED:
            last = rows[-1]
            self._walked = last["signer_kind"], last["signer_name"], last["target"]
        due = [row for row in rows if row["next_at"] <= now]
        return sorted(due, key=lambda row: row["next_at"])

    async def next_at(self) -> Micros | None:
        """When one is due next; None: never."""
        rows = await self._database.rows(
            "SELECT min(next_at) AS next_at FROM deliveries WHERE next_at IS NOT NULL"
        )
        found: Micros | None = rows[0]["next_at"]
        return found

    async def oldest(self) -> Micros | None:
        """When the oldest was announced that has not ended; None: all have."""
        (row,) = await self._database.list_rows(
            "SELECT min(created_at) AS oldest FROM deliveries WHERE next_at IS NOT NULL"
        )
        oldest: Micros | None = row["oldest"]
        return oldest

    async def begin(self, deliveries: Sequence[Delivery], until: Micros) -> list[Delivery]:
        """Count one more try of each that is still as it was seen, and let it be due again at
        ``until``, for the case that this server dies.

        Returns:
            Those, as they are now.
        """

        async def change(tx: Transaction) -> list[Delivery]:
            begun: list[Delivery] = []
            for one in deliveries:
                rows = await tx.rows(
                    """
                    UPDATE deliveries SET tries = tries + 1, next_at = :until
                    WHERE id = :id AND tries = :tries AND next_at = :seen RETURNING *
                    """,
                    {"id": one.id, "tries": one.tries, "seen": one.next_at, "until": until},
                )
                begun += map(_delivery, rows)
            return begun

        return await self._database.write(change)

    async def end(self, delivery: Delivery, done: Try, next_at: Micros | None) -> bool:
        """Write down how a try went.

        Args:
            next_at: when it is tried again; None: it has ended.

        Returns:
            Whether it was still this try; else nothing was changed.
        """
        ended = next_at is None
        values = {
            "id": delivery.id,
            "tries": delivery.tries,
            "state": "pending" if not ended else "delivered" if done.problem is None else "failed",
            "message": done.problem or f"delivered, answered {done.status}",
            "next": next_at,
            "ended": done.at + round(done.seconds * 1_000_000) if ended else None,
        }

        async def change(tx: Transaction) -> bool:
            rows = await tx.rows(
                """
                UPDATE deliveries SET state = :state, message = :message, next_at = :next,
                    ended_at = :ended
                WHERE id = :id AND tries = :tries AND state = 'pending' RETURNING id
                """,
                values,
            )
            if rows:
                await tx.rows(
                    """
                    INSERT INTO delivery_tries (delivery_id, number, at, seconds, status, problem)
                    VALUES (:id, :number, :at, :seconds, :status, :problem)
                    """,
                    {
                        "id": delivery.id,
                        "number": done.number,
                        "at": done.at,
                        "seconds": done.seconds,
                        "status": done.status,
                        "problem": done.problem,
                    },
                )
            return bool(rows)

        return await self._database.write(change)

    async def give_up(self, signer: Signer, url: str, at: Micros, message: str) -> int:
        """End what else is pending for a receiver that wants no more; how many there were."""
        values: dict[str, Any] = {"kind": signer.kind, "name": signer.name, "url": url}
        values |= {"target": str(webhook_target(url)), "message": message, "at": at}
        values["most"] = _GIVEN_UP_AT_ONCE

        async def change(tx: Transaction) -> int:
            ended = await tx.rows(
                """
                UPDATE deliveries SET state = 'failed', message = :message, next_at = NULL,
                    ended_at = :at
                WHERE id IN (
                    SELECT id FROM deliveries
                    WHERE signer_kind = :kind AND signer_name = :name AND target = :target
                    AND next_at IS NOT NULL AND url = :url LIMIT :most
                ) RETURNING id
                """,
                values,
            )
            return len(ended)

        count = 0
        while ended := await self._database.write(change):
            count += ended
        return count

    async def get(self, number: int, visible: Visible) -> Delivery:
        """Raises NoSuchDelivery."""
        fits, values = _fits(visible)
        rows = await self._database.rows(
            f"SELECT * FROM deliveries WHERE id = :id {fits}",  # noqa: S608 - no user input
            values | {"id": number},
        )
        if not rows:
            raise NoSuchDelivery(number)
        return _delivery(rows[0])

    async def tries(self, number: int, most: int) -> list[Try]:
        """The latest tries, the first one first."""
        rows = await self._database.rows(
            """
            SELECT * FROM delivery_tries WHERE delivery_id = :id ORDER BY number DESC LIMIT :most
            """,
            {"id": number, "most": most},
        )
        names = ("number", "at", "seconds", "status", "problem")
        return [Try(**{name: row[name] for name in names}) for row in reversed(rows)]

    async def page(
        self, where: DeliveryFilter, visible: Visible, before_id: int | None, limit: int
    ) -> tuple[list[Delivery], int | None]:
        """Newest first; and the next page's ``before_id``."""
        fits, values = _fits(visible)
        if where.job_id is not None:
            fits += " AND job_id = :job_id"
        if where.state is not None:
            fits += " AND state = :state"
        rows = await self._database.list_rows(
            f"""
            SELECT * FROM deliveries WHERE id < :before {fits} ORDER BY id DESC LIMIT :limit
            """,  # noqa: S608 - no user input
            values
            | {"before": before_id or _NO_END, "limit": limit + 1}
            | {"job_id": where.job_id, "state": where.state},
        )
        found = [_delivery(row) for row in rows[:limit]]
        return found, found[-1].id if len(rows) > limit else None

    async def replay(self, number: int, at: Micros) -> Delivery:
        """Let it be due at ``at``, with all its tries before it. Raises NoSuchDelivery."""

        async def change(tx: Transaction) -> Delivery | None:
            rows = await tx.rows(
                """
                UPDATE deliveries SET state = 'pending', message = 'to be sent again',
                    tries_before = tries, next_at = :at, ended_at = NULL
                WHERE id = :id RETURNING *
                """,
                {"id": number, "at": at},
            )
            return _delivery(rows[0]) if rows else None

        found = await self._database.write(change)
        if found is None:
            raise NoSuchDelivery(number)
        return found

    async def forget(self, ended_before: Micros, limit: int) -> int:
        """Delete those that ended before then; how many."""
        expired = (
            "SELECT id FROM deliveries WHERE ended_at <= :before ORDER BY ended_at LIMIT :limit"
        )
        params = {"before": ended_before, "limit": limit}
        if not await self._database.rows(expired, params):
            return 0

        async def change(tx: Transaction) -> int:
            ids = [row["id"] for row in await tx.rows(expired, params)]
            for names, values in batches(ids):
                await tx.rows(
                    f"DELETE FROM delivery_tries WHERE delivery_id IN ({names})",  # noqa: S608 - placeholders
                    values,
                )
                await tx.rows(f"DELETE FROM deliveries WHERE id IN ({names})", values)  # noqa: S608
            return len(ids)

        return await self._database.write(change)


def _may(row: Row, targets: Collection[str], signers: Collection[Signer]) -> bool:
    return row["target"] not in targets and _signer(row) not in signers


def _signer(row: Row) -> Signer:
    return Signer(SignerKind(row["signer_kind"]), row["signer_name"])


def _fits(visible: Visible) -> tuple[str, dict[str, Any]]:
    """What limits a statement to the deliveries that a caller may see.

    Whoever does not see everything sees none of a service's: its address is an operator's.
    """
    fits, values = "", {}
    if visible.user_id is not None:
        fits += f" AND signer_kind = '{SignerKind.PRINCIPAL}' AND user_id = :user_id"
        values["user_id"] = visible.user_id
    if visible.submitted_by is not None:
        fits += f" AND signer_kind = '{SignerKind.PRINCIPAL}' AND signer_name = :submitted_by"
        values["submitted_by"] = visible.submitted_by
    return fits, values


def _delivery(row: Row) -> Delivery:
    return Delivery(
        id=row["id"],
        job_id=row["job_id"],
        signer=_signer(row),
        service=row["service"],
        url=row["url"],
        event=row["event"],
        body=row["body"],
        state=row["state"],
        message=row["message"],
        tries=row["tries"],
        tries_before=row["tries_before"],
        next_at=row["next_at"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
    )
