"""Small results that came with the reports of an agent: those that came at the same time are
stored in one file, and their jobs moved in one transaction.

That file has the results of its jobs from that transaction on, so it cannot be removed as unused
while another of them is about to refer to it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

import structlog

from server.domain.jobs import FileKind, Job, Move, Result
from server.ports import Agent
from server.stages.results import Results
from server.stages.stage import Core, Stage
from server.store import jobs
from shared.together import Together
from shared.wire import PayloadDoc

log = structlog.get_logger()
_MOST_SIZE: Final = 8 << 20
_MOST: Final = 200
_AT_ONCE: Final = 2
_Ended = tuple[PayloadDoc, Move]


class _Alone(Exception):
    """It did not come as announced: it is fetched by itself."""


class SmallResults(Stage):
    """Ends jobs whose attempts have ended, with their results."""

    def __init__(self, core: Core, results: Results) -> None:
        super().__init__(core)
        self._results = results
        self._groups: dict[str, Together[_Ended, Job | None]] = {}
        """agent -> its ends"""

    async def end(self, agent: Agent, payload: PayloadDoc, move: Move) -> Job | None:
        """Make the move, with what the payload left as the attempt's result.

        Returns:
            The job after it; None: it was no longer as the move saw it.

        Raises:
            AgentError, OSError: the result could not be fetched or stored.
        """
        result = payload.result
        came = result is not None and self._results.reported.has(agent.name, payload)
        if not came or (result is not None and result.children):  # children are more than a result
            return await self._end_one(agent, payload, move)
        together = self._groups.get(agent.name)
        if together is None:
            together = self._groups[agent.name] = Together(
                functools.partial(self._end_many, agent),
                at_once=_AT_ONCE,
                most=_MOST,
                size=lambda ended: ended[0].result.size if ended[0].result else 0,
                most_size=_MOST_SIZE,
            )
        try:
            return await together((payload, move))
        except _Alone:
            return await self._end_one(agent, payload, move)

    def forget_agent(self, agent: str | None) -> None:
        """The agent (None: each) may be called in another way from now on."""
        for name in [one for one in self._groups if agent in (None, one)]:
            del self._groups[name]

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
        self, agent: Agent, ended: Sequence[_Ended]
    ) -> Sequence[Job | Exception | None]:
        if len(ended) == 1:
            return [await self._end_one(agent, *ended[0])]
        try:
            return await self._end_together(agent, ended)
        except OSError:
            raise
        except Exception:
            log.exception("results.not_moved_together", agent=agent.name)
        return [_Alone()] * len(ended)

    async def _end_together(
        self, agent: Agent, ended: Sequence[_Ended]
    ) -> Sequence[Job | Exception | None]:
        taken = [self._results.reported.take(agent.name, payload) for payload, _ in ended]
        came = [number for number, content in enumerate(taken) if content is not None]
        answers: list[Job | Exception | None] = [_Alone() for _ in ended]
        if not came:
            return answers
        async with self._storage.pending(FileKind.RESULT) as pending:
            name, at = await pending.put(b"".join(filter(None, taken))), 0
            moves = list[Move]()
            for number in came:
                payload, move = ended[number]
                assert payload.result is not None, "it came as announced"
                result = Result(name, payload.result.size, payload.result.sha256, at)
                moves.append(_with_result(move, result))
                at += result.size
            moved = await self._database.write(jobs.move_all, moves)
            if any(moved):
                pending.commit()
        for number, job in zip(came, moved, strict=True):
            answers[number] = job
        return answers


def _with_result(move: Move, result: Result) -> Move:
    return dataclasses.replace(move, facts={**move.facts, "result": result})
