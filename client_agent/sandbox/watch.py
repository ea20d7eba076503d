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
PATIENCE_S: Final = 0.5
"""A question waits so long for a test under way, then gets the answer of the one before."""
_SHORT: Final = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""The host has too little of something, which says nothing about the sandbox."""


class SandboxWatch:
    """Remembers that the sandbox broke, and tries it again from time to time.

    Attributes:
        report: of the last self-test that passed.
    """

    def __init__(self, sandbox: Sandbox, clock: Clock) -> None:
        self.report = SelfTestReport("untested", "", {})
        self._sandbox, self._clock = sandbox, clock
        self._trouble: str | None = None
        self._due = 0.0
        self._testing: asyncio.Task[None] | None = None
        self._tested = asyncio.Event()

    async def self_test(self) -> None:
        """The self-test at the start. A host that is short of something does not keep the agent
        from handing out the results that fill its disk, but from taking work.

        Raises:
            SandboxBroken: it does not hold, or could not be tested.
        """
        before = self._trouble
        try:
            report = await self._sandbox.self_test()
        except OSError as problem:
            trouble = f"the sandbox could not be tested: {problem.strerror or problem}"
            if problem.errno not in _SHORT:
                raise SandboxBroken(trouble) from problem
            self._broke(trouble)
            return
        self.report = report
        if self._trouble is before:  # else it broke again while this test was under way
            self._trouble = None

    def mark_broken(self, problem: SandboxBroken) -> None:
        """A start failed for a reason that is the host's, not the bundle's.

        Perhaps only that service's, whose read-only trees were not there: the next question tests.
        """
        self._broke(str(problem), wait_s=0.0)

    def _broke(self, trouble: str, wait_s: float = RETEST_S) -> None:
        self._trouble = trouble
        self._due = self._clock.monotonic() + wait_s

    async def problem(self) -> str | None:
        """Why it cannot be used; None: it can. There is one test at a time."""
        if self._trouble is not None:
            if self._testing is None and self._clock.monotonic() >= self._due:
                self._tested.clear()
                self._testing = asyncio.create_task(self._retest(), name="sandbox self-test")
            if self._testing is not None:
                await wait_for(self._tested, PATIENCE_S, self._clock)
        return self._trouble

    async def _retest(self) -> None:
        try:
            await self.self_test()
        except SandboxBroken as problem:
            self._broke(str(problem))
        finally:
            self._testing = None
            self._tested.set()

    async def close(self) -> None:
        """End a test that is under way."""
        if self._testing is not None:
            testing = self._testing
            testing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await testing
