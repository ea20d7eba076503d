"""Whether the sandbox works, as of its last self-test and of every start since."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import Final

from client_agent.sandbox.base import Sandbox, SandboxBroken, SelfTestReport
from shared.clock import Clock, wait_for

RETEST_S: Final = 10.0
"""Between two self-tests of a sandbox that broke while the agent ran."""
TEST_WAIT_S: Final = 0.5
"""A question waits so long for a test under way, then gets the answer of the one before."""
_SHORTAGE_ERRNOS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""The host has too little of something, which says nothing about the sandbox."""


class SandboxWatch:
    """Remembers that the sandbox broke, and tries it again from time to time.

    Attributes:
        report: of the last self-test that passed.
    """

    def __init__(self, sandbox: Sandbox, clock: Clock) -> None:
        self.report = SelfTestReport("untested", "", {})
        self._sandbox, self._clock = sandbox, clock
        self._problem: str | None = None
        self._retest_at = 0.0
        self._retest_task: asyncio.Task[None] | None = None
        self._retest_done = asyncio.Event()

    async def self_test(self) -> None:
        """The self-test at the start. A host that is short of something does not keep the agent
        from handing out the results that fill its disk, but from taking work.

        Raises:
            SandboxBroken: it does not hold, or could not be tested.
        """
        before = self._problem
        try:
            report = await self._sandbox.self_test()
        except OSError as problem:
            message = f"the sandbox could not be tested: {problem.strerror or problem}"
            if problem.errno not in _SHORTAGE_ERRNOS:
                raise SandboxBroken(message) from problem
            self._set_problem(message)
            return
        self.report = report
        if self._problem is before:  # else it broke again while this test was under way
            self._problem = None

    def mark_broken(self, problem: SandboxBroken) -> None:
        """A start failed for a reason that is the host's, not the bundle's.

        Perhaps only that service's, whose read-only trees were not there: the next question tests.
        """
        self._set_problem(str(problem), wait_s=0.0)

    def _set_problem(self, message: str, wait_s: float = RETEST_S) -> None:
        self._problem = message
        self._retest_at = self._clock.monotonic() + wait_s

    async def problem(self) -> str | None:
        """Why it cannot be used; None: it can. There is one test at a time."""
        if self._problem is not None:
            if self._retest_task is None and self._clock.monotonic() >= self._retest_at:
                self._retest_done.clear()
                self._retest_task = asyncio.create_task(self._retest(), name="sandbox self-test")
            if self._retest_task is not None:
                await wait_for(self._retest_done, TEST_WAIT_S, self._clock)
        return self._problem

    async def _retest(self) -> None:
        try:
            await self.self_test()
        except SandboxBroken as problem:
            self._set_problem(str(problem))
        finally:
            self._retest_task = None
            self._retest_done.set()

    async def close(self) -> None:
        """End a test that is under way."""
        if self._retest_task is not None:
            retest = self._retest_task
            retest.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await retest
