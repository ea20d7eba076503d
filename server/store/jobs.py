"""The jobs: their moves, each with its event in the same transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from server.domain.batch import cancelled_with
from server.domain.jobs import Bundle, Job, Move, NewJob
from server.store import bundles
from server.store.batches import Batches
from server.store.claims import Claims
from server.store.inserts import insert_job, job_of_key, stored_bytes
from server.store.moves import get_job, make_move
from server.store.pages import Pages
from server.store.queue import Queue
from server.store.requests import Requests, request_cancel
from server.store.retention import Retention
from server.store.statements import HELD
from shared.clock import Micros
from shared.wire import JobState


class SqlJobs(
    Queue,
    Claims,
    Pages,
    Retention,
    Batches,
    Requests,
):
    """The jobs and their histories; every change is durable when the call returns."""

    # -- moving

    async def insert(
        self,
        new: NewJob,
        message: str,
        most_queued: int = 0,
        most_stored: int = 0,
        most_uploaded: int = 0,
    ) -> tuple[Job, bool]:
        """Add a job as Queued, with its first event.

        Args:
            most_queued: jobs of the user and service that may wait, this one included; 0: any
                number. Counted in the transaction of the insert, as is
            most_stored: bytes that bundles and results of the user may take; 0: any number.
            most_uploaded: bytes of bundles that may be uploaded for the user on one day, this one
                included; 0: any number.

        Returns:
            The job, and whether it is new: with an ``idempotency_key`` that the user has used
            before it is the job of that time.

        Raises:
            QueueFull, StorageFull, DayUsed, OverDay
            TicketUsed: another job was made by its upload ticket.
            BundleGone: the bundle names no file, and there is none to share any more.
        """
        return await self._database.write(
            insert_job, new, message, most_queued, most_stored, most_uploaded
        )

    async def can_share_bundle(self, digest: str, size: int) -> bool:
        """Whether there is a stored file that an upload of this content would share now."""
        return await self._database.read(bundles.can_share, digest, size)

    async def stored(self, user_id: str) -> int:
        """Bytes that bundles and results of the user take."""
        return await self._database.read(stored_bytes, user_id)

    async def move(self, move: Move) -> Job | None:
        """Make a move with all its steps and their events, or nothing.

        Returns:
            The job after it, or None where it was no longer as the move saw it.
        """
        return await self._database.write(make_move, move)

    async def move_all(self, moves: Sequence[Move]) -> list[Job | None]:
        """As :meth:`move`, for some moves in one transaction.

        Returns:
            For each the job after it, or None.
        """
        return await self._database.write(lambda tx: [make_move(tx, move) for move in moves])

    async def stop_sharing(self, bundle: Bundle) -> None:
        """Its bytes are damaged or gone: the next upload of the same content is stored again."""
        await self._database.write(lambda tx: bundles.stop_sharing(tx, bundle.file))

    async def request_cancel(self, job_id: int, at: Micros, by: str = "") -> Job:
        """Store that the job is to be cancelled, unless it has ended. It is not claimed any more.
        All children of a parent are cancelled with it, in the same transaction: those that wait at
        once.

        Args:
            by: who asked for it; the event says so.

        Raises:
            NoSuchJob
        """
        job, is_new = await self._database.write(request_cancel, job_id, at, by)
        if is_new and job.deferred:
            await self.cancel_children(job_id, at, cancelled_with(job_id))
        return job

    # -- looking

    async def get(self, job_id: int) -> Job:
        """Raises NoSuchJob."""
        return await self._database.read(get_job, job_id)

    async def by_idempotency_key(self, user_id: str, key: str) -> Job | None:
        return await self._database.read(job_of_key, user_id, key)

    async def in_states(self, states: Iterable[JobState], agent: str | None = None) -> list[Job]:
        """Jobs now in one of the states, all of which hold a slot; oldest first."""
        words = ", ".join(f"'{state.value}'" for state in states)
        of_agent = "AND agent = :agent" if agent is not None else ""
        return await self._jobs(
            # The first condition is the partial index's own, or it is not used.
            f"SELECT * FROM jobs WHERE {HELD} AND state IN ({words}) {of_agent} ORDER BY id",  # noqa: S608 - no user input
            {"agent": agent},
        )

    async def to_cancel(self) -> list[Job]:
        """Jobs that are to be cancelled and have not ended."""
        return await self._jobs(
            """
            SELECT * FROM jobs WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL
            ORDER BY id
            """
        )
