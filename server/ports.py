"""What the stages need from outside; ``store``, ``storage``, ``agents``, ``loops`` provide it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from server.domain.fairshare import Waiting
from server.domain.jobs import Event, Job, Move, NewJob, Result
from server.domain.quotas import Service
from shared.clock import Micros
from shared.wire import AgentHealth, JobState, PayloadDoc


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a list shows; None: any."""

    user_id: str | None = None
    service: str | None = None
    state: JobState | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Slots that one user's jobs of one service hold on one agent."""

    service: str
    user_id: str
    agent: str
    slots: int
    running: int = 0
    """Those of them whose job is Running."""


class Jobs(Protocol):
    """The jobs and their histories; every change is durable when the call returns."""

    async def insert(self, new: NewJob, message: str, most_queued: int = 0) -> tuple[Job, bool]:
        """Add a job as Queued, with its first event.

        Args:
            most_queued: jobs of the user and service that may wait, this one included; 0: any
                number. Counted in the transaction of the insert.

        Returns:
            The job, and whether it is new: with an ``idempotency_key`` that the user has used
            before it is the job of that time.

        Raises:
            QueueFull
        """
        ...

    async def get(self, job_id: int) -> Job:
        """Raises NoSuchJob."""
        ...

    async def find(self, job_ids: Iterable[int]) -> dict[int, Job]:
        """Those of them that exist, in one read."""
        ...

    async def by_idempotency_key(self, user_id: str, key: str) -> Job | None: ...

    async def move(self, *moves: Move) -> Job | None:
        """Make the moves of one job, all of them with their events or none.

        Returns:
            The job after the last, or None where it was no longer as the first move saw it.
        """
        ...

    async def claim(self, moves: Sequence[Move]) -> list[Job]:
        """Queued → Processing for several jobs at once; each begins its next attempt.

        Returns:
            Those that were still Queued and nobody wants cancelled.
        """
        ...

    async def keep_result(self, job: Job, result: Result) -> bool:
        """Attach a result to a job that ended without one (cancelled). False: no longer so."""
        ...

    async def request_cancel(self, job_id: int, at: Micros) -> Job:
        """Write down that the job is to be cancelled, unless it has ended: nobody claims it then.

        Raises:
            NoSuchJob
        """
        ...

    async def waiting(
        self, service: Service, after_user: str, users: int, each: int
    ) -> tuple[list[Waiting], str | None]:
        """Jobs that may be sent: of ``users`` users behind ``after_user``, ``each`` of every one.

        Returns:
            The jobs, and the last user looked at (None: there are no further users).
            Its cost does not depend on the length of the queue.
        """
        ...

    async def release_delayed(self, now: Micros) -> int:
        """Let the jobs be sent whose delay is over; how many, some hundreds at a time.

        Until then :meth:`waiting` does not see them, and they cost it nothing.
        """
        ...

    async def anything_queued(self) -> bool: ...

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

    async def queued_before(self, job: Job) -> int:
        """How many queued jobs of the user and service are older; counts up to 1,000."""
        ...

    async def longest_queued(self, service: str, limit: int) -> list[Job]:
        """Queued jobs, the one that has waited longest first."""
        ...

    async def expired(self, now: Micros, limit: int) -> list[Job]:
        """Ended jobs whose ``expires_at`` has passed."""
        ...

    async def files_in_use(self, names: Sequence[str]) -> set[str]:
        """Those of the stored files' names that a job refers to."""
        ...

    async def clean(self, moves: Sequence[Move]) -> list[int]:
        """Make the moves into Cleaned, and drop the jobs' idempotency keys; ids of those made."""
        ...

    async def delete(self, job_id: int) -> Job:
        """Delete an ended job and its history; the job as it was. Its number is not given again.

        Raises:
            NoSuchJob, NotEnded
        """
        ...

    async def cleaned_services(self) -> list[str]:
        """Services of which there are Cleaned jobs."""
        ...

    async def forget(self, service: str, ended_before: Micros, limit: int) -> int:
        """Delete Cleaned jobs and their histories; how many, ``limit`` at most."""
        ...

    async def forget_idempotency_keys(self, before: Micros) -> int: ...

    async def maintain(self) -> bool:
        """Give unused space back, some at a time, and find out whether what failed works again.

        Returns:
            Whether there is more to give back.
        """
        ...

    async def events(self, job_id: int, after: int = 0) -> list[Event]:
        """The job's history, oldest first.

        Raises:
            NoSuchJob
        """
        ...

    async def page(
        self, where: Filter, before_id: int | None, limit: int
    ) -> tuple[list[Job], int | None]:
        """Newest first, those with an id below ``before_id``; and the next page's ``before_id``.

        A page may hold fewer than ``limit``, or none, and not be the last: its cost is bounded.
        """
        ...


class Files(Protocol):
    """Sealed files on disk. Blocking work happens in threads."""

    def staging(self) -> AbstractContextManager[Path]:
        """A path for a file in the making; whatever is there at the end is removed."""
        ...

    def sealing(self, kind: str) -> AbstractContextManager[Sealing]:
        """Seal files of a kind ("bundles" or "results"); those not kept are removed at the end.

        After a cancellation they are left for :meth:`orphans` of the next start: the row may yet
        come.
        """
        ...

    def path(self, kind: str, name: str) -> Path: ...

    async def remove(self, files: Iterable[tuple[str, str]]) -> None:
        """Remove sealed files, given by kind and name."""
        ...

    async def shelves(self) -> list[tuple[str, str]]:
        """Kind and name of every folder that sealed files lie in."""
        ...

    async def orphans(
        self, kind: str, shelf: str, in_use: Callable[[Sequence[str]], Awaitable[set[str]]]
    ) -> int:
        """Remove the shelf's sealed files that nothing refers to and nobody is about to; how many.

        What the server did not put there is left alone.
        """
        ...

    def free_bytes(self) -> int: ...

    def room(self) -> int:
        """Bytes that may still be written by whoever reserves; may be negative."""
        ...

    def reserve(self) -> AbstractContextManager[Reservation]:
        """For writing one file; what was not used of it is given back at the end."""
        ...

    def check_writable(self) -> None:
        """Raises OSError when a file cannot be made, written and made durable."""
        ...

    async def clear_staging(self) -> int:
        """At start: remove what a former life left half done; how many files."""
        ...


class Reservation(Protocol):
    def take(self, count: int) -> None:
        """Before writing ``count`` more bytes; for threads, too.

        Raises:
            OSError: ENOSPC: too little would stay free.
        """
        ...


class Sealing(Protocol):
    async def seal(self, staged: Path) -> str:
        """Make the finished file durable; its name in the storage."""
        ...

    def keep(self) -> None:
        """A row refers to it now."""
        ...


class AgentError(Exception):
    """Base of what an agent, or the way to it, can answer."""


class Unreachable(AgentError):
    """No answer. ``sent``: the request may have arrived all the same."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RefusedByAgent(AgentError):
    """A clear no.

    Attributes:
        final: it will be the same next time.
        retry_after_s: when to ask again, where the agent said so.
    """

    def __init__(
        self, code: str, message: str, *, final: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.final, self.retry_after_s = code, final, retry_after_s


class NoSuchPayload(AgentError):
    """The agent does not know the payload (any more)."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A result that was downloaded whole."""

    size: int
    sha256: str


class Agent(Protocol):
    """One agent. Every call raises Unreachable or RefusedByAgent."""

    name: str

    @property
    def supports_events(self) -> bool:
        """Whether it is one of ours (keys, events), as the settings say; a job-orchestrator client
        is polled.
        """
        ...

    @property
    def reachable(self) -> bool:
        """Whether it can be talked to: it hands over results, kills, settles."""
        ...

    @property
    def accepts_work(self) -> bool:
        """Whether it may get new jobs."""
        ...

    @property
    def trouble(self) -> str:
        """Why it does not accept work, in a sentence; empty: it does."""
        ...

    @property
    def slots(self) -> int | None:
        """How many jobs it runs at once; None: it does not say."""
        ...

    @property
    def health(self) -> AgentHealth | None:
        """What it said of itself last."""
        ...

    async def submit(self, job: Job, bundle: Path) -> PayloadDoc:
        """Send the current attempt. With an agent of ours a repeat is harmless."""
        ...

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        """The payload under the key of the current attempt, or None and the promise that there will
        be none. Agents of ours only.

        With ``kill`` its processes are dead when this returns. The payload may be of another
        bundle, see :func:`server.domain.outcome.is_of`.
        """
        ...

    async def look(self, payload_id: int, to: Path) -> tuple[PayloadDoc | None, Fetched | None]:
        """Poll: the payload (None: in no state that says anything); a Completed one's result comes
        with it, at ``to``. job-orchestrator clients only.

        Raises:
            NoSuchPayload
        """
        ...

    async def fetch(self, payload_id: int, to: Path, most: int | None = None) -> Fetched:
        """Download what an attempt left, ended or running, and check its digest.

        Args:
            most: bytes that it is said to have; more are refused.

        Raises:
            NoSuchPayload
        """
        ...

    async def partial(self, job: Job, to: Path) -> Fetched:
        """Download what there is of the job's current attempt, and of no other.

        Raises:
            NoSuchPayload
        """
        ...

    async def kill(self, payload_id: int) -> PayloadDoc | None:
        """Return once its processes are dead: the payload as it is then (None: the agent does not
        say).

        Raises:
            NoSuchPayload
        """
        ...

    async def acknowledge(self, payload_id: int) -> None:
        """The agent may delete it. Repeats are harmless."""
        ...


class Fleet(Protocol):
    """The agents."""

    def choose(self, service: str, held: Mapping[str, int]) -> Agent | None:
        """The agent with a free slot that takes the service and has the smallest share in use.

        Args:
            held: agent's name -> jobs that it has.
        """
        ...

    def free_slots(self, service: str, held: Mapping[str, int]) -> int:
        """How many more jobs of the service :meth:`choose` finds an agent for."""
        ...

    def claimed(self, name: str, service: str) -> None:
        """A job was claimed for the agent."""
        ...

    def refused(
        self, name: str, service: str, why: str, *, offered: bool, at_least_s: float
    ) -> float:
        """It refused one: it gets no job of the service for a while, longer each time.

        Args:
            offered: False: it does not offer the service at all.

        Returns:
            For how many seconds.
        """
        ...

    def accepted(self, name: str, service: str) -> None:
        """It took one."""
        ...

    def offered(self, service: str) -> bool:
        """Whether an agent offers the service, though perhaps not now."""
        ...

    def named(self, name: str) -> Agent | None: ...

    def all(self) -> Sequence[Agent]: ...

    def silent_s(self, name: str) -> float | None:
        """For how many seconds it could not be talked to; None: it can."""
        ...

    def why_none(self, service: str, held: Mapping[str, int]) -> str:
        """A sentence for people: why :meth:`choose` finds nobody."""
        ...


class Watch(Protocol):
    """Waiting for a job to change."""

    def changed(self, job: Job) -> None:
        """Called after each commit."""
        ...

    def of(self, job_id: int, *, end_only: bool = False) -> AbstractContextManager[asyncio.Event]:
        """An event that is set at each change of the job, or its end; and when the server stops."""
        ...

    @property
    def closing(self) -> bool:
        """The server is stopping: nobody should wait for anything."""
        ...
