"""Retention: an expired job loses its files first, and later its row and history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from server.domain.allowances import day_of
from server.domain.errors import ChildOfBatch, NotEnded, StillNeeded
from server.domain.jobs import FileKind, Job, Move
from server.store.bundles import release_files
from server.store.dependencies import NEEDED, RESULT_NEEDED, waiting_for
from server.store.moves import get_job, make_move
from server.store.statements import Part, batches, changed
from shared.clock import Micros
from shared.sql import Tx


class Retention(Part):
    """The part of :class:`SqlJobs` that the Cleaner uses."""

    async def expired(self, now: Micros, limit: int) -> list[Job]:
        """Ended jobs whose ``expires_at`` has passed."""
        return await self._jobs(
            f"""
            SELECT * FROM jobs WHERE expires_at IS NOT NULL AND expires_at <= :now
            AND NOT {RESULT_NEEDED}
            ORDER BY expires_at, id LIMIT :limit
            """,  # noqa: S608 - no user input
            {"now": now, "limit": limit},
        )

    async def files_in_use(self, names: Sequence[str]) -> set[str]:
        """Those of the stored files' names that a bundle or an attempt refers to."""
        in_use: set[str] = set()
        for column, table in (("file", "bundles"), ("result_file", "attempts")):
            for placeholders, params in batches(names):
                in_use |= {
                    row["file"]
                    for row in await self._database.rows(
                        f"SELECT {column} AS file FROM {table} "  # noqa: S608 - placeholders
                        f"WHERE {column} IS NOT NULL AND {column} IN ({placeholders})",
                        params,
                    )
                }
        return in_use

    async def clean(self, moves: Sequence[Move]) -> tuple[int, list[tuple[FileKind, str]]]:
        """Make the moves into Cleaned, and drop the jobs' idempotency keys.

        Returns:
            How many were made; kind and name of the files that nothing refers to any more.
        """
        made = await self._children_made([move.job_id for move in moves])
        count, files = 0, list[tuple[FileKind, str]]()
        # Of a parent, all children change in its transaction: few parents in each, if they have
        # many. Uploads, claims and ends get in between.
        for some in _portions(moves, made):
            cleaned, released = await self._clean_some(some)
            count, files = count + cleaned, files + released
        return count, files

    async def _children_made(self, job_ids: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for names, params in batches(job_ids):
            sql = f"SELECT parent_id, made FROM batches WHERE parent_id IN ({names})"  # noqa: S608
            for row in await self._database.rows(sql, params):
                found[row["parent_id"]] = row["made"]
        return found

    async def _clean_some(self, moves: Sequence[Move]) -> tuple[int, list[tuple[FileKind, str]]]:
        def change(tx: Tx) -> tuple[int, list[tuple[FileKind, str]]]:
            cleaned = [job for move in moves if (job := make_move(tx, move)) is not None]
            ids = [job.id for job in cleaned]
            for names, params in batches(ids):
                tx.rows(
                    f"DELETE FROM idempotency_keys WHERE job_id IN ({names})",  # noqa: S608 - placeholders
                    params,
                )
                # The children of a batch go with their parent, which is never queued again.
                tx.rows(
                    f"UPDATE jobs SET expires_at = :at WHERE parent_id IN ({names})",  # noqa: S608 - placeholders
                    params | {"at": moves[0].at},
                )
            return len(cleaned), release_files(tx, ids)

        return await self._database.write(change)

    async def forget_uploaded(self, before: Micros) -> None:
        """Forget what was uploaded on the days before."""
        day = {"day": day_of(before)}
        if await self._database.rows("SELECT 1 FROM uploaded WHERE day < :day LIMIT 1", day):
            await self._database.write(
                lambda tx: tx.rows("DELETE FROM uploaded WHERE day < :day", day)
            )

    async def delete(self, job_id: int) -> list[tuple[FileKind, str]]:
        """Delete an ended job, its history and its children. Its number is not given again.

        Returns:
            Kind and name of the files that nothing refers to any more.

        Raises:
            NoSuchJob, NotEnded, ChildOfBatch
        """
        files = await self._delete_children(job_id)
        return files + await self._delete_one(job_id)

    async def _delete_children(self, job_id: int) -> list[tuple[FileKind, str]]:
        """Some at a time, all before their parent: a crash leaves a deletion that goes on."""

        def change(tx: Tx) -> tuple[int, list[tuple[FileKind, str]]]:
            if waiting_for(tx, job_id):
                return 0, []
            ended = tx.rows(
                """
                UPDATE jobs SET delete_requested_at = coalesce(delete_requested_at, ended_at)
                WHERE id = :id AND ended_at IS NOT NULL RETURNING id
                """,
                {"id": job_id},
            )
            children = tx.rows(_CHILDREN, {"id": job_id}) if ended else []
            ids = [row["id"] for row in children]
            released = release_files(tx, ids)
            _delete(tx, ids)
            return len(ids), released

        files: list[tuple[FileKind, str]] = []
        deleted = 1
        while deleted and await self._database.rows(_CHILDREN, {"id": job_id}):
            deleted, released = await self._database.write(change)
            files += released
        return files

    async def _delete_one(self, job_id: int) -> list[tuple[FileKind, str]]:
        def change(tx: Tx) -> list[tuple[FileKind, str]]:
            job = get_job(tx, job_id)
            if not job.ended:
                raise NotEnded(job_id, job.state)
            if job.parent_id is not None:
                raise ChildOfBatch(job_id, job.parent_id, "delete")
            if waiting := waiting_for(tx, job_id):
                raise StillNeeded(job_id, waiting)
            files = release_files(tx, [job_id])
            _delete(tx, [job_id])
            changed(tx, job)
            return files

        return await self._database.write(change)

    async def cleaned_services(self) -> list[str]:
        """Services of which there are Cleaned jobs."""
        services: list[str] = []
        while True:
            following = await self._database.rows(
                """
                SELECT service FROM jobs WHERE state = 'Cleaned' AND service > :after
                ORDER BY service LIMIT 1
                """,
                {"after": services[-1] if services else ""},
            )
            if not following:
                return services
            services.append(following[0]["service"])

    async def forget(self, service: str, ended_before: Micros, limit: int) -> int:
        """Delete Cleaned jobs and their histories; how many, ``limit`` at most."""
        params = {"service": service, "before": ended_before, "limit": limit}
        due = await self._database.rows(_FORGETTABLE, params)
        if not due:
            return 0

        def change(tx: Tx) -> int:
            ids = [row["id"] for row in tx.rows(_FORGETTABLE, params)]
            _delete(tx, ids)
            return len(ids)

        return await self._database.write(change)

    async def forget_idempotency_keys(self, before: Micros) -> int:
        rows = await self._database.write(
            lambda tx: tx.rows(
                "DELETE FROM idempotency_keys WHERE created_at < :before RETURNING key",
                {"before": before},
            )
        )
        return len(rows)

    async def maintain(self) -> bool:
        """Give unused space back, some at a time, and find out whether what failed works again.

        Returns:
            Whether there is more to give back.
        """
        return await self._database.maintain()


_CHILDREN_AT_ONCE: Final = 500


def _portions(moves: Sequence[Move], made: Mapping[int, int]) -> Iterator[list[Move]]:
    """Moves for a transaction each, as long as their children are not too many together."""
    some: list[Move] = []
    children = 0
    for move in moves:
        own = made.get(move.job_id, 0)
        if some and children + own > _CHILDREN_AT_ONCE:
            yield some
            some, children = [], 0
        some.append(move)
        children += own
    if some:
        yield some


_CHILDREN: Final = "SELECT id FROM jobs WHERE parent_id = :id ORDER BY id LIMIT 500"
_FORGETTABLE: Final = f"""
    SELECT id FROM jobs WHERE state = 'Cleaned' AND service = :service AND ended_at <= :before
    AND NOT EXISTS (SELECT 1 FROM jobs AS child WHERE child.parent_id = jobs.id)
    AND NOT {NEEDED}
    ORDER BY ended_at LIMIT :limit
"""  # noqa: S608 - no user input


def _delete(tx: Tx, job_ids: Sequence[int]) -> None:
    """Delete the rows, after all rows that refer to them. AUTOINCREMENT never reuses a number."""
    for names, params in batches(job_ids):
        for table in ("job_tags", "events", "idempotency_keys", "attempts", "dependencies"):
            tx.rows(f"DELETE FROM {table} WHERE job_id IN ({names})", params)  # noqa: S608
        tx.rows(f"DELETE FROM deliveries WHERE job_id IN ({names})", params)  # noqa: S608
        tx.rows(f"DELETE FROM batches WHERE parent_id IN ({names})", params)  # noqa: S608
        tx.rows(f"DELETE FROM jobs WHERE id IN ({names})", params)  # noqa: S608
