"""Small results of an agent that have come, or wait there, at the same time: fetched in one request
unless they came, stored in one file, their jobs moved in one transaction.

That file has the results of its jobs from that transaction on, so it cannot be removed as unused
while another of them is about to refer to it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from server.domain.jobs import FileKind, Job, Move, Result
from server.ports import Agent, AgentError, Fetched, PendingFiles, ScratchFile
from server.stages.results import Results
from server.stages.stage import Resources, Stage
from server.store import jobs
from shared.together import Together
from shared.wire import PayloadDoc

log = structlog.get_logger()
MAX_SIZE: Final = 1 << 20
"""Bytes of a result that is fetched with others."""
_MOST_SIZE: Final = 8 << 20
_MOST: Final = 200
_AT_ONCE: Final = 8
"""Requests to one agent."""
_AT_ONCE_OF_BATCHES: Final = 2
"""For children, which come by the thousand: so groups form."""

_AT_ONCE_CAME: Final = 2
"""Of those that came with their reports: what is left to do is our own work."""

_Ended = tuple[PayloadDoc, Move]


class _Group(NamedTuple):
    """What is done together."""

    agent: str
    child: bool
    came: bool


class _Alone(Exception):
    """It did not come with the others: it is fetched by itself."""


class SmallResults(Stage):
    """Ends jobs whose attempts have ended, with their results."""

    def __init__(self, resources: Resources, results: Results) -> None:
        super().__init__(resources)
        self._results = results
        self._groups: dict[_Group, Together[_Ended, Job | None]] = {}

    async def end(
        self, agent: Agent, payload: PayloadDoc, move: Move, *, child: bool
    ) -> Job | None:
        """Make the move, with what the payload left as the attempt's result.

        Args:
            child: of a batch.

        Returns:
            The job after it; None: it was no longer as the move saw it.

        Raises:
            AgentError, OSError: the result could not be fetched or stored.
        """
        came = self._results.reported.has(agent.name, payload)
        if not _is_small(payload) or not (came or agent.hands_over_many):
            return await self._end_one(agent, payload, move)
        group = _Group(agent.name, child, came)
        if group not in self._groups:
            at_once = _AT_ONCE_OF_BATCHES if child else _AT_ONCE
            self._groups[group] = Together(
                functools.partial(self._end_many, agent, came=came),
                at_once=_AT_ONCE_CAME if came else at_once,
                most=_MOST,
                size=lambda ended: ended[0].result.size if ended[0].result else 0,
                most_size=_MOST_SIZE,
            )
        try:
            return await self._groups[group]((payload, move))
        except _Alone:
            return await self._end_one(agent, payload, move)

    def forget_agent(self, agent: str | None) -> None:
        """The agent (None: each) may be called in another way from now on."""
        for group in [one for one in self._groups if agent in (None, one[0])]:
            del self._groups[group]

    async def _end_one(self, agent: Agent, payload: PayloadDoc, move: Move) -> Job | None:
        async with self._storage.pending(FileKind.RESULT) as pending:
            if payload.result is not None:
                result = await self._results.fetch(agent, payload, pending)
                move = _with_result(move, result)
            moved = await self._database.write(jobs.move, move)
            if moved is not None:
                pending.commit()
        return moved

    async def _end_many(
        self, agent: Agent, ended: Sequence[_Ended], *, came: bool
    ) -> Sequence[Job | Exception | None]:
        if len(ended) == 1:
            return [await self._end_one(agent, *ended[0])]
        try:
            together = self._end_those_that_came if came else self._end_together
            return await together(agent, ended)
        except (AgentError, OSError):
            if came or agent.hands_over_many:
                raise
        except Exception:
            log.exception("results.not_moved_together", agent=agent.name)
        return [_Alone()] * len(ended)

    async def _end_those_that_came(
        self, agent: Agent, ended: Sequence[_Ended]
    ) -> Sequence[Job | Exception | None]:
        found: list[tuple[int, Fetched] | None] = []
        contents = list[bytes]()
        for payload, _ in ended:
            content, at = self._results.reported.take(agent.name, payload), sum(map(len, contents))
            if content is None or payload.result is None:
                found.append(None)
                continue
            found.append((at, Fetched(payload.result.size, payload.result.sha256)))
            contents.append(content)
        async with self._storage.pending(FileKind.RESULT) as pending:
            return await self._store_together(agent, ended, found, b"".join(contents), pending)

    async def _end_together(
        self, agent: Agent, ended: Sequence[_Ended]
    ) -> Sequence[Job | Exception | None]:
        async with (
            self._storage.pending(FileKind.RESULT) as pending,
            self._scratch.file() as content,
        ):
            found = await agent.fetch_many([payload for payload, _ in ended], content)
            return await self._store_together(agent, ended, found, content, pending)

    async def _store_together(
        self,
        agent: Agent,
        ended: Sequence[_Ended],
        found: Sequence[tuple[int, Fetched] | None],
        content: ScratchFile | bytes,
        pending: PendingFiles,
    ) -> Sequence[Job | Exception | None]:
        """Store the content, and make the moves of those whose results are in it.

        Args:
            found: where in the content each result begins; None: it is not there.
        """
        answers: list[Job | Exception | None] = [_Alone() for _ in ended]
        if not any(found):
            return answers
        name = await pending.put(content)
        came, moves = list[int](), list[Move]()
        for number, (part, (_, move)) in enumerate(zip(found, ended, strict=True)):
            if part is not None:
                offset, fetched = part
                result = Result(name, fetched.size, fetched.sha256, offset)
                came.append(number)
                moves.append(_with_result(move, result))
        moved = await self._database.write(jobs.move_all, moves)
        if any(moved):
            pending.commit()
        for number, job in zip(came, moved, strict=True):
            answers[number] = job
        return answers


def _is_small(payload: PayloadDoc) -> bool:
    """One that left children is more than a result."""
    result = payload.result
    return result is not None and result.size <= MAX_SIZE and not result.children


def _with_result(move: Move, result: Result) -> Move:
    return dataclasses.replace(move, facts={**move.facts, "result": result})
