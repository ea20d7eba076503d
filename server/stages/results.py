"""Results on their way from agents to the storage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from server.domain.jobs import Result
from server.ports import (
    Agent,
    Fetched,
    NoSuchPayload,
    PendingFiles,
    Scratch,
    ScratchFile,
    Unreachable,
)
from server.stages.reported_results import ReportedResults
from shared.ids import AttemptKey
from shared.wire import PayloadDoc

_MAX_DOWNLOADS: Final = 8  # from one agent at once


class Results:
    """Downloads results, whole and checked.

    Args:
        on_slot: called when a slot of an agent has become free.

    Attributes:
        reported: those that need not be fetched.
    """

    def __init__(self, scratch: Scratch, on_slot: Callable[[], None]) -> None:
        self._scratch, self._on_slot = scratch, on_slot
        self._downloads: dict[str, asyncio.Semaphore] = {}
        """agent -> its share of downloads"""
        self._ended = Counter[AttemptKey]()
        self.reported = ReportedResults()

    def ended(self) -> set[AttemptKey]:
        """Attempts that have ended, whose jobs have not yet: they need no slot of their agent."""
        return set(self._ended)

    @contextmanager
    def slot_released(self, key: AttemptKey) -> Iterator[None]:
        """While the result of an attempt is fetched, its slot at the agent is free already."""
        self._ended[key] += 1
        self._on_slot()
        try:
            yield
        finally:
            self._ended -= Counter([key])

    async def fetch(self, agent: Agent, payload: PayloadDoc, pending: PendingFiles) -> Result:
        """Download what a payload left, unless it came with its report, and store it.

        Raises:
            AgentError, OSError: it could not be fetched, or not stored.
        """
        announced = payload.result
        came = self.reported.take(agent.name, payload)
        if came is not None and announced is not None:
            return Result(await pending.put(came), announced.size, announced.sha256)
        async with self._scratch.file() as content:
            most = announced.size if announced is not None else None
            try:
                async with self._downloads.setdefault(
                    agent.name, asyncio.Semaphore(_MAX_DOWNLOADS)
                ):
                    fetched = await agent.fetch(payload.id, content, most)
            except NoSuchPayload as problem:
                raise Unreachable(str(problem), sent=True) from problem
            if announced is not None and announced.sha256 != fetched.sha256:
                raise Unreachable(
                    f"the result arrived damaged: {fetched.size} of {announced.size} bytes, "
                    "and not the digest that was announced",
                    sent=True,
                )
            return await store(pending, content, fetched)


async def store(pending: PendingFiles, content: ScratchFile, fetched: Fetched) -> Result:
    """Store a result that was downloaded."""
    return Result(await pending.put(content), fetched.size, fetched.sha256)
