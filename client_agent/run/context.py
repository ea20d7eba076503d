"""What all attempts on this agent share."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar, TypeVarTuple

from prometheus_client.registry import Collector

from client_agent.collect.result import ReceiptSource
from client_agent.collect.selection import Given
from client_agent.intake.admission import Identity
from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.sandbox.base import Grants, Sandbox
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared.clock import Clock
from shared.metrics import LONG_S, seconds


class SlotQueue:
    """Gives slots to the attempts that wait for one, in the order of their payload ids.

    Args:
        slots: attempts that may run at once.
    """

    def __init__(self, slots: int) -> None:
        self._free = self._slots = slots
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []

    @property
    def in_use(self) -> int:
        return self._slots - self._free

    def acquire_free(self) -> bool:
        """Take a slot if one is free: then nobody waits for one."""
        free = self._free > 0
        self._free -= free
        return free

    async def acquire(self, payload_id: int) -> bool:
        """Wait for a slot. False: it was withdrawn meanwhile and holds no slot."""
        if self.acquire_free():
            return True
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (payload_id, granted))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.result():
                self.release()
            raise

    def release(self) -> None:
        """Give the slot back, to the oldest that waits."""
        self._free += 1
        while self._free > 0 and self._waiting:
            _, granted = heapq.heappop(self._waiting)
            if not granted.done():
                granted.set_result(True)
                self._free -= 1

    def withdraw(self, payload_id: int) -> None:
        """End the wait of an attempt that is not to run any more."""
        for waiting, granted in self._waiting:
            if waiting == payload_id and not granted.done():
                granted.set_result(False)


class Measures:
    """The steps of attempts, timed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phases = seconds(
            "ferryman_attempt_phase_seconds",
            "Steps of attempts that went well, by their names.",
            "phase",
            bounds=LONG_S,
        )

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        return (self._phases,)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around a step: sandbox (its directory is made), unpack, start (up to the closed gate),
        slot (waits for one), run, pack.
        """
        began = self._clock.monotonic()
        yield
        self.took(name, self._clock.monotonic() - began)

    def took(self, name: str, took_s: float) -> None:
        """A step that went well took so long."""
        self._phases.labels(name).observe(took_s)


RETRY_S: Final = 1.0
"""Pause before a step is tried again that the database or a shortage of the agent prevented."""
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What all attempts on this agent share."""

    payloads: Payloads
    folders: Folders
    bundles: SharedBundles
    sandbox: Sandbox
    clock: Clock
    threads: ThreadPoolExecutor
    """For unpacking and packing, so that these never take the threads that HTTP needs."""
    watch: SandboxWatch
    identity: Identity
    grace_s: float
    """From SIGTERM to SIGKILL."""
    slots: SlotQueue
    grants: Grants
    outputs: LiveOutputs
    measures: Measures

    async def in_thread(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run blocking work in a thread of the attempts."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *args)

    async def remove_run_files(self, payload: Payload) -> None:
        """After the end of a payload; repeats are harmless."""
        unused = [payload.inputs_file] if payload.inputs_file else []
        if self.bundles.release(payload.bundle_file, payload.id):
            unused.append(payload.bundle_file)
        await self.folders.remove_run_files(payload.id, unused)

    def receipt_source(self, payload: Payload, given: Given | None = None) -> ReceiptSource:
        """What the result of this payload is made from.

        Args:
            given: files that the result refers to where they are as they were.
        """
        return ReceiptSource(
            payload,
            self.identity.name,
            self.identity.version,
            self.watch.report,
            self.grants.for_service(payload.service),
            given or Given(),
        )
