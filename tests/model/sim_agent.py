"""The model of an agent, called directly: it keeps its promises at the far end of a line that does
not, and what it must never be made to do it records.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from server.agents.agent import Agent, Inputs
from server.agents.sender import SentBundles
from server.domain.agents import NoSuchPayload, RefusedByAgent, Unreachable
from server.domain.jobs import FileKind, Job
from server.domain.service import Service
from server.storage.scratch import ScratchFile
from shared.clock import SECOND, Micros
from shared.ids import AttemptKey, Start
from shared.together import Together
from shared.wire import (
    AgentHealth,
    LiveDoc,
    Notice,
    PayloadDoc,
    PayloadList,
    PayloadState,
    Reason,
    ResultInfo,
    RetryLater,
)
from tests.kit.agent_model import AgentModel, No, Payload

if TYPE_CHECKING:
    from tests.model.simulation import World

NEVER_S = 1e7
SAID = ("it began", "it ends")
"""What each attempt says where the world is talkative."""
FAULTS = (
    *("", "unreachable", "lost", "reply_lost", "cut", "late"),
    *("duplicate", "slow", "busy", "broken", "damaged", "in_progress"),
)
_REFUSALS: dict[str, Callable[[], Exception]] = {
    "unreachable": partial(Unreachable, "no route", sent=False),
    "lost": partial(Unreachable, "reset before it arrived", sent=True),
    "busy": partial(RefusedByAgent, "busy", "busy", final=False, retry_after_s=1.0),
    "in_progress": partial(
        RefusedByAgent, "submit_in_progress", "wait", final=False, retry_after_s=1.0
    ),
    "broken": partial(RefusedByAgent, "internal", "HTTP 500", final=False),
}
SERVER = "sim"


@dataclass
class Machine(AgentModel):
    """An agent, whichever server uses it."""

    late: list[tuple[AttemptKey, str, Start]] = field(default_factory=list)
    """Submits that are still on their way, with the starts of the server."""


class SimAgent(Agent):
    """An agent that keeps its promises, at the far end of a line that does not, and that is there
    while it is ``up``. Where it is not ``well`` it can be talked to, and takes no new work.
    """

    supports_events = True

    def __init__(self, name: str, world: World, slots: int, machine: Machine) -> None:
        super().__init__(name, "", None, world.clock)  # type: ignore[arg-type]
        self._world, self._slots = world, slots
        self.up = self.well = True
        self.machine, self.payloads = machine, machine.payloads
        machine.listeners.append(self._report)
        self._bundles = SentBundles()
        self._orders = Together(self._order_many, at_once=2, most=200)
        self._acknowledgements = Together(self._acknowledge_many, at_once=1, most=10)
        self.skew_s = 0.0
        """How far its clock is ahead of the server's."""
        self.faults: list[str] = []
        """What goes wrong with the next calls, in order."""

    @property
    def state(self) -> AgentHealth:
        status = "ok" if self.well else "error"
        return AgentHealth(status=status, agent=self.name, slots=self._slots)

    # -- what the world does to it

    def _now(self) -> Micros:
        return self._world.clock.now() + round(self.skew_s * SECOND)

    def _report(self, payload: Payload) -> None:
        if self.up:
            doc = payload.doc(self._now())
            self._world.get.inbox.put(self, doc, self._result_of(payload))

    def _result_of(self, payload: Payload) -> bytes | None:
        """Some results come with the event, and some of these are damaged on their way."""
        if self._world.bulk and not payload.alive and payload.id % 2:
            damaged = payload.id % 4 == 3
            return payload.result[::-1] if damaged else payload.result
        return None

    def start(self, payload: Payload) -> None:
        for _, other in self._world.payloads(PayloadState.RUNNING):
            if other.key.job_id == payload.key.job_id and self._world.lost_after_s == NEVER_S:
                self._world.violations.append(f"{payload.key} and {other.key} run at once")
        if payload.key.job_id in self._world.cancelled:
            self._world.violations.append(f"{payload.key} starts after its cancel was confirmed")
        if self._world.talkative:
            payload.live = LiveDoc(notices=[_line(one) for one in SAID[:1]])
        self.machine.start(payload)

    def end(self, payload: Payload, status: PayloadState, reason: Reason | None = None) -> None:
        payload.reason = reason
        payload.result = f"result of {payload.key} {payload.digest}".encode()
        if payload.started and self._world.talkative:
            payload.live = LiveDoc(notices=[_line(one) for one in SAID], output={"score": "1"})
        self.machine.end(payload, status)

    def restart(self, reason: Reason = Reason.AGENT_ERROR) -> None:
        for payload in self.payloads.values():
            if payload.status is PayloadState.RUNNING:
                payload.interrupted = True
                self.end(payload, PayloadState.FAILED, reason)

    def shut_down(self) -> None:
        self.restart(Reason.SHUTDOWN)

    def exit(self, payload: Payload, code: int, later: RetryLater | None = None) -> None:
        """Its run.sh ends with the code, and perhaps asks to be tried later."""
        payload.exit_code, payload.retry_later = code, later
        status = PayloadState.FAILED if code or later else PayloadState.COMPLETED
        self.end(payload, status, Reason.EXIT_CODE if status is PayloadState.FAILED else None)

    def arrive(self, key: AttemptKey, token: str) -> Payload | None:
        """Intake; None: refused."""
        try:
            payload = self.machine.take(SERVER, key, token)
        except No:
            return None
        if payload.created is None:
            payload.created, payload.started = self._now(), False
        return payload

    def take_late(self) -> None:
        """What was still on its way arrives."""
        for key, token, start in self.machine.late:
            if start == self.machine.starts.get(SERVER, start):
                self.arrive(key, token)
        self.machine.late.clear()

    def drop(self) -> None:
        self.up = False
        self._world.registry.mark_down(self, "cut off")

    def toggle_health(self) -> None:
        """Its sandbox breaks, or is well again."""
        self.well = not self.well
        if self.up:
            self._world.registry.mark_up(self, self.state)

    def forge(self) -> None:
        """It has the result of another bundle under a key that the server is about to use, as after
        a restore from a backup.
        """
        for job_id in list(self._world.acknowledged)[-2:]:
            keys = [one.key for _, one in self._world.payloads()]
            attempts = [key.attempt for key in keys if key.job_id == job_id]
            key = AttemptKey(job_id, 1 + max(attempts, default=0))
            payload = Payload(next(self.machine.ids), SERVER, key, "of another user", started=False)
            self.payloads[payload.id] = payload
            self.end(payload, PayloadState.COMPLETED)

    async def connect(self) -> None:
        """The line is back; the server compares."""
        held = [payload.doc(self._now()) for payload in self.machine.held()]
        self.up = True
        self._world.registry.mark_up(self, self.state)

        async def one_page() -> AsyncIterator[PayloadList]:
            yield PayloadList(seq=0, payloads=held)

        await self._world.get.reconcile(self, one_page())

    # -- what an agent does

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[str]:
        """A call, and what goes wrong with it on the way there and on the way back."""
        world = self._world
        world.crash_point.step()
        if self.faults[:1] == ["slow"]:
            self.faults.pop(0)
            await world.clock.sleep(30.0)
        if not self.up:
            raise Unreachable(f"agent {self.name} is cut off", sent=False)
        fault = self.faults.pop(0) if self.faults else ""
        if fault in _REFUSALS:
            raise _REFUSALS[fault]()
        self.machine.check_start(SERVER, world.started)
        yield fault
        world.crash_point.step()
        if fault == "cut":
            self.drop()
        if fault in ("reply_lost", "cut"):
            raise Unreachable("reset before the answer", sent=True)

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        if not self._world.bulk or inputs is not None:
            return await self._submit(job, False)
        assert job.bundle is not None
        return await self._bundles.send(
            job.bundle, partial(self._submit, job, True), partial(self._orders, job)
        )

    async def _order_many(self, orders: Sequence[Job]) -> list[PayloadDoc | Exception]:
        """Of bundles that it was sent: all of them at once, and each by itself."""
        answers: list[PayloadDoc | Exception] = []
        async with self._talk() as fault:
            if fault == "cut":
                self.drop()
            for job in orders:
                self._world.crash_point.step()
                if job.bundle is None or (SERVER, job.bundle.digest) not in self.machine.bundles:
                    answers.append(RefusedByAgent("bundle_missing", "", final=False))
                    continue
                payload = self.arrive(job.key, self.machine.bundles[SERVER, job.bundle.digest])
                answers.append(payload.doc(self._now()) if payload else _key_refused())
        return answers

    async def _submit(self, job: Job, keep_bundle: bool) -> PayloadDoc:
        assert job.bundle is not None
        token = (await self._world.stored(FileKind.BUNDLE, job.bundle)).decode()
        if self.faults[:1] == ["late"] and self.up:
            self.faults.pop(0)
            self.machine.late.append((job.key, token, self._world.started))
            raise Unreachable("timeout", sent=True)
        async with self._talk() as fault:
            if fault == "cut":
                self.drop()  # no event of it was sent
            payload = self.arrive(job.key, token)
            if fault == "duplicate":
                self.arrive(job.key, token)
            if payload is None:
                raise _key_refused()
            if keep_bundle:
                self.machine.bundles[SERVER, job.bundle.digest] = token
        return payload.doc(self._now())

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        async with self._talk():
            payload = self.machine.settle(SERVER, job.key)
            if payload is not None and kill:
                self._kill(payload)
        return payload.doc(self._now()) if payload else None

    def _kill(self, payload: Payload) -> None:
        if payload.alive:
            self.end(payload, PayloadState.KILLED)

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        async with self._talk():
            if payload_id not in self.payloads:
                raise NoSuchPayload(str(payload_id))
            self._kill(self.payloads[payload_id])
        return self.payloads[payload_id].doc(self._now())

    def _result(self, payload_id: int) -> bytes | None:
        payload = self.payloads.get(payload_id)
        gone = payload is None or payload.status is PayloadState.CLEANED
        return None if payload is None or gone else payload.result

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> ResultInfo:
        async with self._talk() as fault:
            body = self._result(payload_id)
            if body is None:
                raise NoSuchPayload(str(payload_id))
            body = b"damaged" if fault == "damaged" else body
            to.path.write_bytes(body[: len(body) // 2] if fault == "reply_lost" else body)
        return _fetched(body)

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        if self._world.bulk:
            await self._acknowledgements((payload_id, key))
        else:
            await self._acknowledge(payload_id)

    async def _acknowledge_many(self, refs: Sequence[tuple[int, str | None]]) -> list[None]:
        for payload_id, _ in refs:
            await self._acknowledge(payload_id)
        return [None] * len(refs)

    async def _acknowledge(self, payload_id: int) -> None:
        async with self._talk():
            try:
                self.machine.forget(payload_id)
            except No as no:
                self._world.violations.append(f"payload {payload_id} was acknowledged: {no}")

    async def partial(self, *_: Any) -> Any:
        raise AssertionError("nobody asks for it here")


def _key_refused() -> RefusedByAgent:
    return RefusedByAgent("key_refused", "settled", final=False, retry_after_s=0.0)


def _fetched(body: bytes) -> ResultInfo:
    return ResultInfo(size=len(body), sha256=hashlib.sha256(body).hexdigest())


def _line(text: str) -> Notice:
    return Notice(level="notice", text=text, at="")
