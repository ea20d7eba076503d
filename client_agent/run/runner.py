"""Runs Prepared payloads, oldest first, in a fixed number of workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from client_agent.collect import result
from client_agent.collect.pack import CheckSpace
from client_agent.payloads.payload import LIVE, Outcome, Payload
from client_agent.payloads.store import Payloads
from client_agent.run import outcomes
from client_agent.run.attempt import Attempt, StartDeferred
from client_agent.run.context import RETRY_S, AgentContext
from client_agent.run.sandboxes import LINGER_S, Sandboxes
from shared.clock import Clock, wait_for
from shared.files.opened import to_end
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import PayloadState, Reason


@dataclass(slots=True)
class EndRequests:
    """How the agent is to end."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    """Take nothing new, finish everything, then end."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """End."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Do not wait for attempts that are to continue."""
    waits: bool = False
    """It waits for such attempts."""

    def patience(self, seconds: float, clock: Clock) -> Callable[[], bool]:
        """Whether the end may take longer still: so long after the last of these attempts."""
        until = clock.monotonic() + seconds

        def still() -> bool:
            nonlocal until
            if self.waits:
                until = clock.monotonic() + seconds
            return clock.monotonic() < until

        return still

    def on_stop_signal(self) -> bool:
        """A signal to stop has come. Returns whether the agent is to end at once."""
        if not self.stop.is_set():
            self.stop.set()
            return False
        if self.waits and not self.hurry.is_set():
            self.hurry.set()
            return False
        return True


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_SIGTERM_SHARE: Final = 0.6
"""Share of the time for stopping in which attempts may end after SIGTERM; then they are killed."""
_SIGKILL_SHARE: Final = 0.3
"""Share in which the killed attempts are packed and stored."""


class Runner:
    """The attempts of one agent.

    Args:
        workers: attempts that are handled at once. As many of them run as there are slots; the
            others are prepared or packed.
    """

    def __init__(self, context: AgentContext, workers: int) -> None:
        self._context, self._workers = context, workers
        self._queue: dict[int, Payload] = {}
        self._attempts: dict[int, Attempt] = {}
        self._work_available = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> int:
        """Attempts that have a slot."""
        return self._context.slots.in_use

    @property
    def waiting(self) -> int:
        """Payloads that wait for a slot."""
        return len(self._queue) + len(self._attempts) - self.running

    @property
    def busy(self) -> bool:
        """Whether there is an attempt that has not ended."""
        return bool(self._queue or self._attempts)

    @property
    def alive(self) -> bool:
        """Whether every worker still works, or is to stop."""
        return self._stopping or not any(task.done() for task in self._tasks)

    def start(self, prepared: Sequence[Payload]) -> None:
        """Start the workers; they begin with these payloads."""
        for payload in prepared:
            self.enqueue(payload)
        self._tasks = [
            asyncio.create_task(self._work(number), name=f"worker-{number}")
            for number in range(self._workers)
        ]

    def enqueue(self, payload: Payload) -> None:
        """Queue a Prepared payload."""
        self._queue[payload.id] = payload
        self._work_available.set()

    async def kill(self, payload_id: int) -> Payload:
        """Kill the payload's processes, or prevent its start; return when none is alive. Returns
        the payload as it is then: Killed, or as it had ended before. Raises NoSuchPayload."""
        payloads = self._context.payloads
        payload = await payloads.get(payload_id)
        if payload.state is PayloadState.PREPARED:
            cancelled = Outcome(PayloadState.KILLED, message=outcomes.CANCELLED_EARLY)
            killed = await payloads.end(payload_id, PayloadState.PREPARED, cancelled)
            if killed is not None:
                await self._discard(killed)
                return killed
        attempt = self._attempts.get(payload_id)
        if attempt is not None:
            attempt.cancel()
            await attempt.finished.wait()
        return await payloads.get(payload_id)

    @contextlib.asynccontextmanager
    async def directory(self, payload: Payload) -> AsyncIterator[int | None]:
        """Descriptor of the directory of an attempt that runs, kept until the context ends; None:
        it does not run."""
        attempt = self._attempts.get(payload.id)
        if attempt is None or payload.state is not PayloadState.RUNNING:
            yield None
            return
        async with attempt.directory() as fd:
            yield fd

    async def snapshot(
        self, payload: Payload, to: Path, threads: ThreadPoolExecutor, check_space: CheckSpace
    ) -> None:
        """Write a ZIP of an attempt as it is now: its files, logs and receipt. Raises OSError.

        Args:
            threads: used instead of those of the attempts, which must not wait for snapshots.
            check_space: see :func:`client_agent.collect.pack.collect`.
        """
        context = self._context
        attempt = self._attempts.get(payload.id)
        given = attempt.given if attempt and payload.result_files == "changed" else None
        source = context.receipt_source(payload, given)
        async with self.directory(payload) as fd:
            make = partial(result.snapshot, source, context.folders, fd, to, check_space)
            await to_end(make, threads)

    async def stop(self, seconds: float, asked: EndRequests | None = None) -> bool:
        """End what runs as interrupted and start nothing more; what waits stays Prepared.

        Args:
            seconds: until it has ended.
            asked: attempts that are to continue go on, until it asks to hurry; ``seconds`` count
                from their end. None: they end as the others do.

        Returns:
            Within ``seconds``. False: some attempt's end could not be stored by then; the next
            start finds it Running.
        """
        self._stopping = True
        self._work_available.set()
        workers = asyncio.ensure_future(asyncio.gather(*self._tasks, return_exceptions=True))
        stopped = asyncio.Event()
        workers.add_done_callback(lambda _: stopped.set())
        if asked is not None:
            await self._let_continue(asked)
        for share, grace in ((_SIGTERM_SHARE, True), (_SIGKILL_SHARE, False)):
            for attempt in self._attempts.values():
                attempt.shut_down(grace=grace)
            if await wait_for(stopped, seconds * share, self._context.clock):
                return True
        log.error("runner.stopped_hard", payloads=sorted(self._attempts))
        for task in self._tasks:
            task.cancel()
        return False

    async def _let_continue(self, asked: EndRequests) -> None:
        """End the other attempts, and wait for those that are to continue."""
        going = [attempt for attempt in self._attempts.values() if attempt.continues]
        if not going:
            return
        log.info("agent.waits", payloads=[attempt.payload.id for attempt in going])
        for attempt in self._attempts.values():
            if attempt not in going:
                attempt.shut_down(grace=True)
        ends = [asyncio.ensure_future(attempt.finished.wait()) for attempt in going]
        all_ended = asyncio.ensure_future(asyncio.wait(ends))
        hurried = asyncio.ensure_future(asked.hurry.wait())
        asked.waits = True
        await asyncio.wait({all_ended, hurried}, return_when=asyncio.FIRST_COMPLETED)
        asked.waits = False
        for future in (*ends, all_ended, hurried):
            future.cancel()

    async def _work(self, number: int) -> None:
        while not self._stopping:
            if not self._queue:
                self._work_available.clear()
                await self._work_available.wait()
                continue
            oldest = next(iter(self._queue))
            first: int | None = oldest
            sandboxes = Sandboxes(self._context, self._queue[oldest], number)
            try:
                while first is not None:
                    await self._run(self._queue.pop(first), sandboxes)
                    first = await self._following(sandboxes)
            finally:
                await sandboxes.close()

    async def _following(self, sandboxes: Sandboxes) -> int | None:
        """The payload that follows in a pack; waits a moment for one. None: there is none."""
        if sandboxes.open and not self._queue and not self._stopping:
            self._work_available.clear()
            await wait_for(self._work_available, LINGER_S, self._context.clock)
        return None if self._stopping else sandboxes.choose(self._queue)

    async def _run(self, payload: Payload, sandboxes: Sandboxes) -> None:
        attempt = self._attempts[payload.id] = Attempt(self._context, payload, sandboxes)
        again = False
        try:
            await attempt.run()
        except (DatabaseUnavailable, StartDeferred) as problem:
            log.warning("payload.not_started", payload_id=payload.id, error=str(problem))
            await self._context.folders.remove_logs(payload.id)
            await self._context.clock.sleep(RETRY_S)
            again = not attempt.start_prevented
        except Exception:
            log.exception("payload.broken", payload_id=payload.id)
            await self._fail(payload)
        finally:
            del self._attempts[payload.id]
            attempt.finished.set()
        if again:  # only now: no other worker may begin with it while it is among the attempts
            self._queue = {payload.id: payload} | self._queue
            self._work_available.set()

    async def _fail(self, payload: Payload) -> None:
        """End an attempt that met a defect of the agent."""
        message = "the agent failed while it handled this attempt"
        outcome = outcomes.failed(Reason.AGENT_ERROR, message)
        # If this fails too, the next start finds the payload and ends it.
        with contextlib.suppress(DatabaseUnavailable):
            for state in LIVE:
                await self._context.payloads.end(payload.id, state, outcome)

    async def _discard(self, killed: Payload) -> None:
        """Forget a payload that was killed before it started; wait until none of it is alive."""
        self._queue.pop(killed.id, None)
        attempt = self._attempts.get(killed.id)
        if attempt is not None and attempt.prevent_start():
            await attempt.finished.wait()
        await self._context.remove_run_files(killed)


FETCH_S: Final = 600.0
"""After the last attempt of a drained agent has ended, so long it waits for servers to fetch."""
_LOOK_EVERY_S: Final = 0.2


async def drain(
    asked: EndRequests, begin: Callable[[], None], runner: Runner, payloads: Payloads, clock: Clock
) -> None:
    """Once that is asked for, let the agent finish what it has, and stop it when nothing is left:
    also what is Prepared runs, and servers fetch what has ended.

    Args:
        begin: makes the agent take nothing new.
    """
    await asked.drain.wait()
    begin()
    log.info("agent.draining")
    while runner.busy and not await wait_for(asked.stop, _LOOK_EVERY_S, clock):
        pass
    until = clock.monotonic() + FETCH_S
    while not asked.stop.is_set() and await payloads.held_for_servers():
        if clock.monotonic() >= until:
            log.warning("agent.drained_partly", why="servers have not fetched all results")
            break
        await wait_for(asked.stop, _LOOK_EVERY_S, clock)
    asked.stop.set()
