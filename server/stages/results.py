"""Results on their way from agents to the storage."""

from __future__ import annotations

import asyncio
import errno
import math
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeAlias

from server.agents.agent import Agent
from server.domain.agents import NoSuchPayload, Unreachable
from server.domain.jobs import Result
from server.stages.stage import Core, Stage
from server.storage.folder import PendingFiles
from shared.units.durations import say_duration
from shared.units.sizes import say_count, say_size
from shared.wire import ResultInfo

_MAX_DOWNLOADS: Final = 8  # from one agent at once
UNCHECKED: Final = 1 << 20
"""Bytes of a result that is not worth a look at the disk before it is fetched."""
LOOK_AGAIN_S: Final = 5.0
"""Until a result that waits for room is tried again, if it is still wanted."""
Payload: TypeAlias = tuple[str, int]
"""Agent, and id of the payload there."""


class NoRoom(OSError):
    """A result does not fit on the server's disk now; its text is what it waits for room on.

    Args:
        size: bytes that it needs.
        available: bytes that may be used.
        refused: what the disk said, though it seemed to have room: its inodes may be used up.

    Attributes:
        is_brief: it only waits for others that came before it.
    """

    def __init__(self, size: int, available: int, refused: str | None = None) -> None:
        self.size, self.refused = size, refused if size <= available else None
        self.is_brief = size <= available and refused is None
        super().__init__(
            errno.ENOSPC, f"the server's disk: {self.refused or need(size, available)}"
        )

    def __str__(self) -> str:
        return self.strerror or ""


def need(size: int, available: int) -> str:
    return f"{say_size(size)} needed, {say_size(max(0, available))} may be used"


class Results(Stage):
    """Downloads and stores results, whole and checked, and knows which wait for room on the
    server's disk.

    The oldest of those are tried first; one that does not fit does not hold up those behind it that
    do. An agent with one that does not fit gets no new job; when all have one, no upload is taken.
    So what an agent says that it has holds up its own work, not that of others.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._downloads = defaultdict[str, asyncio.Semaphore](
            lambda: asyncio.Semaphore(_MAX_DOWNLOADS)
        )
        """agent -> its share of downloads"""
        self._waiting: dict[Payload, tuple[float, NoRoom]] = {}
        """Since when (monotonic), and why; the oldest first."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __contains__(self, which: Payload) -> bool:
        return which in self._waiting

    def held(self) -> set[str]:
        """Agents that have a result that does not fit."""
        return {which[0] for which, (_, why) in self._waiting.items() if not why.is_brief}

    def hold(self, agents: Iterable[str]) -> bool:
        """Whether there are such agents, and each has a result that does not fit."""
        return bool(names := set(agents)) and names <= self.held()

    def hold_uploads(self) -> bool:
        """Whether all agents that can be reached have one, so that no upload is taken."""
        return self.hold(agent.name for agent in self.core.registry.all() if agent.reachable)

    def sentence(self) -> str:
        """Empty: none waits."""
        if not self._waiting:
            return ""
        since, reasons = zip(*self._waiting.values(), strict=True)
        refused = [one.refused for one in reasons if one.refused]
        needed = sum(one.size for one in reasons)
        why = refused[0] if refused else need(needed, self.core.scratch.available())
        oldest_s = max(1, round(self.core.clock.monotonic() - min(since)))
        wait = "waits" if len(self) == 1 else "wait"
        return (
            f"{say_count(len(self), 'result')} {wait} for room on the server's disk: {why}, "
            f"the oldest waits for {say_duration(oldest_s)}"
        )

    async def check(self, which: Payload, size: int) -> None:
        """Before a result is fetched. Raises NoRoom: it has to wait."""
        if size <= UNCHECKED and not self._waiting:
            return
        available = left = await self._look()
        for earlier, (_, why) in self._waiting.items():
            if earlier == which or size > left:
                break
            left -= why.size if why.size <= left else 0
        if size > left:
            raise NoRoom(size, available)

    async def add(self, which: Payload, problem: OSError, size: int) -> NoRoom:
        """The disk is full, so it waits from now on, unless it does already; why."""
        if not isinstance(problem, NoRoom):
            problem = NoRoom(size, await self._look(), problem.strerror or "")
        since, _ = self._waiting.get(which, (self.core.clock.monotonic(), problem))
        self._waiting[which] = since, problem
        return problem

    def done(self, which: Payload) -> None:
        """It was stored, or is not wanted any more."""
        if self._waiting.pop(which, None) is not None:
            self.core.wakeups.send()

    async def most(self) -> float:
        """Bytes of the largest result that the disk could hold if there were nothing else on it."""
        with suppress(OSError):
            return await asyncio.to_thread(self.core.scratch.most)
        return math.inf  # it does not answer

    async def _look(self) -> int:
        """Bytes that may be used now, or might be when the disk answered last."""
        with suppress(OSError):
            await asyncio.to_thread(self.core.scratch.measure)
        return self.core.scratch.available()

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
            file, few = await self.core.contents.keep(pending, came, announced.size)
            return Result(file, announced.size, announced.sha256, announced.inputs, few)
        async with self.core.scratch.file() as content:
            try:
                async with self._downloads[agent.name]:
                    fetched = await agent.fetch(payload_id, content, announced.size)
            except NoSuchPayload as problem:
                if not agent.supports_events:
                    raise
                raise Unreachable(str(problem), sent=True) from problem
            if agent.supports_events and announced.sha256 != fetched.sha256:
                raise Unreachable(
                    f"the result arrived damaged: {fetched.size} of {announced.size} bytes, "
                    "and not the digest that was announced",
                    sent=True,
                )
            file, few = await self.core.contents.keep(pending, content, fetched.size)
            return Result(file, fetched.size, fetched.sha256, announced.inputs, few)
