"""The jobs and their histories."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from server.domain.attempts import Attempt
from server.domain.jobs import Bundle, Event, Job, Move, NewJob, Result
from server.domain.leases import Lease
from server.domain.live import Report
from server.domain.placement import Candidate
from server.domain.service import Service
from server.ports.batches import Batches
from server.ports.dependencies import Dependencies
from server.ports.lists import EventsPage, Filter, Held
from server.ports.retention import Retained
from server.ports.users import UserLoads
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.wire import JobState


class Jobs(Batches, Dependencies, Retained, UserLoads, Protocol):
    """The jobs and their histories; every change is durable when the call returns."""

    async def insert(
        self,
        new: NewJob,
        message: str,
        most_queued: int = 0,
        most_stored: int = 0,
        lease: Lease | None = None,
        most_uploaded: int = 0,
    ) -> tuple[Job, bool]:
        """Add a job as Queued, with its first event.

        Args:
            most_queued: jobs of the user and service that may wait, this one included; 0: any
                number. Counted in the transaction of the insert, as is
            most_stored: bytes that bundles and results of the user may take; 0: any number.
            lease: of the server that stored the bundle, from before: while it holds, the file is
                no orphan.
            most_uploaded: bytes of bundles that may be uploaded for the user on one day, this one
                included; 0: any number.

        Returns:
            The job, and whether it is new: with an ``idempotency_key`` that the user has used
            before it is the job of that time.

        Raises:
            QueueFull, StorageFull, DayUsed, OverDay
            TicketUsed: another job was made by its upload ticket.
            ServerPaused: the lease has ended.
            BundleGone: the bundle names no file, and there is none to share any more.
        """
        ...

    async def can_share_bundle(self, digest: str, size: int) -> bool:
        """Whether there is a stored file that an upload of this content would share now."""
        ...

    async def stored(self, user_id: str) -> int:
        """Bytes that bundles and results of the user take."""
        ...

    async def uploaded(self, user_id: str, at: Micros) -> int:
        """Bytes of bundles that were uploaded for the user on the day of ``at``, UTC."""
        ...

    async def get(self, job_id: int) -> Job:
        """Raises NoSuchJob."""
        ...

    async def by_idempotency_key(self, user_id: str, key: str) -> Job | None: ...

    async def ticket_used(self, ticket_id: str) -> bool:
        """Whether an upload ticket has become a job."""
        ...

    async def move(self, move: Move) -> Job | None:
        """Make a move with all its steps and their events, or nothing.

        Returns:
            The job after it, or None where it was no longer as the move saw it.

        Raises:
            LeaseLost: the move's lease has another owner by now.
        """
        ...

    async def move_all(self, moves: Sequence[Move]) -> list[Job | None]:
        """As :meth:`move`, for some moves under the same lease, in one transaction.

        Returns:
            For each the job after it, or None.
        """
        ...

    async def claim_fairly(
        self,
        service: Service,
        candidates: Sequence[Candidate],
        most: int,
        at: Micros,
        ended: Collection[AttemptKey] = (),
    ) -> list[Job]:
        """Queued → Processing for the jobs of a service whose turn it is, in one transaction that
        also counts what users and agents hold. The turn goes round the users, from the one behind
        whom was served last.

        Args:
            candidates: the agents that take jobs of it now.
            most: at most so many.
            ended: attempts that need no slot of their agent any more, though their jobs hold one.

        Returns:
            The jobs, each at the beginning of its next attempt. Neither the service's quotas nor
            an agent's slots are exceeded. Its cost does not depend on the length of the queue.
        """
        ...

    async def attach_result(
        self, key: AttemptKey, result: Result, lease: Lease | None = None
    ) -> bool:
        """Add a result that came after its attempt had ended.

        Returns:
            False: the attempt has one, is not over, the job's files are removed, or the lease has
            another owner by now.
        """
        ...

    async def stop_sharing(self, bundle: Bundle) -> None:
        """Its bytes are damaged or gone: the next upload of the same content is stored again."""
        ...

    async def attempts(self, job_id: int, most: int | None = None) -> list[Attempt]:
        """The newest of the attempts that an agent took (None: all), the first one first."""
        ...

    async def attempt(self, key: AttemptKey) -> Attempt:
        """Raises NoSuchAttempt."""
        ...

    async def retry(self, move: Move, job: Job, most_queued: int) -> Job | None:
        """Make the move that queues an ended job again.

        Args:
            most_queued: as of :meth:`insert`.

        Returns:
            None: the job was no longer as the move saw it.

        Raises:
            QueueFull
        """
        ...

    async def request_cancel(self, job_id: int, at: Micros, by: str = "") -> Job:
        """Store that the job is to be cancelled, unless it has ended. It is not claimed any more.
        All children of a parent are cancelled with it, in the same transaction: those that wait at
        once.

        Args:
            by: who asked for it; the event says so.

        Raises:
            NoSuchJob
        """
        ...

    async def change_tags(
        self, job_id: int, add: Collection[str], remove: Collection[str], at: Micros, by: str
    ) -> Job:
        """Add and remove tags of a job, whatever its state, with an event.

        Raises:
            NoSuchJob, TooManyTags
        """
        ...

    async def change_service(self, job_id: int, service: str, at: Micros, by: str) -> Job:
        """Let a job be of another service from now on, with an event, unless it has ended.

        Raises:
            NoSuchJob
        """
        ...

    async def release_delayed(self, now: Micros) -> int:
        """Let the jobs be sent whose delay is over; how many, some hundreds at a time.

        Until then :meth:`claim_fairly` does not see them, and they cost it nothing.
        """
        ...

    async def queued_services(self) -> list[str]:
        """Services that have queued jobs. Its cost does not depend on the length of the queue."""
        ...

    async def held(self) -> list[Held]: ...

    async def queued(self, service: str, user_id: str, limit: int) -> int:
        """How many jobs of the user wait; counts no further than ``limit``."""
        ...

    async def in_states(self, states: Iterable[JobState], agent: str | None = None) -> list[Job]:
        """Jobs now in one of the states, all of which hold a slot; oldest first."""
        ...

    async def to_cancel(self) -> list[Job]:
        """Jobs that are to be cancelled and have not ended."""
        ...

    async def queued_before(self, ids: Sequence[int], most: int) -> dict[int, int]:
        """For each of the jobs: how many of its user's jobs of its service may be sent before it;
        counts no further than ``most``.
        """
        ...

    async def overdue(
        self, service: str, queued_before: Micros | None, now: Micros, limit: int
    ) -> list[Job]:
        """Queued jobs whose queue timeout is over, and that nothing holds back.

        Args:
            queued_before: those that have waited since then; None: only those with a queue timeout
                of their own.
            limit: of both kinds.
        """
        ...

    async def longest_queued(self, service: str, limit: int) -> list[Job]:
        """Queued jobs, the one that has waited longest first."""
        ...

    async def record_live(self, reports: Sequence[Report]) -> set[AttemptKey]:
        """Store what attempts say while they run, with events about what is new.

        Returns:
            The attempts that do run at the agent that reports them, under that lease. Nothing was
            written about the others.
        """
        ...

    async def events(self, job_id: int, after: int = 0, limit: int | None = None) -> list[Event]:
        """What happened to the job, oldest first, from behind ``after``.

        Raises:
            NoSuchJob
        """
        ...

    async def latest_events(
        self, job_id: int, limit: int, before: int | None = None
    ) -> list[Event]:
        """The newest events of the job (of those below ``before``), newest first; empty: there
        are none, or no such job.
        """
        ...

    async def all_events(self, where: Filter, after: int, limit: int) -> EventsPage:
        """What happened to all jobs of the filter's user, service and ``submitted_by``. Its cost is
        bounded: a page may hold few, or none, and not be the last.
        """
        ...

    async def newest_event(self) -> int:
        """The highest ``seq`` so far."""
        ...

    async def moves(self, job_id: int, most: int) -> list[Event]:
        """The newest ones of the job's events that are moves, oldest first; empty: no such job."""
        ...

    async def page(
        self, where: Filter, before_id: int | None, limit: int
    ) -> tuple[list[Job], int | None]:
        """Newest first, those with an id below ``before_id``; and the next page's ``before_id``.

        A page may hold fewer than ``limit``, or none, and not be the last: its cost is bounded.
        """
        ...

    async def ids(
        self, where: Filter, before_id: int | None, limit: int
    ) -> tuple[list[int], int | None]:
        """The numbers of the jobs that :meth:`page` gives."""
        ...

    async def counts(self, where: Filter, most: int) -> dict[JobState, int] | None:
        """How many jobs of each state fit, whatever ``where.state`` says; counts no further than
        ``most``.

        Returns:
            None: the filter chooses by more than user, service and state, which no index counts.
        """
        ...
