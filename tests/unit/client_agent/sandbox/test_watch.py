"""How self-tests and failed starts change whether the sandbox can be used."""

from __future__ import annotations

import asyncio
import errno
from typing import cast

import pytest

from client_agent.sandbox.base import Sandbox, SandboxBroken, SelfTestReport
from client_agent.sandbox.watch import RETEST_S, TEST_WAIT_S, SandboxWatch
from tests.kit.clock import SimClock

REPORT = SelfTestReport("fake", "1", {})


class FakeTested:
    """A sandbox whose self-test has a given result. ``hold`` delays its end."""

    def __init__(self) -> None:
        self.tests = 0
        self.problem: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def self_test(self) -> SelfTestReport:
        self.tests += 1
        await self.hold.wait()
        if self.problem is not None:
            raise self.problem
        return REPORT


@pytest.fixture
def sandbox() -> FakeTested:
    return FakeTested()


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def watch(sandbox: FakeTested, clock: SimClock) -> SandboxWatch:
    return SandboxWatch(cast("Sandbox", sandbox), clock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EACCES, errno.ENOENT])
async def test_a_self_test_that_cannot_be_run_keeps_the_agent_from_starting(
    number: int, sandbox: FakeTested, watch: SandboxWatch
) -> None:
    sandbox.problem = OSError(number, "no")
    with pytest.raises(SandboxBroken, match="the sandbox could not be tested: no"):
        await watch.self_test()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
async def test_a_host_that_is_short_of_something_starts_and_takes_no_work(
    number: int, sandbox: FakeTested, watch: SandboxWatch, clock: SimClock
) -> None:
    sandbox.problem = OSError(number, "short")
    await watch.self_test()
    assert await watch.problem() == "the sandbox could not be tested: short"
    sandbox.problem = None
    assert (await watch.problem(), sandbox.tests) != (None, 1), "not before it is tested again"
    await clock.advance(RETEST_S)
    assert await watch.problem() is None


async def test_while_it_is_tested_again_it_is_still_broken(
    sandbox: FakeTested, watch: SandboxWatch, clock: SimClock
) -> None:
    """However many ask, it is tested once, and nobody waits long."""
    watch.mark_broken(SandboxBroken("gone"))
    sandbox.hold.clear()
    questions = [asyncio.create_task(watch.problem()) for _ in range(3)]
    await clock.advance(TEST_WAIT_S / 2)
    assert not any(question.done() for question in questions)
    await clock.advance(TEST_WAIT_S)
    assert [await question for question in questions] == ["gone"] * 3
    sandbox.hold.set()
    assert await watch.problem() is None
    assert sandbox.tests == 1


async def test_a_start_that_fails_during_a_test_is_not_forgotten_when_it_passes(
    sandbox: FakeTested, watch: SandboxWatch, clock: SimClock
) -> None:
    watch.mark_broken(SandboxBroken("first"))
    sandbox.hold.clear()
    question = asyncio.create_task(watch.problem())
    await clock.advance(0.1)
    watch.mark_broken(SandboxBroken("second"))
    sandbox.hold.set()
    assert await question == "second"
    assert await watch.problem() is None, "tested again"
    assert sandbox.tests == 2


async def test_a_broken_sandbox_is_tested_again_from_time_to_time(
    sandbox: FakeTested, watch: SandboxWatch, clock: SimClock
) -> None:
    sandbox.problem = SandboxBroken("still gone")
    watch.mark_broken(SandboxBroken("gone"))
    for _ in range(5):
        assert await watch.problem() == "still gone"
    assert sandbox.tests == 1
    await clock.advance(RETEST_S)
    assert await watch.problem() == "still gone"
    assert sandbox.tests == 2


async def test_closing_cancels_a_running_test(
    sandbox: FakeTested, watch: SandboxWatch, clock: SimClock
) -> None:
    watch.mark_broken(SandboxBroken("gone"))
    sandbox.hold.clear()
    question = asyncio.create_task(watch.problem())
    await clock.advance(TEST_WAIT_S)
    await question
    await watch.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "sandbox self-test"]
