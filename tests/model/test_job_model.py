"""A model of server, two agents and everything between them that can go wrong."""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from server.domain.errors import AlreadyEnded, NoSuchJob, RetryRefused
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, Reason
from tests.kit.inline_database import CrashPoint, SimulatedCrash
from tests.kit.sim_agent import FAULTS, NEVER_S
from tests.kit.simulation import World

SERVICES = {
    "fast": Service("fast", runs_per_user=1, max_runs=2, infra_retries=2, expires_after_s=500.0),
    "slow": Service(
        "slow",
        runs_per_user=2,
        max_runs=2,
        retry=RetryPolicy(1, retry_on=frozenset({"timeout"})),
    ),
}
AGENT = st.integers(0, 1)
NUMBER = st.integers(0, 20)
FAULT = st.sampled_from(FAULTS)
KILL = st.one_of(st.none(), st.none(), st.integers(1, 12))
"""After how many steps the server is killed."""
STEPS = (1, *(pytest.param(first, marks=pytest.mark.slow) for first in (2, 3, 4, 5)))
"""A long story crashes at every fifth step with the tests of a change, and at each with all."""
ENDS = [
    (PayloadState.COMPLETED, None),
    (PayloadState.FAILED, Reason.EXIT_CODE),
    (PayloadState.FAILED, Reason.TIMEOUT),
]


class JobModel(RuleBasedStateMachine):
    """Rules are what happens; invariants what is promised whatever happens."""

    lost_after_s = NEVER_S
    services: ClassVar = SERVICES

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="job-model"))
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_ignore_crashes)
        self.world = World(
            self.folder, dict(self.services), lost_after_s=self.lost_after_s, talkative=True
        )
        self.inline = self.world.inline()
        self.inline.__enter__()
        self.run(self.world.start())

    def stages(self) -> list[Any]:
        return [
            self.world.send,
            self.world.poll,
            self.world.cancel,
            self.world.clean,
            self.world.get.progress,
        ]

    def run(self, what) -> None:
        """Run it and then the sweeps it wakes, or until the simulated kill -9."""

        async def whole() -> None:
            await what
            await self.world.settle()
            for stage in self.stages():
                await stage.run_once()
            await self.world.settle()

        try:
            self.loop.run_until_complete(whole())
        except SimulatedCrash:
            self.restart_server()

    def happens(self, what: Callable[[], None]) -> None:
        """Something at an agent, and what the server makes of it."""

        async def now() -> None:
            what()

        self.run(now())

    def restart_server(self) -> None:
        self.loop.run_until_complete(self.world.die())
        self.inline.__exit__(None, None, None)
        self.world.crash_point = CrashPoint()
        self.inline = self.world.inline()
        self.inline.__enter__()
        self.loop.run_until_complete(self.world.start())

    def expect(self, fault: str, kill_after: int | None) -> None:
        """What goes wrong next: with the next call of each agent, and with the server itself."""
        for agent in self.world.agents:
            agent.faults = [fault]
        if kill_after is not None:
            self.world.crash_point.at = self.world.crash_point.steps + kill_after

    # -- users

    @rule(
        users=st.lists(st.sampled_from(["ann", "bob"]), min_size=1, max_size=3),
        service=st.sampled_from(["fast", "slow"]),
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        fault=FAULT,
        kill_after=KILL,
    )
    def upload(
        self,
        users: list[str],
        service: str,
        key: str | None,
        fault: str,
        kill_after: int | None,
    ) -> None:
        self.expect(fault, kill_after)
        for user in users:
            named = None if key is None else f"{key}.{service}"
            self.run(self.world.upload(user, service, named))

    @rule(number=NUMBER, patience=st.sampled_from([0.0, 5.0]), fault=FAULT, kill_after=KILL)
    def cancel(self, number: int, patience: float, fault: str, kill_after: int | None) -> None:
        ids = sorted(self.world.acknowledged)
        if not ids:
            return
        job_id = ids[number % len(ids)]

        async def cancel() -> None:
            task = asyncio.ensure_future(self.world.cancel(LOCAL, job_id, patience))
            await self.world.clock.advance(6.0)
            try:
                job = await task
            except (AlreadyEnded, NoSuchJob):
                return
            if job.state is JobState.CANCELLED:
                self.world.cancelled.add(job_id)

        self.expect(fault, kill_after)
        self.run(cancel())

    # -- agents and the line

    @rule(which=AGENT)
    def start_jobs(self, which: int) -> None:
        agent = self.world.agents[which]
        for payload in list(agent.payloads.values()):
            if payload.status is PayloadState.PREPARED:
                self.happens(functools.partial(agent.start, payload))

    @rule(which=AGENT, how=st.sampled_from(ENDS), fault=FAULT, kill_after=KILL)
    def end_jobs(
        self,
        which: int,
        how: tuple[PayloadState, Reason | None],
        fault: str,
        kill_after: int | None,
    ) -> None:
        self.expect(fault, kill_after)
        agent = self.world.agents[which]
        for payload in list(agent.payloads.values()):
            if payload.status is PayloadState.RUNNING:
                self.happens(functools.partial(agent.end, payload, *how))

    @rule(
        which=AGENT,
        what=st.sampled_from(["restart", "drop", "take_late", "toggle_health", "forge"]),
    )
    def something_happens_to(self, which: int, what: str) -> None:
        self.happens(getattr(self.world.agents[which], what))

    # -- time

    @rule(
        seconds=st.sampled_from([0.3, 6.0, 70.0, 4_000.0]),
        mended=st.booleans(),
        fault=FAULT,
        kill_after=KILL,
    )
    def time_passes(self, seconds: float, mended: bool, fault: str, kill_after: int | None) -> None:
        self.expect(fault, kill_after)

        async def passes() -> None:
            await self.world.clock.advance(seconds)
            for agent in self.world.agents:
                if mended and not agent.up:
                    await self.world.reconnect(agent)

        self.run(passes())

    @rule(hours=st.sampled_from([-20_000 * 24, -72, -2, 1, 72, 20_000 * 24]))
    def the_clock_jumps(self, hours: int) -> None:
        self.world.clock.jump(hours * 3600.0)

    # -- promises

    @invariant()
    def every_promise_holds(self) -> None:
        if hasattr(self, "world"):
            self.loop.run_until_complete(self.world.check())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.crash_point.at = None

            async def to_the_end() -> None:
                await self.world.drain()
                await self.world.check()
                await self.world.remove_orphans()

            self.loop.run_until_complete(to_the_end())
            assert not self.world.leftovers()
        finally:
            self.loop.run_until_complete(self.world.die())
            self.inline.__exit__(None, None, None)
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def _ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    if not isinstance(context.get("exception"), SimulatedCrash):
        loop.default_exception_handler(context)


class LosingJobModel(JobModel):
    """The same where unreachable agents count as lost."""

    lost_after_s = 3_600.0


HOW = settings(
    max_examples=12,  # those below with LONG do more
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestJobModel = JobModel.TestCase
TestJobModel.settings = HOW
TestLosingJobModel = LosingJobModel.TestCase
TestLosingJobModel.settings = HOW


class LongJobModel(JobModel):
    """More of the same."""


class LongLosingJobModel(LosingJobModel):
    """More of the same."""


LONG = settings(HOW, max_examples=200)
TestLongJobModel = pytest.mark.slow(LongJobModel.TestCase)
TestLongJobModel.settings = LONG
TestLongLosingJobModel = pytest.mark.slow(LongLosingJobModel.TestCase)
TestLongLosingJobModel.settings = LONG


KINDS: Final[list[dict[str, Any]]] = [
    {"array": "0-2", "max_parallel": "1"},
    {"array": "0-1", "batch_policy": "fail_fast", "gather": True},
    {"fan_out": True, "gather": True},
]


class BatchModel(JobModel):
    """Counters are compared with the children after every step, see ``World.check``."""

    def stages(self) -> list[Any]:
        return [*super().stages(), self.world.batches]

    @rule(
        service=st.sampled_from(list(SERVICES)),
        kind=st.sampled_from(KINDS),
        fault=FAULT,
        kill_after=KILL,
    )
    def upload_batch(
        self, service: str, kind: dict[str, Any], fault: str, kill_after: int | None
    ) -> None:
        self.expect(fault, kill_after)
        self.run(self.world.upload("ann", service, **kind))

    @rule(number=NUMBER, fault=FAULT, kill_after=KILL)
    def retry(self, number: int, fault: str, kill_after: int | None) -> None:
        ids = sorted(self.world.acknowledged)
        if not ids:
            return
        job_id = ids[number % len(ids)]

        async def retry() -> None:
            try:
                await self.world.retry(LOCAL, job_id)
            except RetryRefused:
                return
            children = await self.world.database.rows(
                "SELECT id FROM jobs WHERE parent_id = :id", {"id": job_id}
            )
            self.world.cancelled -= {job_id, *(row["id"] for row in children)}

        self.expect(fault, kill_after)
        self.run(retry())


def test_batches_keep_every_promise_whatever_goes_wrong() -> None:
    how = settings(HOW, max_examples=10, stateful_step_count=20)
    run_state_machine_as_test(BatchModel, settings=how)
