"""Runs bundles through a real sandbox in a child of the test, as root or as another user.

The tests of a file share one (:class:`SandboxHost`), in which the sandbox is tested once; a test
that changes its process has one of its own (:func:`tests.kit.child.in_child`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from client_agent.collect.contents import Contents, ResultsLimitExceeded, SkippedFile
from client_agent.collect.pack import collect, collect_extras
from client_agent.sandbox.base import Ended, Grant, Launch, Process, SandboxBroken, SandboxSettings
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.none import NoSandbox
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import RealClock
from shared.wire import Limits
from tests.kit.child import Child, Who, in_child, processes_of, uid_base, unprivileged_uid
from tests.kit.waiting import until

MIB = 1 << 20
HOSTILE = Path(__file__).parents[1] / "hostile"
TOPS = {"work", "images", "cgroups", "quarantine", "roots"}
"""What an agent keeps of its own between attempts."""
Sandbox: TypeAlias = Bubblewrap | NoSandbox

SMALL = Limits(cpus=1.0, memory=192 * MIB, pids=48, disk=48 * MIB, log=256 << 10, results=40 * MIB)
SETTINGS = SandboxSettings(scratch=24 * MIB, poll_s=0.05, death_timeout_s=20.0)
ON_DISK = replace(SETTINGS, disk_images=False)


@dataclass
class Outcome:
    """What came of one bundle."""

    ended: Ended
    stdout: str
    stderr: str
    stdout_bytes: int
    """Size of the stored log."""
    files: dict[str, bytes]
    """Name in the ZIP -> its first MiB; the bundle's own run.sh and our logs included."""
    skipped: list[SkippedFile]
    results_limit: ResultsLimitExceeded | str | None
    enforcement: Mapping[str, str]
    grown: int = 0
    """Bytes by which the agent's peak of resident memory grew."""
    survivors: list[str] = field(default_factory=list)
    """Command lines of the job's processes that are alive when its end is reported."""
    left: list[str] = field(default_factory=list)
    """Paths of attempts that are left below the sandbox's folders."""
    extra: Any = None

    @property
    def lines(self) -> list[str]:
        return (self.stdout + "\n" + self.stderr).splitlines()


@dataclass
class Job:
    """What to run, and how. A :class:`SandboxHost` takes functions of modules only."""

    bundle: Path | Mapping[str, bytes | str]
    limits: Limits = SMALL
    timeout_s: float = 60.0
    over: str | Callable[[Started], Awaitable[Any]] = ""
    """The limit of time is over as soon as its output holds this, or this returns, however busy the
    machine is."""
    grace_s: float = 0.5
    settings: SandboxSettings = SETTINGS
    backend: type[Sandbox] = Bubblewrap
    env: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ("bash", "run.sh")
    read_only: tuple[tuple[Path, str], ...] = ()
    allow: frozenset[str] = frozenset()
    before_go: Callable[[Started], Awaitable[Any]] | None = None
    during: Callable[[Started], Awaitable[Any]] | None = None
    """Called once the job runs; what the last of the two returns is ``Outcome.extra``."""


def bash(script: str, **more: Any) -> Job:
    return Job({"run.sh": script}, **more)


def python(program: str, **more: Any) -> Job:
    return Job({"run.sh": "exec python3 p.py\n", "p.py": program}, **more)


OVER_S: Final = 3599.0


class LimitClock(RealClock):
    """A limit of ``OVER_S`` seconds is over when the test says so; looks at gauges are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.over, self.looks = asyncio.Event(), 0

    async def sleep(self, seconds: float) -> None:
        self.looks += seconds == SETTINGS.poll_s
        if seconds == OVER_S:
            await self.over.wait()
        else:
            await super().sleep(seconds)


class SandboxHost:
    """A child in which one job after the other runs, each sandbox tested once."""

    def __init__(self, who: Who) -> None:
        self.who = who
        self._child = Child(_serve, unprivileged_uid(who))

    def run(self, job: Job) -> Outcome:
        outcome: Outcome = self.do(attempt, replace(job, bundle=contents(job.bundle)))
        return outcome

    def say(self, script: str, **more: Any) -> str:
        return self.run(bash(script, **more)).stdout

    def do(self, work: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """Await ``work(sandboxes, *given)`` there; ``work`` is a function of a module."""
        self._child.line.send((work, given))
        return self._child.returned()

    def close(self) -> Any:
        """End the agent; what is left of it and its jobs."""
        try:
            return self.do(Sandboxes.close)
        finally:
            self._child.close()


class Sandboxes:
    """In the child: one for all jobs with the same settings."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._open: dict[str, Sandbox] = {}
        self._names = itertools.count()

    async def of(self, job: Job) -> Sandbox:
        key = f"{job.backend.__name__} {job.settings}"
        if key not in self._open:
            self._open[key] = new_sandbox(job, self.home / str(len(self._open)))
            await self._open[key].self_test()
        return self._open[key]

    def name(self) -> str:
        return f"attempt-{next(self._names)}"

    async def close(self) -> list[str]:
        base = uid_base()
        for sandbox in self._open.values():
            await sandbox.close()
        uids = range(base, base + 4) if os.geteuid() == 0 else (os.geteuid(),)
        left = [path for path in self.home.glob("*/agent/*/*") if "template" not in path.name]
        return [*map(str, left), *(line for uid in uids for line in processes_of(uid))]


def _serve(child: Child) -> None:
    sandboxes = Sandboxes(child.home)
    with asyncio.Runner() as runner, suppress(EOFError):
        while True:
            work, given = child.line.recv()
            child.answer(lambda: runner.run(work(sandboxes, *given)))  # noqa: B023  # it is done now


def new_sandbox(job: Job, home: Path) -> Sandbox:
    settings = replace(job.settings, uid_base=uid_base())
    return job.backend(LimitClock(), home / "agent", settings)


@asynccontextmanager
async def opened(job: Job, home: Path) -> AsyncIterator[Sandbox]:
    """A sandbox of its own for a job, which ``home`` may have served before."""
    sandbox = new_sandbox(job, home)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@dataclass
class Started:
    """An attempt behind its closed gate."""

    sandbox: Sandbox
    workspace: HostWorkspace
    process: Process
    launch: Launch
    over: str | Callable[[Started], Awaitable[Any]] = ""

    @property
    def stdout(self) -> str:
        return self.launch.stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.launch.stderr.read_text(errors="replace")

    @property
    def outer(self) -> int:
        """The bwrap outside the namespaces: parent of the init."""
        fields = pidfd.stat_fields(self.process.pid)
        assert fields is not None
        return int(fields[1])

    @property
    def uid(self) -> int:
        """Of its processes, on the host."""
        return os.geteuid() if self.workspace.uid is None else self.workspace.uid

    async def says(self, text: str = "") -> None:
        await until(lambda: text in self.stdout and bool(self.stdout))

    @property
    def clock(self) -> Any:
        return self.sandbox.clock

    async def is_seen(self) -> None:
        """Once it says something, let its gauges look at it; then let it go on. It may end."""
        ended = asyncio.ensure_future(self.process.wait())
        await until(lambda: ended.done() or bool(self.stdout))
        looks = self.clock.looks
        await until(lambda: ended.done() or self.clock.looks >= looks + 2)
        self.let_go()

    def let_go(self) -> None:
        """Tell a job that waits for the file ``stop``."""
        os.close(os.open("stop", os.O_CREAT | os.O_WRONLY, dir_fd=self.workspace.fd))

    async def ends(self, *, go: bool = True) -> Ended:
        if go:
            self.process.go()
        if self.over:
            await (self.says(self.over) if isinstance(self.over, str) else self.over(self))
            self.clock.over.set()
        return await self.process.wait()

    async def killed(self) -> Ended:
        self.process.stop(None, "enough", grace=False)
        return await self.process.wait()


async def start(
    sandbox: Sandbox, job: Job, home: Path, name: str = "attempt", slot: int = 0
) -> Started:
    workspace = await sandbox.prepare(name, slot, job.limits)
    unpack(job.bundle, workspace)
    logs = home / "logs"
    logs.mkdir(exist_ok=True)
    launch = Launch(
        job.argv,
        {"FERRYMAN_JOB_ID": "1", **job.env},
        OVER_S if job.over else job.timeout_s,
        job.grace_s,
        logs / f"{name}.stdout",
        logs / f"{name}.stderr",
        Grant(read_only=job.read_only, allow=job.allow),
    )
    clock: Any = sandbox.clock
    clock.over.clear()
    try:
        return Started(sandbox, workspace, await workspace.start(launch), launch, job.over)
    except BaseException:
        await workspace.destroy()
        raise


@asynccontextmanager
async def running(sandboxes: Sandboxes, job: Job, slot: int = 0) -> AsyncIterator[Started]:
    """An attempt in the sandbox that the tests share; nothing is left of it."""
    sandbox = await sandboxes.of(job)
    started = await start(sandbox, job, sandboxes.home, sandboxes.name(), slot)
    try:
        yield started
    finally:
        await started.killed()
        await started.workspace.destroy()


async def beside(sandboxes: Sandboxes, one: Job, two: Job) -> tuple[Ended, str, Ended, str, str]:
    """Run the second job while the first, which has said something, runs."""
    async with running(sandboxes, one, 0) as first, running(sandboxes, two, 1) as second:
        first.process.go()
        await first.says()
        ended = await second.ends()
        first.let_go()
        return await first.ends(go=False), first.stdout, ended, second.stdout, second.stderr


async def attempt(sandboxes: Sandboxes, job: Job) -> Outcome:
    home, before = sandboxes.home, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dest = home / "result.zip"
    async with running(sandboxes, job) as started:
        extra = await job.before_go(started) if job.before_go else None
        started.process.go()
        if job.during:
            extra = await job.during(started)
        ended = await started.ends(go=False)
        survivors = processes_of(started.uid)
        made, limit = await asyncio.to_thread(pack, started, job, dest)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with zipfile.ZipFile(dest) as archive:
        assert archive.testzip() is None
        files = {name: archive.open(name).read(MIB) for name in archive.namelist()}
    outcome = Outcome(
        ended=ended,
        stdout=started.stdout,
        stderr=started.stderr,
        stdout_bytes=started.launch.stdout.stat().st_size,
        files=files,
        skipped=made.skipped,
        results_limit=limit,
        grown=(after - before) * 1024,
        enforcement=dict(started.workspace.enforcement),
        survivors=survivors,
        left=[str(path) for path in home.glob("*/agent/[wq]*/*")],
        extra=extra,
    )
    for path in (dest, started.launch.stdout, started.launch.stderr):
        path.unlink()
    return outcome


async def alone(job: Job, home: Path) -> Outcome:
    sandboxes = Sandboxes(home)
    outcome = await attempt(sandboxes, replace(job, bundle=contents(job.bundle)))
    outcome.left = await sandboxes.close()
    return outcome


def run(
    job: Job, who: Who, folder: Path | None = None, *, after: Callable[[], object] | None = None
) -> Outcome:
    """In a process of its own, after a change to it."""
    job = replace(job, bundle=contents(job.bundle))

    def work(home: Path) -> Awaitable[Outcome]:
        if after is not None:
            after()
        return alone(job, home)

    outcome: Outcome = in_child(work, who, folder)
    return outcome


def refusal(
    job: Job, who: Who, change: Callable[[Any], object] = id, *, self_test: bool = False
) -> str:
    """Why a sandbox does not start a job, or fails its self-test, after a change to it and to its
    process; nothing is left of it."""

    async def refused(home: Path) -> str:
        said = ""
        async with opened(job, home) as sandbox:
            change(sandbox)
            for name in ("a", "b"):
                try:
                    await (sandbox.self_test() if self_test else start(sandbox, job, home, name))
                except (SandboxBroken, OSError) as problem:
                    said = str(problem)
                else:
                    raise AssertionError("it was not refused")
            assert pidfd.descendants(os.getpid()) == []
            assert list(home.glob("agent/work/*")) == []
        return said

    return str(in_child(refused, who))


def pack(started: Started, job: Job, dest: Path) -> tuple[Contents, ResultsLimitExceeded | None]:
    extras = {"stdout.log": started.launch.stdout, "stderr.log": started.launch.stderr}
    try:
        fd = started.workspace.fd
        return collect(fd, dest, job.limits, extras, lambda _: b"{}\n"), None
    except ResultsLimitExceeded as problem:
        return collect_extras(dest, extras, lambda _: b"{}\n"), problem


def contents(bundle: Path | Mapping[str, bytes | str]) -> Mapping[str, bytes | str]:
    """The files of a bundle, by name; read by the test: the checkout may lie where another user may
    not look, such as /root."""
    if isinstance(bundle, Path):
        return {path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()}
    return bundle


def unpack(bundle: Path | Mapping[str, bytes | str], workspace: Any) -> None:
    """Write the files of a bundle, flat, as the job's."""
    for name, content in contents(bundle).items():
        data = content.encode() if isinstance(content, str) else content
        flags = os.O_CREAT | os.O_WRONLY | os.O_EXCL
        fd = os.open(name, flags, 0o644, dir_fd=workspace.fd)
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            if workspace.uid is not None and workspace.gid is not None:
                os.fchown(fd, workspace.uid, workspace.gid)
