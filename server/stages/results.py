"""Results on their way from agents to the storage."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from server.agents.agent import Agent
from server.agents.registry import Registry
from server.domain.agents import NoSuchPayload, Unreachable
from server.domain.jobs import Result
from server.storage.contents import Contents
from server.storage.folder import PendingFiles
from server.storage.scratch import Scratch
from shared.clock import Clock, wait_for
from shared.ids import AttemptKey
from shared.units.durations import say_duration
from shared.units.sizes import say_count, say_size
from shared.wire import ResultInfo

_MAX_DOWNLOADS: Final = 8  # from one agent at once
UNCHECKED: Final = 1 << 20
"""Bytes of a result that is not worth a look at the disk before it is fetched."""
_LOOK_AGAIN_S: Final = 10.0
"""Until it is looked again whether a result that waits for room is still wanted; and until a disk
that was full although it seemed to have room is tried again: its inodes may be used up."""
WAITS_FOR_ROOM: Final = "the result waits for room on"
"""How the message of its job begins; a :class:`NoRoom` is the rest."""
Payload: TypeAlias = tuple[str, int]
"""Agent, and id of the payload there."""


class NoRoom(OSError):
    """A result does not fit on the server's disk now.

    Args:
        size: bytes that it needs; None: not known.
        available: bytes that may be used.
        problem: what the disk said; None: it was not tried.

    Attributes:
        is_brief: it only waits for others that came before it.
    """

    def __init__(self, size: int | None, available: int, problem: OSError | None = None) -> None:
        fits = size is not None and size <= available
        needed = "more is" if size is None else say_size(size)
        text = f"the server's disk: {needed} needed, {say_size(max(0, available))} may be used"
        if fits and problem is not None:
            text = f"the server's disk: {problem.strerror}"
        super().__init__(errno.ENOSPC, text)
        self.is_brief = fits and problem is None

    def __str__(self) -> str:
        return self.strerror or ""


def not_stored(problem: OSError) -> str:
    """That this server cannot store a result, for its user: without names of folders."""
    return f"the server cannot store the result: {problem.strerror or 'its disk failed'}"


def is_disk_full(problem: BaseException) -> bool:
    """Whether it is the server's own disk that has no room."""
    return isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Waiting:
    size: int
    """Bytes that have to be free, at least."""
    since: float
    """Monotonic, as the next one."""
    not_before: float
    turn: asyncio.Event
    """Set: it may be tried."""
    refused: str = ""
    """What the disk said although it seemed to have room."""


class WaitingResults:
    """Results that wait for room on the server's disk. The oldest are tried first; one that does
    not fit does not hold up those behind it that do. An agent with one that does not fit gets no
    new job; when all have one, no upload is taken. So what an agent says that it has holds up its
    own work, not that of others.

    Args:
        on_end: called when one waits no more.
    """

    def __init__(self, scratch: Scratch, clock: Clock, on_end: Callable[[], None]) -> None:
        self._scratch, self._clock, self._on_end = scratch, clock, on_end
        self._waiting: dict[Payload, _Waiting] = {}
        self._available = 0
        """Bytes that might be used when it was looked last."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, which: Payload) -> bool:
        return which in self._waiting

    def held(self) -> set[str]:
        """Agents that have a result that does not fit."""
        return {
            which[0]
            for which, one in self._waiting.items()
            if one.refused or one.size > self._available
        }

    def hold(self, agents: Iterable[str]) -> bool:
        """Whether there are such agents, and each has a result that does not fit."""
        return bool(names := set(agents)) and names <= self.held()

    def hold_uploads(self, fleet: Registry) -> bool:
        """Whether all agents that can be reached have one, so that no upload is taken."""
        return self.hold(agent.name for agent in fleet.all() if agent.reachable)

    @property
    def size(self) -> int:
        """Bytes that they need."""
        return sum(one.size for one in self._waiting.values())

    @property
    def oldest_s(self) -> float:
        """For how long the oldest waits."""
        since = min((one.since for one in self._waiting.values()), default=None)
        return 0.0 if since is None else self._clock.monotonic() - since

    def sentence(self) -> str:
        """Empty: none waits."""
        if not self._waiting:
            return ""
        wait = "waits" if len(self) == 1 else "wait"
        available = say_size(max(0, self._available))
        why = f"{say_size(self.size)} needed, {available} may be used"
        refused = [one.refused for one in self._waiting.values() if one.refused]
        return (
            f"{say_count(len(self), 'result')} {wait} for room on the server's disk: "
            f"{refused[0] if refused else why}, the oldest waits for "
            f"{say_duration(max(1, round(self.oldest_s)))}"
        )

    async def check(self, which: Payload, size: int) -> None:
        """Before a result is fetched.

        Raises:
            NoRoom: it has to wait.
        """
        waiting = self._waiting.get(which)
        if waiting is not None and waiting.turn.is_set():
            return
        if self._waiting:
            raise NoRoom(size, self._available)
        if size > UNCHECKED and size > (available := await self._look()):
            raise NoRoom(size, available)

    async def add(self, which: Payload, problem: OSError, size: int | None) -> NoRoom:
        """It could not be stored, so it waits from now on, unless it does already.

        Args:
            problem: for which :func:`is_disk_full` holds.
            size: bytes; None: not known.

        Returns:
            Why, in a sentence.
        """
        now = self._clock.monotonic()
        available = await self._look()
        needed = max(0, available) + 1 if size is None else size
        waiting = self._waiting.setdefault(which, _Waiting(needed, now, now, asyncio.Event()))
        if not isinstance(problem, NoRoom):
            waiting.size, waiting.refused = needed, ""
            if needed <= available:
                waiting.not_before = now + _LOOK_AGAIN_S
                waiting.refused = problem.strerror or ""
        waiting.turn.clear()
        return problem if isinstance(problem, NoRoom) else NoRoom(size, available, problem)

    async def turn(self, which: Payload) -> None:
        """Until one that waits may be tried again, or is to be looked at again."""
        if which in self._waiting:
            await wait_for(self._waiting[which].turn, _LOOK_AGAIN_S, self._clock)

    def done(self, which: Payload) -> None:
        """It was stored, or is not wanted any more."""
        if (one := self._waiting.pop(which, None)) is not None:
            one.turn.set()
            self._on_end()

    async def most(self) -> float:
        """Bytes of the largest result that the disk could hold if there were nothing else on it."""
        with suppress(OSError):
            return await asyncio.to_thread(self._scratch.most)
        return math.inf  # it does not answer

    async def run_once(self) -> None:
        """Let those be tried that fit now."""
        if not self._waiting:
            return
        left = await self._look()
        now = self._clock.monotonic()
        for one in self._waiting.values():
            if one.turn.is_set() or (one.size <= left and now >= one.not_before):
                one.turn.set()
                left -= one.size

    async def _look(self) -> int:
        """Bytes that may be used now, or might be when the disk answered last."""
        with suppress(OSError):
            self._available = await asyncio.to_thread(self._scratch.measure)
        return self._available


class Results:
    """Downloads and stores results, whole and checked.

    Args:
        on_slot: called when a slot of an agent has become free, and when a result waits no more.

    Attributes:
        waiting: those that the disk has no room for.
    """

    def __init__(
        self, contents: Contents, scratch: Scratch, clock: Clock, on_slot: Callable[[], None]
    ) -> None:
        self._contents, self._scratch, self._on_slot = contents, scratch, on_slot
        self._downloads: dict[str, asyncio.Semaphore] = {}
        """agent -> its share of downloads"""
        self._ended = set[AttemptKey]()
        self.waiting = WaitingResults(scratch, clock, on_slot)

    def ended(self) -> set[AttemptKey]:
        """Attempts that have ended, whose jobs have not yet: they need no slot of their agent."""
        return set(self._ended)

    @contextmanager
    def slot_released(self, key: AttemptKey) -> Iterator[None]:
        """While the result of an attempt is fetched, its slot at the agent is free already."""
        self._ended.add(key)
        self._on_slot()
        try:
            yield
        finally:
            self._ended.discard(key)

    async def fetch(
        self,
        agent: Agent,
        payload_id: int,
        announced: ResultInfo,
        came: bytes | None,
        pending: PendingFiles,
    ) -> Result:
        """Download what a payload left, and store it.

        Args:
            came: the result, where it came with its report, and is as announced.

        Raises:
            AgentError, OSError: it could not be fetched, or not stored.
        """
        if came is not None:
            file, few = await self._contents.keep(pending, came, announced.size)
            return Result(file, announced.size, announced.sha256, announced.inputs, few)
        async with self._scratch.file() as content:
            try:
                async with self._downloads.setdefault(
                    agent.name, asyncio.Semaphore(_MAX_DOWNLOADS)
                ):
                    fetched = await agent.fetch(payload_id, content, announced.size)
            except NoSuchPayload as problem:
                raise Unreachable(str(problem), sent=True) from problem
            if agent.supports_events and announced.sha256 != fetched.sha256:
                raise Unreachable(
                    f"the result arrived damaged: {fetched.size} of {announced.size} bytes, "
                    "and not the digest that was announced",
                    sent=True,
                )
            file, few = await self._contents.keep(pending, content, fetched.size)
            return Result(file, fetched.size, fetched.sha256, announced.inputs, few)
