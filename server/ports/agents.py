"""One agent, whatever it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from server.domain.jobs import Job
from server.domain.service import Service
from server.storage.base import FileStream
from server.storage.scratch import ScratchFile
from shared.clock import Micros
from shared.wire import AgentHealth, PayloadDoc, RunningFiles


@dataclass(frozen=True, slots=True)
class Fetched:
    """A result that was downloaded whole."""

    size: int
    sha256: str


class Inputs(FileStream, Protocol):
    """A ZIP of other jobs' files, which an attempt gets beside its bundle."""

    @property
    def sha256(self) -> str: ...


class Agent(Protocol):
    """One agent. Every call raises Unreachable or RefusedByAgent."""

    name: str
    agent_id: str | None
    """Of its record; None: it has none yet."""
    max_runs: Mapping[str, int]
    """service -> most jobs of it that it may have at once; missing: any number."""

    @property
    def supports_events(self) -> bool:
        """Whether it is a Ferryman agent, with keys and events, as the settings say. A
        job-orchestrator client is polled.
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

    @property
    def clock_ahead_s(self) -> float | None:
        """How far its clock was ahead of ours at least when it was asked last, in seconds;
        negative: behind. None: it does not say.
        """
        ...

    @property
    def heard_at(self) -> Micros | None:
        """When it said something last; None: not since this server uses it."""
        ...

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        """Send the current attempt and its bundle. With a Ferryman agent a repeat is harmless.

        Args:
            inputs: for Ferryman agents only.

        Raises:
            OSError: the stored bundle cannot be read.
        """
        ...

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        """The payload under the key of the current attempt, or None and the promise that there will
        be none. Ferryman agents only.

        With ``kill`` its processes are dead when this returns. The payload may be of another
        bundle, see :func:`server.domain.outcome.is_of`.
        """
        ...

    async def poll(
        self, payload_id: int, to: ScratchFile
    ) -> tuple[PayloadDoc | None, Fetched | None]:
        """Poll: the payload (None: in no state that says anything); a Completed one's result comes
        with it, at ``to``. job-orchestrator clients only. Raises NoSuchPayload.
        """
        ...

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> Fetched:
        """Download what an attempt left, ended or running, and check its digest.

        Args:
            most: bytes that it is said to have; more are refused.

        Raises:
            NoSuchPayload
        """
        ...

    async def partial(self, job: Job, to: ScratchFile) -> Fetched:
        """Download what there is of the job's current attempt, and of no other. Raises
        NoSuchPayload.
        """
        ...

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        """Return once its processes are dead: the payload as it is then (None: the agent does not
        say).

        Args:
            key: that the payload must have; None: none is known.

        Raises:
            NoSuchPayload
        """
        ...

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        """The agent may delete it, if it has the key. Repeats are harmless."""
        ...

    # -- what the current attempt writes while it runs; Ferryman agents only

    async def log_size(self, job: Job, stream: str) -> int:
        """How many bytes the job's current attempt has written so far to "stdout" or "stderr".

        Raises:
            NoSuchPayload: it has ended there, so its logs are in its result.
        """
        ...

    def log(
        self, job: Job, stream: str, offset: int, *, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        """What it has written, from ``offset`` on.

        Args:
            follow: goes on with what it writes; ends when it has ended, or wrote nothing for a
                while.

        Raises:
            NoSuchPayload: as above.
        """
        ...

    async def list_files(self, job: Job, after: str, limit: int) -> RunningFiles:
        """The files that the job's current attempt has now, behind the path ``after``; not more
        than ``limit``.

        Raises:
            NoSuchPayload: it does not run any more: they are in its result.
        """
        ...

    async def file_size(self, job: Job, path: str) -> int:
        """Bytes of one of them.

        Raises:
            RefusedByAgent: code ``file_not_found``.
            NoSuchPayload: as above.
        """
        ...

    def file(self, job: Job, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``; fewer where it has changed.

        Raises:
            RefusedByAgent, NoSuchPayload: as above.
        """
        ...
