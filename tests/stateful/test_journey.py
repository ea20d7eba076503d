"""A model of server, two agents and everything between them that can go wrong."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from server.domain.errors import AlreadyEnded
from server.domain.quotas import Service
from shared.wire import JobState, PayloadState, Reason
from tests.support.inline import Fuse, SimulatedCrash
from tests.support.simworld import FAULTS, World

SERVICES = {
    "fast": Service("fast", runs_per_user=1, max_runs=2, infra_retries=2, expires_after_s=500.0),
    "slow": Service(
        "slow", runs_per_user=2, max_runs=2, retries=1, retry_on=frozenset({"timeout"})
    ),
}
AGENT = st.integers(0, 1)
NUMBER = st.integers(0, 20)


class Journey(RuleBasedStateMachine):
    """Rules are what happens; invariants what is promised whatever happens."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="journey"))
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_ignore_crashes)
        self.world = World(self.folder, SERVICES)
        self.inline = self.world.inline()
        self.inline.__enter__()
        self.run(self.world.start())

    def run(self, what) -> None:
        """Run to the end, or until the simulated kill -9."""

        async def whole() -> None:
            await what
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
        self.world.fuse = Fuse()
        self.inline = self.world.inline()
        self.inline.__enter__()
        self.loop.run_until_complete(self.world.start())

    # -- users

    @rule(user=st.sampled_from(["ann", "bob", "cy"]), service=st.sampled_from(list(SERVICES)))
    def upload(self, user: str, service: str) -> None:
        self.run(self.world.upload(user, service))

    @rule(key=st.sampled_from(["k1", "k2"]))
    def upload_again(self, key: str) -> None:
        self.run(self.world.upload("ann", "fast", key))

    @rule(number=NUMBER, patience=st.sampled_from([0.0, 5.0]))
    def cancel(self, number: int, patience: float) -> None:
        ids = sorted(self.world.acknowledged)
        if not ids:
            return
        job_id = ids[number % len(ids)]

        async def cancel() -> None:
            task = asyncio.ensure_future(self.world.cancel(job_id, patience))
            await self.world.clock.advance(6.0)
            try:
                job = await task
            except AlreadyEnded:
                return
            if job.state is JobState.CANCELLED:
                self.world.cancelled.add(job_id)

        self.run(cancel())

    # -- the server

    @rule()
    def sweep(self) -> None:
        self.run(self.world.send.run_once())

    @rule()
    def other_sweeps(self) -> None:
        async def sweeps() -> None:
            await self.world.poll.run_once()
            await self.world.cancel.run_once()
            await self.world.clean.run_once()

        self.run(sweeps())

    @rule(steps=st.integers(1, 12))
    def will_be_killed(self, steps: int) -> None:
        self.world.fuse.at = self.world.fuse.steps + steps

    @rule()
    def server_restarts(self) -> None:
        self.restart_server()

    # -- agents and the line

    @rule(which=AGENT, number=NUMBER)
    def start_job(self, which: int, number: int) -> None:
        agent = self.world.agents[which]
        ready = [p for p in agent.payloads.values() if p.status is PayloadState.PREPARED]
        if ready:
            self.happens(lambda: agent.start(ready[number % len(ready)]))

    @rule(
        which=AGENT,
        number=NUMBER,
        how=st.sampled_from(
            [
                (PayloadState.COMPLETED, None),
                (PayloadState.FAILED, Reason.EXIT_CODE),
                (PayloadState.FAILED, Reason.TIMEOUT),
            ]
        ),
    )
    def end_job(self, which: int, number: int, how: tuple[PayloadState, Reason | None]) -> None:
        agent = self.world.agents[which]
        running = [p for p in agent.payloads.values() if p.status is PayloadState.RUNNING]
        if running:
            self.happens(lambda: agent.end(running[number % len(running)], *how))

    @rule(which=AGENT)
    def agent_restarts(self, which: int) -> None:
        self.happens(self.world.agents[which].restart)

    @rule(which=AGENT, fault=st.sampled_from(FAULTS))
    def next_call_fails(self, which: int, fault: str) -> None:
        self.world.agents[which].faults.append(fault)

    @rule(which=AGENT)
    def late_submits_arrive(self, which: int) -> None:
        self.happens(self.world.agents[which].take_late)

    @rule(which=AGENT)
    def line_is_cut(self, which: int) -> None:
        self.world.agents[which].drop()

    @precondition(lambda self: any(not agent.up for agent in self.world.agents))
    @rule()
    def lines_are_back(self) -> None:
        async def back() -> None:
            for agent in self.world.agents:
                if not agent.up:
                    await self.world.reconnect(agent)

        self.run(back())

    # -- time

    @rule(seconds=st.sampled_from([0.3, 2.0, 20.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.world.clock.advance(seconds))

    @rule(hours=st.sampled_from([-2, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        if any(not agent.up for agent in self.world.agents):
            return  # a jump may make a silent agent lost: that is a promise of its own
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
            self.world.fuse.at = None

            async def to_the_end() -> None:
                await self.world.drain()
                await self.world.check()
                await self.world.clean.remove_orphans()

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


TestJourney = Journey.TestCase
TestJourney.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
