"""An attempt is stored as Running while its sandbox comes up, and starts only then."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxBroken
from shared.clock import yield_to_loop
from shared.wire import PayloadState, Reason
from tests.kit.agent import Rig
from tests.kit.clock import SimClock


class HeldRig(Rig):
    """An agent whose sandboxes come up when a test says so."""

    def hold(self, problem: Exception | None = None) -> None:
        """Hold each start up until :meth:`go_on`; it fails then, if there is a problem."""
        self.up = asyncio.Event()

        async def held() -> None:
            await self.up.wait()
            if problem is not None:
                raise problem

        self.sandbox.hook = lambda step: held() if step == "up" else None

    async def until(self, payload_id: int, state: PayloadState) -> None:
        with self.payloads.wakeups.of(payload_id) as changed:
            while (await self.payloads.get(payload_id)).state is not state:
                changed.clear()
                await changed.wait()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HeldRig]:
    made = HeldRig(tmp_path, SimClock(), slots=1)
    await made.open()
    made.hold()
    made.sandbox.script = lambda process: process.finish()
    yield made
    made.up.set()
    await made.close()
    assert made.sandbox.violations == []


async def test_it_is_running_while_its_sandbox_comes_up_and_starts_when_that_is_up(rig):
    payload = await rig.submit()
    await rig.until(payload.id, PayloadState.RUNNING)
    assert (rig.runner.running, rig.sandbox.starts) == (1, {})
    rig.up.set()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED
    assert rig.sandbox.starts == {"1.1": 1}


async def test_its_gate_stays_closed_until_it_is_stored_as_running(rig):
    start, stored, asked = rig.payloads.start, asyncio.Event(), asyncio.Event()

    async def slow(*args):
        asked.set()
        await stored.wait()
        return await start(*args)

    rig.payloads.start = slow
    rig.up.set()
    payload = await rig.submit()
    await asked.wait()
    await rig.clock.settle()
    assert rig.sandbox.starts == {}
    stored.set()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED


async def test_without_a_free_slot_it_stays_prepared_while_its_sandbox_comes_up(rig):
    first = await rig.submit("1.1")
    await rig.until(first.id, PayloadState.RUNNING)
    second = await rig.submit("2.1")
    await rig.clock.settle()
    assert (await rig.payloads.get(second.id)).state is PayloadState.PREPARED
    rig.up.set()
    assert (await rig.ended(second.id)).state is PayloadState.COMPLETED


async def test_what_is_killed_while_its_sandbox_comes_up_never_starts(rig):
    payload = await rig.submit()
    await rig.until(payload.id, PayloadState.RUNNING)
    killing = asyncio.create_task(rig.runner.kill(payload.id))
    await yield_to_loop()
    assert not killing.done()
    rig.up.set()
    assert (await killing).state is PayloadState.KILLED
    assert rig.sandbox.starts == {}


async def test_what_is_shut_down_while_its_sandbox_comes_up_ends_as_interrupted(rig):
    payload = await rig.submit()
    await rig.until(payload.id, PayloadState.RUNNING)
    stopping = asyncio.create_task(rig.runner.stop(60.0))
    await yield_to_loop()
    rig.up.set()
    assert await stopping
    outcome = (await rig.payloads.get(payload.id)).outcome
    assert (outcome.reason, outcome.interrupted) == (Reason.SHUTDOWN, True)
    assert rig.sandbox.starts == {}


@pytest.mark.parametrize("problem", [SandboxBroken("no"), OSError(errno.EMFILE, "too many")])
async def test_a_start_that_fails_after_it_was_stored_as_running_ends_it(rig, problem):
    rig.hold(problem)
    payload = await rig.submit()
    await rig.until(payload.id, PayloadState.RUNNING)
    rig.up.set()
    outcome = (await rig.ended(payload.id)).outcome
    assert (outcome.state, outcome.reason) == (PayloadState.FAILED, Reason.SANDBOX_ERROR)
    assert outcome.interrupted
    rig.hold()
    rig.up.set()
    assert (await rig.ended((await rig.submit("2.1")).id)).state is PayloadState.COMPLETED
