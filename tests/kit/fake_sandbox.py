"""A sandbox without isolation or processes: a test decides what each attempt does and when it ends.

It keeps the promises of ``client_agent.sandbox.base`` (real directories, gate, first cause wins,
death before the end is reported) so that runner and recovery can be tested at every step. It also
counts starts, and notices two attempts of one job at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import (
    Ahead,
    Ended,
    Launch,
    Process,
    SandboxBroken,
    SelfTestReport,
    Workspace,
)
from shared.clock import Clock
from shared.wire import Limits, Reason, Usage

REPORT: Final = SelfTestReport("fake", "1", {"memory": "none"}, {"no_new_privs": True})


class FakeProcess:
    """One gated attempt; it runs until something ends it."""

    def __init__(self, sandbox: FakeSandbox, workspace: FakeWorkspace, launch: Launch) -> None:
        self.pid = next(sandbox.pids)
        self.launch = launch
        self.workspace = workspace
        self.went = False
        self.asked_to_stop = self.output_paused = False
        self._sandbox = sandbox
        self._cause: tuple[Reason | None, str] | None = None
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._timers: list[asyncio.Task[None]] = []
        self._went_at = 0.0
        launch.stdout.touch(exist_ok=False)
        launch.stderr.touch(exist_ok=False)

    @property
    def job(self) -> str:
        env = self.launch.env
        return f"{env['FERRYMAN_JOB_ID']}.{env['FERRYMAN_ATTEMPT']}"

    @property
    def alive(self) -> bool:
        return self.went and not self._ended.done()

    def go(self) -> None:
        if self._cause is not None or self.went:
            return
        self._sandbox.note("go")
        self.went = True
        self._went_at = self._sandbox.clock.monotonic()
        self._sandbox.started(self)
        if self.launch.timeout_s:
            too_long = functools.partial(self.stop, Reason.TIMEOUT, "it ran longer than it may")
            self._after(self.launch.timeout_s, too_long)
        if self._sandbox.script is not None:
            self._sandbox.script(self)

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        if self._ended.done():
            return
        if self._cause is None:
            self._cause = (reason, message)
        if not grace or not self.went:
            self._end(None)
        elif not self.asked_to_stop:
            self.asked_to_stop = True
            if self._sandbox.obeys_sigterm:
                self._end(143)
            else:
                self._after(self.launch.grace_s, lambda: self._end(None))

    async def wait(self) -> Ended:
        return await asyncio.shield(self._ended)

    # -- what run.sh does

    def write(self, name: str, data: bytes) -> None:
        """Leave a file in the job's directory."""
        path = self.workspace.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def read(self, name: str) -> bytes:
        return (self.workspace.path / name).read_bytes()

    def log(self, stdout: bytes = b"", stderr: bytes = b"") -> None:
        launch = self.launch
        for stream, path, data in (
            ("stdout", launch.stdout, stdout),
            ("stderr", launch.stderr, stderr),
        ):
            with path.open("ab") as file:
                file.write(data)
            if data and launch.listener is not None:
                launch.listener.on_output(stream, data)
                launch.listener.on_stored(stream)

    def finish(self, exit_code: int = 0, *, warnings: tuple[str, ...] = ()) -> None:
        self._end(exit_code, warnings)

    def break_down(self, message: str, *, certain: bool = True) -> None:
        self._cause = (Reason.SANDBOX_ERROR if certain else Reason.AGENT_ERROR, message)
        self._end(None, certain=certain)

    def _end(
        self, exit_code: int | None, warnings: tuple[str, ...] = (), *, certain: bool = True
    ) -> None:
        if self._ended.done():
            return
        for timer in self._timers:
            timer.cancel()
        wall = self._sandbox.clock.monotonic() - self._went_at if self.went else 0.0
        reason, message = self._cause or (None, "")
        if self._cause is None and exit_code:
            reason, message = Reason.EXIT_CODE, f"run.sh ended with exit code {exit_code}"
        usage = Usage(wall_s=wall, cpu_s=0.0, peak_memory_bytes=4096)
        self._ended.set_result(Ended(exit_code, reason, message, usage, warnings, certain))
        self._sandbox.ended(self)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        async def later() -> None:
            await self._sandbox.clock.sleep(seconds)
            action()

        self._timers.append(asyncio.create_task(later()))


class FakeWorkspace:
    def __init__(self, sandbox: FakeSandbox, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.seen_as = str(path)
        self.uid: int | None = None
        self.gid: int | None = None
        self.enforcement: Mapping[str, str] = sandbox.enforcement
        self._sandbox = sandbox
        self._process: FakeProcess | None = None

    async def start(self, launch: Launch) -> Process:
        if self._sandbox.broken is not None:
            raise SandboxBroken(self._sandbox.broken)
        self._process = FakeProcess(self._sandbox, self, launch)
        await self._sandbox.step("start")
        if launch.on_init is not None:
            launch.on_init(self._process.pid)
        await self._sandbox.step("up")
        return self._process

    async def destroy(self) -> None:
        assert self._process is None or not self._process.alive, "destroyed under a live job"
        await self._sandbox.step("destroy")
        os.close(self.fd)
        shutil.rmtree(self.path)


class FakePack:
    """``client_agent.sandbox.base.Pack``: each attempt has a directory of its own."""

    def __init__(self, sandbox: FakeSandbox, name: str) -> None:
        self.usable, self.closed, self.count = True, False, 0
        self._sandbox, self._name = sandbox, name

    def workspace(self) -> Workspace:
        assert self.usable
        assert not self.closed
        self.count += 1
        return FakeWorkspace(self._sandbox, self._sandbox.work / f"{self._name}-{self.count}")

    async def close(self) -> None:
        self.usable, self.closed = False, True


class FakeSandbox:
    """``client_agent.sandbox.base.Sandbox``.

    Attributes:
        script: called with each process as its gate opens; None: the test ends it later.
        broken: why nothing starts.
        obeys_sigterm: whether run.sh ends at once when asked.
        starts: ``job.attempt`` -> how often its run.sh was started.
        violations: promises of the agent that were seen broken.
        has_packs: whether attempts can share a start.
        packs: all that were made.
        hook: called at each step; a test holds it up (with a coroutine) or cuts it off there.
        enforcement: of the limits of the next attempts.
    """

    def __init__(self, clock: Clock, home: Path) -> None:
        self.clock, self.work = clock, home / "work"
        self.live: dict[str, FakeProcess] = {}
        self._started = asyncio.Event()
        self.pids = itertools.count(101)
        self.reset()

    def reset(self) -> None:
        self.script: Callable[[FakeProcess], None] | None = None
        self.broken: str | None = None
        self.obeys_sigterm = True
        self.starts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.has_packs, self.packs = False, list[FakePack]()
        self.enforcement: Mapping[str, str] = {"memory": "none"}
        self.hook: Callable[[str], object] | None = None

    async def self_test(self) -> SelfTestReport:
        if self.broken is not None:
            raise SandboxBroken(self.broken)
        return REPORT

    async def clear(self) -> None:
        await self.step("clear")
        shutil.rmtree(self.work, ignore_errors=True)

    async def close(self) -> None:
        assert not self.live, "closed under live jobs"

    async def pack(self, name: str, slot: int, limits: Limits) -> FakePack | None:
        if not self.has_packs:
            return None
        await self.step("pack")
        made = FakePack(self, name)
        self.packs.append(made)
        return made

    async def prepare(
        self, name: str, slot: int, limits: Limits, ahead: Ahead | None = None
    ) -> Workspace:
        await self.step("prepare")
        return FakeWorkspace(self, self.work / name)

    async def step(self, name: str) -> None:
        if asyncio.iscoroutine(waiting := self.note(name)):
            await waiting

    def note(self, name: str) -> object:
        return None if self.hook is None else self.hook(name)

    async def process(self, job: str) -> FakeProcess:
        while job not in self.live:
            await self._started.wait()
            self._started.clear()
        return self.live[job]

    async def finish(self, *jobs: str) -> None:
        """Let each of these attempts end as soon as it runs, in whichever order they start."""
        for process in asyncio.as_completed(map(self.process, jobs)):
            (await process).finish()

    @contextlib.contextmanager
    def held(self, *steps: str, problem: Exception | None = None) -> Iterator[asyncio.Event]:
        """Hold up each of these steps until the context ends; it fails then, if there is a problem.
        The event is set once one is held up.
        """
        at, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            at.set()
            await go_on.wait()
            if problem is not None:
                raise problem

        self.hook = lambda step: wait() if step in steps else None
        try:
            yield at
        finally:
            self.hook = None
            go_on.set()

    def die(self) -> None:
        """kill -9 of the agent: its processes die with it, and no end is reported."""
        self.live.clear()

    def started(self, process: FakeProcess) -> None:
        self.starts[process.job] += 1
        number = process.job.partition(".")[0]
        if any(job.partition(".")[0] == number for job in self.live):
            self.violations.append(f"job {number} was started while it ran")
        self.live[process.job] = process
        self._started.set()

    def ended(self, process: FakeProcess) -> None:
        self.live.pop(process.job, None)
