"""A model of server, two agents and everything between them that can go wrong."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

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
from server.domain.retry import RetryPolicy
from server.domain.service import Service
from server.store.pages import Filter
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, Reason
from tests.kit.agent_model import Payload
from tests.model.inline_database import CrashPoint, SimulatedCrash
from tests.model.sim_agent import FAULTS, NEVER_S, SimAgent
from tests.model.simulation import World

SERVICES = {
    "fast": Service("fast", runs_per_user=1, max_runs=2, infra_retries=2, expires_after_s=500.0),
    "slow": Service(
        "slow", runs_per_user=2, max_runs=2, retry=RetryPolicy(1, retry_on=frozenset({"timeout"}))
    ),
}
AGENT = st.integers(0, 1)
NUMBER = st.integers(0, 20)
SERVICE = st.sampled_from(list(SERVICES))
Trouble: TypeAlias = tuple[str, int | None]
TROUBLE = st.tuples(st.sampled_from(FAULTS), st.one_of(st.none(), st.none(), st.integers(1, 12)))
"""A fault of the line, and after how many steps the server is killed."""
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
    more_stages: ClassVar[tuple[str, ...]] = ()

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

    def some_job(self, number: int) -> int:
        """One of those that there are; 0 without any."""
        ids = sorted(self.world.acknowledged)
        return ids[number % len(ids)] if ids else 0

    def expect(self, trouble: Trouble) -> None:
        """What goes wrong next: with the next call of each agent, and with the server itself."""
        fault, kill_after = trouble
        for agent in self.world.agents:
            agent.faults = [fault]
        if kill_after is not None:
            self.world.crash_point.at = self.world.crash_point.steps + kill_after

    def run(self, what: Awaitable[object]) -> None:
        """Run it and then the sweeps it wakes, or until the simulated kill -9."""
        world = self.world

        async def whole() -> None:
            await what
            await world.settle()
            more = [getattr(world, name) for name in self.more_stages]
            for stage in (world.send, world.poll, world.cancel, world.clean, world.get.progress):
                await stage.run_once()
            for stage in more:
                await stage.run_once()
            await world.settle()

        try:
            self.loop.run_until_complete(whole())
        except SimulatedCrash:
            self.restart_server()

    def happens(self, what: Callable[..., None], *given: Any) -> None:
        """Something at an agent, and what the server makes of it."""

        async def now() -> None:
            what(*given)

        self.run(now())

    def restart_server(self) -> None:
        self.loop.run_until_complete(self.world.die())
        self.inline.__exit__(None, None, None)
        self.world.crash_point = CrashPoint()
        self.inline = self.world.inline()
        self.inline.__enter__()
        self.loop.run_until_complete(self.world.start())

    # -- users

    @rule(
        users=st.lists(st.sampled_from(["ann", "bob"]), min_size=1, max_size=3),
        service=SERVICE,
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        trouble=TROUBLE,
    )
    def upload(self, users: list[str], service: str, key: str | None, trouble: Trouble) -> None:
        self.expect(trouble)
        for user in users:
            named = None if key is None else f"{key}.{service}"
            self.run(self.world.upload(user, service, named))

    @rule(number=NUMBER, patience=st.sampled_from([0.0, 5.0]), trouble=TROUBLE)
    def cancel(self, number: int, patience: float, trouble: Trouble) -> None:
        job_id = self.some_job(number)

        async def cancel() -> None:
            task = asyncio.ensure_future(self.world.cancel(LOCAL, job_id, patience))
            await self.world.clock.advance(6.0)
            with suppress(AlreadyEnded, NoSuchJob):
                if (await task).state is JobState.CANCELLED:
                    self.world.cancelled.add(job_id)

        if job_id:
            self.expect(trouble)
            self.run(cancel())

    # -- agents and the line

    def at(self, which: int, state: PayloadState) -> list[tuple[SimAgent, Payload]]:
        agent = self.world.agents[which]
        return [one for one in self.world.payloads(state) if one[0] is agent]

    @rule(which=AGENT)
    def start_jobs(self, which: int) -> None:
        for agent, payload in self.at(which, PayloadState.PREPARED):
            self.happens(agent.start, payload)

    @rule(which=AGENT, how=st.sampled_from(ENDS), trouble=TROUBLE)
    def end_jobs(self, which: int, how: tuple[Any, ...], trouble: Trouble) -> None:
        self.expect(trouble)
        for agent, payload in self.at(which, PayloadState.RUNNING):
            self.happens(agent.end, payload, *how)

    @rule(
        which=AGENT,
        what=st.sampled_from(["restart", "drop", "take_late", "toggle_health", "forge"]),
    )
    def something_happens_to(self, which: int, what: str) -> None:
        self.happens(getattr(self.world.agents[which], what))

    # -- time

    @rule(seconds=st.sampled_from([0.3, 6.0, 70.0, 4_000.0]), mended=st.booleans(), trouble=TROUBLE)
    def time_passes(self, seconds: float, mended: bool, trouble: Trouble) -> None:
        self.expect(trouble)

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

    async def promises(self) -> None:
        """At every moment."""
        await self.world.check()

    async def ended(self) -> None:
        """Once all have ended."""

    @invariant()
    def every_promise_holds(self) -> None:
        if hasattr(self, "world"):
            self.loop.run_until_complete(self.promises())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return

        async def to_the_end() -> None:
            await self.world.drain()
            await self.promises()
            await self.ended()
            await self.world.remove_orphans()

        try:
            self.world.crash_point.at = None
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


KINDS: Final[list[dict[str, Any]]] = [
    {"array": "0-2", "max_parallel": "1"},
    {"array": "0-1", "batch_policy": "fail_fast", "gather": True},
    {"fan_out": True, "gather": True},
]


class RetriedModel(JobModel):
    @rule(number=NUMBER, trouble=TROUBLE)
    def retry(self, number: int, trouble: Trouble) -> None:
        if job_id := self.some_job(number):
            self.expect(trouble)
            self.run(retried(self.world, job_id))


async def retried(world: World, job_id: int) -> None:
    before = await world.jobs.get(job_id)
    if before.state is JobState.CANCELLED:
        world.cancelled.discard(job_id)  # also where the answer is not seen
    with suppress(RetryRefused):
        after = await world.retry(LOCAL, job_id)
        assert after.run == before.run + 1
        assert (after.retries_used, after.later_used, after.infra_used) == (0, 0, 0)
        children = await world.jobs.page(Filter(parent_id=job_id), None, 99)
        world.cancelled -= {child.id for child in children[0]}


class BatchModel(RetriedModel):
    """Counters are compared with the children after every step, see ``World.check``."""

    more_stages = ("batches",)

    @rule(service=SERVICE, kind=st.sampled_from(KINDS), trouble=TROUBLE)
    def upload_batch(self, service: str, kind: dict[str, Any], trouble: Trouble) -> None:
        self.expect(trouble)
        self.run(self.world.upload("ann", service, **kind))


HOW = settings(
    max_examples=12,  # LONG does more
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
LONG = settings(HOW, max_examples=200)


@pytest.mark.parametrize(
    ("model", "how"),
    [
        pytest.param(model, how, marks=[pytest.mark.slow] if how is LONG else [])
        for how in (HOW, LONG)
        for model in (JobModel, LosingJobModel)
    ],
)
def test_jobs_keep_every_promise_whatever_goes_wrong(model: type[JobModel], how: settings) -> None:
    run_state_machine_as_test(model, settings=how)


def test_batches_keep_every_promise_whatever_goes_wrong() -> None:
    how = settings(HOW, max_examples=10, stateful_step_count=20)
    run_state_machine_as_test(BatchModel, settings=how)
