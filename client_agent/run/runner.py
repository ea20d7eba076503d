"""Takes Prepared payloads, oldest first, and sees them through."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from client_agent.collect import result
from client_agent.collect.pack import CheckSpace
from client_agent.payloads import states
from client_agent.payloads.payload import Outcome, Payload
from client_agent.run import outcome
from client_agent.run.attempt import RETRY_S, Attempt, NotNow
from client_agent.run.context import House
from shared.clock import wait_for
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import PayloadState, Reason

S = PayloadState
log: structlog.stdlib.BoundLogger = structlog.get_logger()

_SOFT: Final = 0.6
"""Share of the time for stopping in which attempts may end by themselves; then they are killed."""
_HARD: Final = 0.3
"""Share in which the killed are collected and written down."""


class Runner:
    """The attempts of one agent that are on their way.

    Args:
        seats: attempts that are on their way at once; of these, as many run as there are turns.
    """

    def __init__(self, house: House, seats: int) -> None:
        self._house, self._seats = house, seats
        self._waiting: dict[int, Payload] = {}
        self._attempts: dict[int, Attempt] = {}
        self._more = asyncio.Event()
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> int:
        """Attempts whose turn it is."""
        return self._house.turns.held

    def start(self, waiting: Sequence[Payload]) -> None:
        """Begin to take payloads, those that wait already first."""
        for payload in waiting:
            self.take(payload)
        self._tasks = [
            asyncio.create_task(self._seat(number), name=f"seat-{number}")
            for number in range(self._seats)
        ]

    def take(self, payload: Payload) -> None:
        """Queue a Prepared payload."""
        self._waiting[payload.id] = payload
        self._more.set()

    async def kill(self, payload_id: int) -> Payload:
        """Make sure that it does not run; return when none of its processes is alive.

        Returns:
            The payload as it is then: Killed, or as it had ended before.

        Raises:
            NoSuchPayload
        """
        payloads = self._house.payloads
        payload = await payloads.get(payload_id)
        if payload.state is S.PREPARED:
            early = Outcome(S.KILLED, message=outcome.CANCELLED_EARLY)
            killed = await payloads.end(payload_id, S.PREPARED, early)
            if killed is not None:
                await self._withdraw(killed)
                return killed
        attempt = self._attempts.get(payload_id)
        if attempt is not None:
            attempt.cancel()
            await attempt.settled.wait()
        return await payloads.get(payload_id)

    async def snapshot(
        self, payload: Payload, to: Path, threads: ThreadPoolExecutor, room: CheckSpace
    ) -> None:
        """Write a ZIP of what there is of an attempt now: its files, logs and receipt.

        Args:
            threads: where; not those of the attempts, which would wait.
            room: see :func:`client_agent.collect.pack.collect`.

        Raises:
            OSError
        """
        house, loop = self._house, asyncio.get_running_loop()
        attempt = self._attempts.get(payload.id)
        told = house.attempted(payload)
        runs = attempt is not None and payload.state is S.RUNNING
        async with attempt.reading() if attempt and runs else contextlib.nullcontext() as fd:
            await loop.run_in_executor(
                threads, lambda: result.snapshot(told, house.folders, fd, to, room)
            )

    async def stop(self, seconds: float) -> bool:
        """Stop what runs as interrupted, start nothing more; what waits stays for the next start.

        Returns:
            Before ``seconds`` are over. False: the end of an attempt could not be written down by
            then; it is found Running at the next start.
        """
        self._leaving = True
        self._more.set()
        seats = asyncio.ensure_future(asyncio.gather(*self._tasks, return_exceptions=True))
        over = asyncio.Event()
        seats.add_done_callback(lambda _: over.set())
        for share, grace in ((_SOFT, True), (_HARD, False)):
            for attempt in self._attempts.values():
                attempt.leave(grace=grace)
            if await wait_for(over, seconds * share, self._house.clock):
                return True
        log.error("runner.stopped_hard", payloads=sorted(self._attempts))
        for task in self._tasks:
            task.cancel()
        return False

    # -- seats

    async def _seat(self, number: int) -> None:
        while not self._leaving:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
                continue
            payload = self._waiting.pop(next(iter(self._waiting)))
            attempt = self._attempts[payload.id] = Attempt(self._house, payload, number)
            try:
                await attempt.run()
            except (DatabaseUnavailable, NotNow) as problem:
                log.warning("payload.not_started", payload=payload.id, problem=str(problem))
                await self._house.folders.remove_logs(payload.id)
                self._waiting = {payload.id: payload} | self._waiting
                await self._house.clock.sleep(RETRY_S)
            except Exception:
                log.exception("payload.broken", payload=payload.id)
                await self._give_up(payload)
            finally:
                del self._attempts[payload.id]
                attempt.settled.set()

    async def _give_up(self, payload: Payload) -> None:
        """A defect of ours met this attempt: it has ended, and through no fault of the bundle."""
        told = outcome.failed(Reason.AGENT_ERROR, "the agent failed while it handled this attempt")
        with contextlib.suppress(DatabaseUnavailable):  # then it is found at the next start
            for state in states.LIVE:
                if S.FAILED in states.NEXT[state]:
                    await self._house.payloads.end(payload.id, state, told)

    async def _withdraw(self, killed: Payload) -> None:
        """Forget one that was killed before it started; return when nothing of it is alive."""
        house = self._house
        self._waiting.pop(killed.id, None)
        attempt = self._attempts.get(killed.id)
        if attempt is not None and attempt.drop():
            await attempt.settled.wait()
        await house.folders.remove_run_files(killed.id, killed.bundle_file)
