"""Server and agents in one thread on simulated time: real stages, SQL and files, faulty agents."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from server.agents.registry import Registry
from server.domain import states
from server.domain.agents import RefusedByAgent, Unreachable
from server.domain.errors import NoSuchJob
from server.domain.jobs import Bundle, FileKind, Job, Result
from server.domain.service import Service
from server.domain.upload_fields import upload_request
from server.stages import deferral
from server.stages.accept import Accept
from server.stages.batches import Batches, Dependencies
from server.stages.by_hand import Delete, RetryByHand
from server.stages.cancel import Cancel
from server.stages.clean import Clean, recover
from server.stages.deliver import Deliver
from server.stages.get import Get
from server.stages.poll import Poll
from server.stages.round import Round
from server.stages.schedules import Schedules
from server.stages.stage import Core
from server.stages.statistics import Statistics
from server.stages.waiting import Waiting
from server.stages.wakeups import JobWakeups
from server.storage import contents, folder, scratch
from server.storage.contents import Contents
from server.storage.scratch import ScratchFile
from server.store import bundles
from server.store.identity import new_start
from server.store.migrations import MIGRATIONS
from server.store.pages import Filter
from server.store.queue import Offer
from shared.clock import wait_for
from shared.files.bundles.format import BundleSummary
from shared.principals import LOCAL
from shared.steady_clock import PersistentClock
from shared.wire import JobState, PayloadState, Reason
from tests.kit.agent_model import FANS_OUT, Payload
from tests.kit.clock import SimClock
from tests.kit.store import Jobs, check_batches, settings
from tests.model.inline_database import CrashPoint, InlineDatabase, SimulatedCrash, inline_threads
from tests.model.sim_agent import NEVER_S, SAID, Machine, SimAgent

OVER: Final = "('Completed', 'Failed', 'Cancelled')"
COUNT_ENDS: Final = (
    "CREATE TABLE ends (user_id TEXT, day INTEGER, service TEXT, state TEXT) STRICT",
    f"""
    CREATE TRIGGER count_ends AFTER UPDATE OF state ON jobs
    WHEN NEW.state IN {OVER} AND OLD.state NOT IN {OVER} BEGIN
        INSERT INTO ends VALUES
            (NEW.user_id, NEW.ended_at / 86400000000, NEW.service, lower(NEW.state));
    END
    """,
)
"""Each end of a job, whatever statement makes it."""
CHILDREN: Final = ("a", "b")
"""Names of the children that a job leaves."""


class Sender(Round):
    """Claims in its sweeps only."""

    claims = False

    async def run_once(self) -> int:
        self.claims, self._calls_seen = True, -1
        try:
            return await super().run_once()
        finally:
            self.claims = False

    def _offers(self, queued: Collection[str]) -> list[Offer]:
        return super()._offers(queued) if self.claims else []


@dataclass
class World:
    """Everything, and what must hold of it."""

    folder: Path
    services: dict[str, Service]
    crash_point: CrashPoint = field(default_factory=CrashPoint)
    lost_after_s: float = NEVER_S
    """Sooner: what is given up as lost may run beside its successor; then no violation."""
    clock: SimClock = field(default_factory=SimClock)
    """The machine's, which may jump; the server goes by ``steady``."""
    agents: list[SimAgent] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    """job -> token of its bundle: 201 was sent."""
    deleted: set[int] = field(default_factory=set)
    """jobs that somebody asked to delete: they may be gone, or not yet"""
    cancelled: set[int] = field(default_factory=set)
    """jobs whose cancel was confirmed"""
    ended_at: dict[int, float] = field(default_factory=dict)
    """job -> monotonic time at which it was first seen to have ended"""
    violations: list[str] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    machines: list[Machine] = field(default_factory=lambda: [Machine(), Machine()])
    slots: Mapping[str, int] = field(default_factory=lambda: {"north": 1, "south": 2})
    bulk: bool = False
    """The agents take many orders, results and acknowledgements at once."""
    talkative: bool = False
    """Attempts say something while they run."""
    report_delay_s: float = 0.0
    """Reports of attempts that go on wait so long for newer ones."""
    alive: bool = False

    def __post_init__(self) -> None:
        self.agents = [
            SimAgent(name, self, count, machine)
            for (name, count), machine in zip(self.slots.items(), self.machines, strict=True)
        ]

    # -- the agents

    def payloads(self, *states: PayloadState) -> list[tuple[SimAgent, Payload]]:
        return [
            (agent, payload)
            for agent in self.agents
            for payload in agent.payloads.values()
            if not states or payload.status in states
        ]

    async def sweep(self) -> None:
        await self.send.run_once()
        await self.settle()

    async def state(self, job_id: int) -> JobState:
        return (await self.jobs.get(job_id)).state

    async def send_and_start(self) -> None:
        """All that waits is sent, and all that was sent runs."""
        await self.sweep()
        for agent, payload in self.payloads(PayloadState.PREPARED):
            agent.start(payload)
        await self.settle()

    # -- the server's starts and crashes

    @contextmanager
    def inline(self) -> Iterator[None]:
        """File steps of this life on our own thread."""
        stand_in = SimpleNamespace(to_thread=inline_threads(self.crash_point))
        with (
            mock.patch.object(folder, "asyncio", stand_in),
            mock.patch.object(contents, "asyncio", stand_in),
            mock.patch.object(scratch, "asyncio", stand_in),
            mock.patch.object(deferral, "children_of", self.children_of),
            mock.patch.object(deferral, "child_names", return_value=CHILDREN),
        ):
            yield

    async def start(self) -> None:
        """A life of the server begins."""
        self.steady = PersistentClock(self.folder, self.clock, "boot")
        self.steady.save()
        self.database = InlineDatabase(
            self.folder / "sim.sqlite", (*MIGRATIONS, COUNT_ENDS), self.crash_point
        )
        self.settings = settings(agent_lost_after=self.lost_after_s)
        self.wakeups = wakeups = JobWakeups()
        self.jobs = Jobs(self.database, wakeups.changed, wakeups.noted)
        self.registry = Registry(self.agents, self.steady)
        self.started = await self.database.write(
            new_start, self.steady.now(), f"{next(self.names):x}"
        )

        def new_name() -> str:
            return f"{next(self.names):032x}"

        self.scratch = scratch.Scratch(self.folder / "staging", new_name)
        self.storage = folder.Storage(self.folder, self.scratch, new_name)
        core = Core(
            database=self.database,
            storage=self.storage,
            scratch=self.scratch,
            registry=self.registry,
            services=self.services,
            clock=self.steady,
            settings=self.settings,
            wakeups=wakeups,
        )
        self.contents = core.contents
        self.accept = Accept(core)
        self.get = Get(core, self.report_delay_s)
        self.statistics = Statistics(core)
        self.waiting = Waiting(core, self.statistics, self.get.results)
        self.poll = Poll(core, self.get)
        self.deliver = Deliver(core, self.get)
        inputs: Any = self.deliver._inputs
        inputs.of = lambda _: nullcontext()  # results are no archives here
        self.send = Sender(core, self.deliver, self.get)
        self.cancel = Cancel(core, self.get)
        self.schedules = Schedules(core, self.accept)
        await self.schedules.load()
        self.batches = Batches(core)
        self.dependencies = Dependencies(core)
        self.delete = Delete(core, self.cancel)
        self.retry = RetryByHand(core)
        self.clean = Clean(core, self.delete)
        self.alive = True
        self.following = asyncio.create_task(self._follow())
        await recover(self.database, self.scratch)
        for agent in self.agents:
            if agent.up:
                await self.reconnect(agent)
        await self.deliver.resume_interrupted()
        await self.settle()

    async def _follow(self) -> None:
        """Do what follows from reports, as the server's loop does; claims wait for their sweep."""
        inbox = self.get.inbox
        while True:
            if (until_s := inbox.until_next_s()) < NEVER_S:
                await wait_for(self.wakeups.sender, until_s, self.clock)
            else:
                await self.wakeups.sender.wait()
            self.wakeups.sender.clear()
            await self.send.follow()

    async def reconnect(self, agent: SimAgent) -> None:
        try:
            await agent.connect()
        except (Unreachable, RefusedByAgent):
            agent.drop()

    async def die(self) -> None:
        """Everything that was under way is gone at once."""
        self.alive = False
        self.crash_point.at = 0
        if hasattr(self, "following"):
            self.following.cancel()
            with suppress(SimulatedCrash, asyncio.CancelledError):
                await self.following
        for name in ("deliver", "cancel", "poll", "get"):
            if hasattr(self, name):  # it may have died in its first start
                await getattr(self, name).stop()
        self.database.end()
        self.crash_point.at, self.crash_point.steps = None, 0

    async def settle(self) -> None:
        """Let everything that is under way get as far as it can without time passing."""
        await self.clock.settle()
        if self.crash_point.crashed:
            raise SimulatedCrash("in a task")

    # -- what users do

    async def upload(
        self,
        user: str,
        service: str,
        key: str | None = None,
        *,
        gather: bool = False,
        fan_out: bool = False,
        same: str = "",
        **optional: str,
    ) -> int:
        """Upload a bundle with a gather.sh, with a run.sh that leaves children, or with the content
        of all uploads of the ``same``; and optional fields of the form.
        """
        number = next(self.names)
        token = same or (f"token {number}" if key is None else f"token of {key}")
        token = f"{FANS_OUT} {token}" if fan_out else token
        fields = {"user_id": user, "service": service, **optional}
        if key is not None:
            fields["idempotency_key"] = key
        with self.scratch.file() as content:
            content.path.write_text(token)
            request = upload_request(fields, self.services, LOCAL)
            summary = BundleSummary(len(token), token, 1, 0, has_gather=gather)
            job, _ = await self.accept(LOCAL, request, content, summary)
        self.acknowledged[job.id] = token
        return job.id

    async def schedule(
        self, user: str, service: str, cron: str, *, gather: bool = False, **optional: str
    ) -> int:
        number = next(self.names)
        token = f"token {number}"
        fields = {"user_id": user, "service": service, "cron": cron, "name": f"n{number}"}
        with self.scratch.file() as content:
            content.path.write_text(token)
            summary = BundleSummary(len(token), token, 1, len(token), has_gather=gather)
            schedule = await self.schedules.create(LOCAL, fields | optional, content, summary)
        return schedule.id

    async def jobs_of(self, schedule: int) -> list[Job]:
        """Those that the schedule made, the first one first."""
        jobs, _ = await self.jobs.page(Filter(schedule_id=schedule), None, 500)
        return jobs[::-1]

    async def children_of(
        self, contents: Contents, result: Result, to: ScratchFile, *, most: int, max_bytes: int
    ) -> tuple[BundleSummary, int]:
        """The bundle of the children that a job left."""
        token = f"children in {(await self.stored(FileKind.RESULT, result)).decode()}"
        to.path.write_text(token)
        return BundleSummary(len(token), token, 2, 0), len(CHILDREN)

    async def know_children(self) -> None:
        """They are jobs as others are."""
        for row in await self.database.rows(
            "SELECT id, bundle_digest FROM jobs WHERE parent_id IS NOT NULL"
        ):
            self.acknowledged.setdefault(row["id"], row["bundle_digest"])

    async def stored(self, kind: FileKind, stored: Bundle | Result) -> bytes:
        """What the server has of it."""
        async with self.contents.open(kind, stored) as pieces:
            return b"".join([piece async for piece in pieces])

    async def is_stored(self, bundle: Bundle) -> bool:
        """Whether its bytes are there."""
        return await self.database.read(bundles.content, bundle.file) is not None

    async def remove_orphans(self) -> int:
        """As the Cleaner does in an hour."""
        removed = 0
        for kind in FileKind:
            names = await self.storage.list(kind)
            removed += await self.storage.delete_orphans(kind, names, self.jobs.files_in_use)
        return removed

    # -- what must hold

    def check_usage(self) -> None:
        """Each end is counted once, on its day."""
        ends = self.database._run("SELECT * FROM ends", None)
        counted = Counter[tuple[object, ...]]()
        for row in self.database._run("SELECT * FROM daily_usage", None):
            for state in ("completed", "failed", "cancelled"):
                counted[row["user_id"], row["day"], row["service"], state] = row[state]
        assert +counted == Counter(tuple(row) for row in ends)

    async def check(self) -> None:
        assert not self.violations, self.violations
        await self.know_children()
        await check_batches(self.database)
        self.check_usage()
        held: dict[tuple[str, str], int] = {}
        at_agent: dict[str, int] = {}
        for job_id, token in list(self.acknowledged.items()):
            try:
                job = await self.jobs.get(job_id)
            except NoSuchJob:
                assert job_id in self.deleted, f"job {job_id} was lost"
                del self.acknowledged[job_id]
                continue
            history = await self.jobs.events(job_id)
            before = None
            other = [one for one in history if not one.is_move]
            asked = sum(one.event == "job.cancel_requested" for one in other)
            assert asked <= job.run, f"{job_id} was cancelled twice in a run: {history}"
            said = Counter(
                (one.attempt, one.message) for one in other if one.event != "job.cancel_requested"
            )
            if self.talkative:
                assert not said or max(said.values()) == 1, f"{job_id} said twice: {said}"
            if self.talkative and job.state is JobState.COMPLETED and job.attempt:
                assert {text for at, text in said if at == job.attempt} >= set(SAID), said
                assert job.output == {"score": "1"}, job
            for event in history:
                if not event.is_move:
                    continue
                assert event.before == before, f"history of {job_id} has a gap: {history}"
                assert before is None or event.state in states.NEXT[before], history
                before = event.state
            assert before is job.state, f"job {job_id} is {job.state}, its history says {before}"
            if job.result is not None:
                stored = await self.stored(FileKind.RESULT, job.result)
                expected = f"result of {job.key} {token}".encode()
                assert stored == expected, f"{stored!r} is not {expected!r}"
            if job.state in states.HOLDS_SLOT and not job.deferred:
                ended = any(one.key == job.key and not one.alive for _, one in self.payloads())
                name = job.agent or ""
                at_agent[name] = at_agent.get(name, 0) + (not ended)
                held[job.service, job.user_id] = held.get((job.service, job.user_id), 0) + 1
            if job.state is not JobState.CLEANED:
                assert job.bundle is not None
                assert await self.stored(FileKind.BUNDLE, job.bundle) == token.encode()
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
        for agent in self.agents:
            agent.faults.clear()
            if not agent.well:
                agent.toggle_health()
        await self.send.run_once()
        await self.clock.advance(60.0)
        for agent in self.agents:
            agent.take_late()
            if not agent.up:
                await agent.connect()
        jobs: list[Job] = []
        held: list[Payload] = []
        stages = (self.send, self.poll, self.cancel, self.get.progress)
        for _ in range(60):
            for stage in (*stages, self.batches, self.dependencies):
                await stage.run_once()
            await self.clock.advance(61.0)
            for agent, payload in self.payloads(PayloadState.RUNNING):
                agent.end(payload, PayloadState.COMPLETED)
            for agent, payload in self.payloads(PayloadState.PREPARED):
                agent.start(payload)
            await self.clock.advance(61.0)
            await self.know_children()
            await self.check()
            jobs = [await self.jobs.get(job_id) for job_id in self.acknowledged]
            held = [one for _, one in self.payloads() if one.status is not PayloadState.CLEANED]
            if all(job.ended for job in jobs) and not held:
                break
        else:
            left = [(job.key, job.state, job.agent, job.message) for job in jobs if not job.ended]
            raise AssertionError(f"not drained: {left} {held}")

    def leftovers(self) -> set[str]:
        """Stored and staged contents that no job refers to."""
        stored = {row["name"] for row in self.database._run("SELECT name FROM contents", None)}
        stored |= {
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


async def each_crash(
    folder: Path,
    world_of: Callable[[Path, CrashPoint], World],
    story: Callable[[World], Awaitable[None]],
    check: Callable[[World, int | None], Awaitable[None]],
    *,
    first: int = 1,
    every: int = 1,
) -> int:
    """Crash at each step of the story, start the server again, and check what it left, with the
    step at which it crashed; None: it did not. Returns about how many steps the story has.

    Of ``every`` so many steps it is one, from ``first`` on: the runs that begin at 1, 2 … ``every``
    are all of them.
    """
    at, crashed = first - every, True
    while crashed:
        at += every
        place = folder / str(at)
        place.mkdir()
        world = world_of(place, CrashPoint(at))
        with world.inline():
            try:
                await story(world)
                await world.settle()
                crashed = False
            except SimulatedCrash:
                pass
            if hasattr(world, "database"):
                await world.die()
        with world.inline():
            await world.start()
            await check(world, at if crashed else None)
            world.database.end()
    return at


def end_in_each_way(running: Iterable[tuple[SimAgent, Payload]]) -> None:
    """End what runs: one completes, one fails, and what is left is interrupted."""
    for number, (agent, payload) in enumerate(running):
        if number == 0:
            agent.end(payload, PayloadState.COMPLETED)
        elif number == 1:
            agent.end(payload, PayloadState.FAILED, Reason.EXIT_CODE)
        else:
            agent.restart()


@contextmanager
def simulated(folder: Path, services: Mapping[str, Service], **how: Any) -> Iterator[World]:
    world = World(folder, dict(services), **how)
    with world.inline():
        yield world
    if hasattr(world, "database"):
        world.database.end()
