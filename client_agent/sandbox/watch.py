"""Whether the sandbox works, according to its last self-test and every start since then."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from client_agent.sandbox.base import Sandbox, SandboxBroken, SelfTestReport
from client_agent.storage.open_beneath import DISK_FULL_ERRNOS, SHORTAGE_ERRNOS
from shared.clock import Clock, wait_for

RETEST_S: Final = 10.0
"""Between two self-tests of a sandbox that broke while the agent ran."""
TEST_WAIT_S: Final = 0.5
"""How long :meth:`SandboxWatch.problem` waits for a running self-test. Then it returns the result
of the one before."""


class SandboxWatch:
    """Remembers that the sandbox broke, and runs the self-test again from time to time.

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
        """Run the self-test. If the host is short of something, such as disk space, the agent
        starts nevertheless, so that servers can fetch results, but it takes no work. Raises
        SandboxBroken if the self-test failed, or could not be run."""
        before = self._problem
        try:
            report = await self._sandbox.self_test()
        except OSError as problem:
            message = f"the sandbox could not be tested: {problem.strerror or problem}"
            # a shortage says nothing about the sandbox
            if problem.errno not in SHORTAGE_ERRNOS | DISK_FULL_ERRNOS:
                raise SandboxBroken(message) from problem
            self._set_problem(message)
            return
        self.report = report
        if self._problem is before:  # otherwise it broke again during this test
            self._problem = None

    def mark_broken(self, problem: SandboxBroken) -> None:
        """A start failed because of the host, not because of the bundle.

        It may concern one service only, whose read-only folders were missing. So the next call of
        :meth:`problem` runs a self-test.
        """
        self._set_problem(str(problem), wait_s=0.0)

    def _set_problem(self, message: str, wait_s: float = RETEST_S) -> None:
        self._problem = message
        self._retest_at = self._clock.monotonic() + wait_s

    async def problem(self) -> str | None:
        """Why the sandbox cannot be used; None: it can. There is one self-test at a time."""
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
        """Cancel a self-test that is running."""
        if self._retest_task is not None:
            retest = self._retest_task
            retest.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await retest
