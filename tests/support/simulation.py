"""Server and agents in one thread on simulated time: real stages, SQL and files, faulty agents.

The agents are a model of what an agent promises (durable, idempotent by key, settled keys
refused); what they must never be made to do, two attempts of a job at once, they record.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from server.agents.holder import LeaseHolder
from server.agents.link import Link
from server.agents.registry import Registry
from server.domain import states
from server.domain.files import FileKind
from server.domain.jobs import Job
from server.domain.service import Service
from server.loops.wakeups import JobWakeups
from server.ports import Fetched, NoSuchPayload, RefusedByAgent, ScratchFile, Unreachable
from server.stages.accept import Accept
from server.stages.cancel import Cancel
from server.stages.clean import Clean
from server.stages.deliver import Deliver
from server.stages.get import Get
from server.stages.poll import Poll
from server.stages.recover import recover
from server.stages.send import Send
from server.storage import folder, scratch
from server.store.jobs import SqlJobs
from server.store.leases import SqlLeases
from server.store.migrations import MIGRATIONS
from shared.files.bundles.format import BundleSummary
from shared.ids import AttemptKey
from shared.principals import LOCAL
from shared.steady_clock import PersistentClock
from shared.wire import AgentHealth, JobState, PayloadDoc, PayloadList, PayloadState, Reason
from tests.support.inline_database import CrashPoint, InlineDatabase, SimulatedCrash, inline_threads
from tests.support.sim_clock import SimClock
from tests.support.sim_payload import ALIVE, Payload

NEVER_S = 1e7
FAULTS = (
    *("", "unreachable", "lost", "reply_lost", "cut", "late"),
    *("duplicate", "slow", "busy", "broken", "damaged", "in_progress"),
)


class SimAgent(Link):
    """An agent that keeps its promises, at the far end of a line that does not.

    Attributes:
        up: the line is there.
        well: it takes new work; if not, it can be talked to all the same.
    """

    def __init__(self, name: str, world: World, slots: int) -> None:
        super().__init__(name, "", None, world.clock)  # type: ignore[arg-type]
        self._world, self._slots = world, slots
        self.up = self.well = True
        self.payloads: dict[int, Payload] = {}
        self.refused: set[AttemptKey] = set()
        self.faults: list[str] = []
        """What goes wrong with the next calls, in order."""
        self.late: list[tuple[AttemptKey, str]] = []
        """Submits that are still on their way."""
        self._ids = itertools.count(1)

    @property
    def supports_events(self) -> bool:
        return True

    @property
    def state(self) -> AgentHealth:
        status = "ok" if self.well else "error"
        return AgentHealth(status=status, agent=self.name, slots=self._slots)

    # -- what the world does to it

    def append_event(self, payload: Payload) -> None:
        if self.up and self._world.alive:
            self._world.get.on_payload(self, payload.doc(self._world.clock.now()))

    def start(self, payload: Payload) -> None:
        for agent in self._world.agents:
            for other in agent.payloads.values():
                same = (
                    other.key.job_id == payload.key.job_id and other.status is PayloadState.RUNNING
                )
                if same and self._world.lost_after_s == NEVER_S:
                    self._world.violations.append(f"{payload.key} and {other.key} run at once")
        if payload.key.job_id in self._world.cancelled:
            self._world.violations.append(f"{payload.key} starts after its cancel was confirmed")
        payload.status, payload.started = PayloadState.RUNNING, True
        self.append_event(payload)

    def end(self, payload: Payload, status: PayloadState, reason: Reason | None = None) -> None:
        payload.status, payload.reason = status, reason
        payload.result = f"result of {payload.key} {payload.token}".encode()
        self.append_event(payload)

    def restart(self) -> None:
        for payload in self.payloads.values():
            if payload.status is PayloadState.RUNNING:
                payload.interrupted = True
                self.end(payload, PayloadState.FAILED, Reason.AGENT_ERROR)

    def arrive(self, key: AttemptKey, token: str) -> Payload | None:
        """Intake: idempotent by key; None: refused."""
        known = next((p for p in self.payloads.values() if p.key == key), None)
        if known is not None:
            return known if known.token == token else None
        newer = any(
            p.key.job_id == key.job_id and p.key.attempt > key.attempt
            for p in self.payloads.values()
        )
        if key in self.refused or newer:
            return None
        payload = Payload(next(self._ids), key, token=token)
        self.payloads[payload.id] = payload
        self.append_event(payload)
        return payload

    def take_late(self) -> None:
        """What was still on its way arrives."""
        for key, token in self.late:
            self.arrive(key, token)
        self.late.clear()

    def drop(self) -> None:
        """The line is cut."""
        self.up = False
        self._world.registry.mark_down(self, "cut off")

    def fall_ill(self) -> None:
        """Its sandbox breaks, or is well again."""
        self.well = not self.well
        if self.up:
            self._world.registry.mark_health(self, self.state)

    def forge(self) -> None:
        """It has the result of another bundle under a key that the server is about to use, as after
        a restore from a backup.
        """
        for job_id in list(self._world.acknowledged)[-2:]:
            attempt = 1 + max(
                (
                    p.key.attempt
                    for a in self._world.agents
                    for p in a.payloads.values()
                    if p.key.job_id == job_id
                ),
                default=0,
            )
            key = AttemptKey(job_id, attempt)
            payload = Payload(next(self._ids), key, token="of another user")
            self.payloads[payload.id] = payload
            self.end(payload, PayloadState.COMPLETED)

    async def connect(self) -> None:
        """The line is back; the server compares."""
        now = self._world.clock.now()
        held = [p.doc(now) for p in self.payloads.values() if p.status is not PayloadState.CLEANED]
        self.up = True
        self._world.registry.mark_up(self, self.state)
        await self._world.get.reconcile(self, PayloadList(seq=0, payloads=held))

    # -- ports.Agent

    async def _line(self) -> str:
        self._world.crash_point.step()
        if self.faults[:1] == ["slow"]:
            self.faults.pop(0)
            await self._world.clock.sleep(30.0)
        if not self.up:
            raise Unreachable(f"agent {self.name} is cut off", sent=False)
        fault = self.faults.pop(0) if self.faults else ""
        match fault:
            case "unreachable":
                raise Unreachable("no route", sent=False)
            case "lost":
                raise Unreachable("reset before it arrived", sent=True)
            case "busy":
                raise RefusedByAgent("busy", "busy", final=False, retry_after_s=1.0)
            case "in_progress":
                raise RefusedByAgent("submit_in_progress", "wait", final=False, retry_after_s=1.0)
            case "broken":
                raise RefusedByAgent("internal", "HTTP 500", final=False)
        return fault

    def _answered(self, fault: str) -> None:
        self._world.crash_point.step()
        if fault == "cut":
            self.drop()
        if fault in ("reply_lost", "cut"):
            raise Unreachable("reset before the answer", sent=True)

    async def submit(self, job: Job) -> PayloadDoc:
        assert job.bundle is not None
        token = self._world.stored(FileKind.BUNDLE, job.bundle.file).read_text()
        if self.faults[:1] == ["late"] and self.up:
            self.faults.pop(0)
            self.late.append((job.key, token))
            raise Unreachable("timeout", sent=True)
        fault = await self._line()
        if fault == "cut":
            self.drop()  # no event of it was sent
        payload = self.arrive(job.key, token)
        if fault == "duplicate":
            self.arrive(job.key, token)
        if payload is None:
            raise RefusedByAgent("key_refused", "settled", final=False, retry_after_s=0.0)
        self._answered(fault)
        return payload.doc(self._world.clock.now())

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        fault = await self._line()
        payload = next((p for p in self.payloads.values() if p.key == job.key), None)
        if payload is None:
            self.refused.add(job.key)
        elif kill:
            self._kill(payload)
        self._answered(fault)
        return payload.doc(self._world.clock.now()) if payload else None

    def _kill(self, payload: Payload) -> None:
        if payload.status in ALIVE:
            self.end(payload, PayloadState.KILLED)

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        fault = await self._line()
        if payload_id not in self.payloads:
            raise NoSuchPayload(str(payload_id))
        self._kill(self.payloads[payload_id])
        self._answered(fault)
        return self.payloads[payload_id].doc(self._world.clock.now())

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> Fetched:
        fault = await self._line()
        payload = self.payloads.get(payload_id)
        if payload is None or payload.status is PayloadState.CLEANED:
            raise NoSuchPayload(str(payload_id))
        body = b"damaged" if fault == "damaged" else payload.result
        to.path.write_bytes(body[: len(body) // 2] if fault == "reply_lost" else body)
        self._answered(fault)
        return Fetched(len(body), hashlib.sha256(body).hexdigest())

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        fault = await self._line()
        payload = self.payloads.get(payload_id)
        if payload is not None:
            if payload.status in ALIVE:
                self._world.violations.append(
                    f"{payload.key} was acknowledged while {payload.status}"
                )
            payload.status, payload.result = PayloadState.CLEANED, b""
        self._answered(fault)

    async def partial(self, job: Job, to: ScratchFile) -> Fetched:
        raise AssertionError("nobody asks for partial results here")

    async def look(
        self, payload_id: int, to: ScratchFile
    ) -> tuple[PayloadDoc | None, Fetched | None]:
        raise AssertionError("only job-orchestrator clients are polled")


@dataclass
class World:
    """Everything, and what must hold of it."""

    folder: Path
    services: dict[str, Service]
    crash_point: CrashPoint = field(default_factory=CrashPoint)
    lost_after_s: float = NEVER_S
    """Sooner: what is given up for lost may run beside its successor; then no violation."""
    clock: SimClock = field(default_factory=SimClock)
    """The machine's, which may jump; the server goes by ``steady``."""
    agents: list[SimAgent] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    """job -> token of its bundle: 201 was sent."""
    cancelled: set[int] = field(default_factory=set)
    """jobs whose cancel was confirmed"""
    ended_at: dict[int, float] = field(default_factory=dict)
    """job -> monotonic time at which it was first seen to have ended"""
    violations: list[str] = field(default_factory=list)
    alive: bool = False

    def __post_init__(self) -> None:
        self._names = itertools.count(1)
        self.agents = [SimAgent("north", self, 1), SimAgent("south", self, 2)]

    # -- the server's starts and crashes

    @contextmanager
    def inline(self) -> Iterator[None]:
        """File steps of this life on our own thread."""
        stand_in = SimpleNamespace(to_thread=inline_threads(self.crash_point))
        with (
            mock.patch.object(folder, "asyncio", stand_in),
            mock.patch.object(scratch, "asyncio", stand_in),
        ):
            yield

    async def start(self) -> None:
        """A life of the server begins."""
        self.steady = PersistentClock(self.folder, self.clock, "boot")
        self.steady.save()
        self.database = InlineDatabase(
            self.folder / "sim.sqlite", MIGRATIONS, self.crash_point, self.steady
        )
        wakeups = JobWakeups()
        self.jobs = SqlJobs(self.database, wakeups.changed)
        self.registry = Registry(self.agents, self.steady)
        owner = f"{next(self._names):012x}"
        names = (owner, lambda: f"{next(self._names):020x}")
        self.scratch = scratch.FolderScratch(self.folder / "staging", *names)
        self.storage = folder.FolderStorage(self.folder, self.scratch, *names)
        self.leases = SqlLeases(self.database, owner)
        self.running_servers = self.leases.running_servers
        how = (self.jobs, self.storage, self.scratch)
        self.accept = Accept(self.jobs, self.storage, self.services, self.steady)
        self.get = Get(*how, self.registry, self.services, self.steady)
        fleet, services, clock = self.registry, self.services, self.steady
        lost_after_s = self.lost_after_s
        self.poll = Poll(
            *how,
            fleet,
            services,
            clock,
            self.get,
            unreachable_after_s=60.0,
            lost_after_s=lost_after_s,
        )
        self.deliver = Deliver(
            self.jobs, fleet, services, clock, self.get, lost_after_s=lost_after_s
        )
        self.send = Send(
            self.jobs, fleet, services, clock, self.deliver, self.get, removed_after_s=lost_after_s
        )
        self.cancel = Cancel(self.jobs, fleet, services, clock, wakeups, self.get.on_payload)
        self.clean = Clean(
            self.jobs, self.storage, self.services, self.steady, self.running_servers
        )
        self.holder = LeaseHolder(
            self.leases,
            self.jobs,
            self.registry,
            {agent.name: functools.partial(self._talk_to, agent) for agent in self.agents},
            [self.deliver.stop, self.poll.stop, self.get.stop],
            self.deliver.resume_interrupted,
            alone=True,
        )
        self.alive = True
        await self.holder.run_once()
        await recover(self.jobs, self.scratch, self.running_servers)
        await self.settle()

    async def _talk_to(self, agent: SimAgent) -> None:
        if agent.up:
            await self.reconnect(agent)

    async def reconnect(self, agent: SimAgent) -> None:
        try:
            await agent.connect()
        except (Unreachable, RefusedByAgent):
            agent.drop()

    async def die(self) -> None:
        """Everything that was under way is gone at once."""
        self.alive = False
        self.crash_point.at = 0
        for stage in (self.holder, self.deliver, self.cancel, self.poll, self.get):
            await stage.stop()
        self.database.close()
        self.crash_point.at, self.crash_point.steps = None, 0

    async def settle(self) -> None:
        """Let everything that is under way get as far as it can without time passing."""
        await self.clock.settle()
        if self.crash_point.crashed:
            raise SimulatedCrash("in a task")

    # -- what users do

    async def upload(self, user: str, service: str, key: str | None = None) -> int:
        number = next(self._names)
        token = f"token {number}" if key is None else f"token of {key}"
        fields = {"user_id": user, "service": service}
        if key is not None:
            fields["idempotency_key"] = key
        with self.scratch.file() as content:
            content.path.write_text(token)
            request = self.accept.request(LOCAL, fields)
            job, _ = await self.accept(
                LOCAL, request, content, BundleSummary(len(token), token, 1, 0)
            )
        self.acknowledged[job.id] = token
        return job.id

    def stored(self, kind: FileKind, name: str) -> Path:
        return folder.stored_path(self.folder, kind, name)

    async def remove_orphans(self) -> int:
        """As the Cleaner does in an hour."""
        removed = 0
        for kind in FileKind:
            names = await self.storage.list(kind)
            removed += await self.storage.delete_orphans(
                kind, names, self.jobs.files_in_use, self.running_servers
            )
        return removed

    # -- what must hold

    async def check(self) -> None:
        """Raise AssertionError where a promise is broken."""
        assert not self.violations, self.violations
        held: dict[tuple[str, str], int] = {}
        at_agent: dict[str, int] = {}
        for job_id, token in self.acknowledged.items():
            job = await self.jobs.get(job_id)
            history = await self.jobs.events(job_id)
            before = None
            for event in history:
                assert event.before == before, f"history of {job_id} has a gap: {history}"
                assert before is None or event.state in states.NEXT[before], history
                before = event.state
            assert before is job.state, f"job {job_id} is {job.state}, its history says {before}"
            if job.result is not None:
                stored = self.stored(FileKind.RESULT, job.result.file).read_bytes()
                expected = f"result of {job.key} {token}".encode()
                assert stored == expected, f"{stored!r} is not {expected!r}"
            if job.state in states.HOLDS_SLOT:
                ended = any(
                    p.key == job.key and p.status not in ALIVE
                    for a in self.agents
                    for p in a.payloads.values()
                )
                name = job.agent or ""
                at_agent[name] = at_agent.get(name, 0) + (not ended)
                held[job.service, job.user_id] = held.get((job.service, job.user_id), 0) + 1
            if job.state is not JobState.CLEANED:
                assert job.bundle is not None
                assert self.stored(FileKind.BUNDLE, job.bundle.file).read_text() == token
            else:
                kept_s = self.clock.monotonic() - self.ended_at.get(job_id, -NEVER_S)
                least_s = self.services[job.service].expires_after_s / 1.01
                assert kept_s >= least_s, f"job {job_id} was kept for {kept_s} s only"
            if job.ended:
                self.ended_at.setdefault(job_id, self.clock.monotonic())
            else:
                self.ended_at.pop(job_id, None)
            if job_id in self.cancelled:
                assert job.state in (JobState.CANCELLED, JobState.CLEANED), job
        for agent in self.agents:
            assert at_agent.get(agent.name, 0) <= agent._slots, f"{agent.name}: {at_agent}"
        for (of, _), count in held.items():
            assert count <= self.services[of].runs_per_user
        for name, service in self.services.items():
            total = sum(count for (one, _), count in held.items() if one == name)
            assert total <= service.max_runs

    async def drain(self) -> None:
        """Heal everything and let all work end."""
        for agent in self.agents:
            agent.faults.clear()
            if not agent.well:
                agent.fall_ill()
        await self.send.run_once()
        await self.clock.advance(60.0)
        for agent in self.agents:
            agent.take_late()
            if not agent.up:
                await agent.connect()
        jobs: list[Job] = []
        held: list[Payload] = []
        for _ in range(60):
            await self.send.run_once()
            await self.poll.run_once()
            await self.cancel.run_once()
            await self.clock.advance(61.0)
            for agent in self.agents:
                for payload in list(agent.payloads.values()):
                    if payload.status is PayloadState.RUNNING:
                        agent.end(payload, PayloadState.COMPLETED)
            for agent in self.agents:
                for payload in list(agent.payloads.values()):
                    if payload.status is PayloadState.PREPARED:
                        agent.start(payload)
            await self.clock.advance(61.0)
            jobs = [await self.jobs.get(job_id) for job_id in self.acknowledged]
            held = [
                p
                for a in self.agents
                for p in a.payloads.values()
                if p.status is not PayloadState.CLEANED
            ]
            if all(job.ended for job in jobs) and not held:
                break
        else:
            left = [(job.key, job.state, job.agent, job.message) for job in jobs if not job.ended]
            raise AssertionError(f"not drained: {left} {held}")

    def leftovers(self) -> set[str]:
        """Stored and staged files that no job refers to."""
        stored = {
            path.name
            for kind in ("bundles", "results", "staging")
            for path in (self.folder / kind).rglob("*")
            if path.is_file()
        }
        used = {
            row["file"]
            for row in self.database._run(
                "SELECT file FROM bundles UNION SELECT result_file AS file FROM attempts", None
            )
        }
        return stored - used
