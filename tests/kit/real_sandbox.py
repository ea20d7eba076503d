"""Runs bundles through a real sandbox in a child process of the test, as root or as another user.

A child, because the agent changes its process for good (subreaper, mount namespace, uid), and
because a fork needs no new interpreter. The tests of a file share one (:class:`SandboxHost`), in
which the sandbox is tested once; a test that changes its process has one of its own
(:func:`in_child`).
"""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import functools
import inspect
import itertools
import multiprocessing
import os
import resource
import select
import signal
import traceback
import warnings
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias

from client_agent.collect.contents import Contents, ResultsLimitExceeded, SkippedFile
from client_agent.collect.pack import collect, collect_extras
from client_agent.sandbox.base import (
    Ended,
    Grant,
    Launch,
    Process,
    SandboxBroken,
    SandboxSettings,
    SelfTestReport,
)
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.none import NoSandbox
from client_agent.sandbox.workspace import HostWorkspace
from client_agent.storage.remove_tree import remove_tree
from shared.clock import RealClock
from shared.wire import Limits
from tests.kit.memory_folder import new_folder
from tests.kit.waiting import until

MIB = 1 << 20
HOSTILE = Path(__file__).parents[1] / "hostile"
PATIENCE_S: Final = 90.0
TOPS = {"work", "images", "cgroups", "quarantine", "roots"}
"""What an agent keeps of its own between attempts."""
Who: TypeAlias = Literal["root", "user"]
Sandbox: TypeAlias = Bubblewrap | NoSandbox

SMALL = Limits(cpus=1.0, memory=192 * MIB, pids=48, disk=48 * MIB, log=256 << 10, results=40 * MIB)
SETTINGS = SandboxSettings(scratch=24 * MIB, poll_s=0.05, death_timeout_s=20.0)
ON_DISK = replace(SETTINGS, disk_images=False)


@dataclass
class Outcome:
    """What came of one bundle."""

    ended: Ended
    report: SelfTestReport
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

    @property
    def wall_s(self) -> float:
        return OVER_S if self.over else self.timeout_s


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


# ---------------------------------------------------------------- children


def can(who: Who) -> bool:
    return os.geteuid() == 0 or who == "user"


class Child:
    """A fork of the test that is ``who``, with an empty home in memory: a sandbox writes hundreds
    of small files, which on a disk cost five times as much."""

    def __init__(self, body: Callable[[Child], object], who: Who, folder: Path | None) -> None:
        self.home = new_folder() if folder is None else folder
        self._own_folder = folder is None
        uid = unprivileged_uid() if os.geteuid() == 0 and who == "user" else None
        if uid is not None:
            os.chown(self.home, uid, uid)
        self._line, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of other tests: the child touches none
            self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            self._line = theirs
            _be_child(lambda: body(self), uid)
        theirs.close()

    def send(self, value: Any) -> None:
        """To the child, from the test."""
        self._line.send(value)

    def answer(self, work: Callable[[], Any]) -> None:
        """In the child: tell the test what ``work`` returned or raised."""
        try:
            self._line.send(("returned", work()))
        except BaseException:  # noqa: BLE001  # the parent reports it
            self._line.send(("raised", traceback.format_exc()))

    def asked(self) -> Any:
        """In the child: the next value that was sent; None at the end."""
        with suppress(EOFError):
            return self._line.recv()

    def returned(self) -> Any:
        if not self._line.poll(PATIENCE_S):
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"the child did not end within {PATIENCE_S} s")
        try:
            kind, value = self._line.recv()
        except EOFError:
            raise AssertionError("the child died without a word") from None
        assert kind == "returned", value
        return value

    def close(self) -> None:
        self._line.close()
        os.waitpid(self.pid, 0)
        if self._own_folder:
            remove_tree(self.home)


def in_child(work: Callable[[Path], Any], who: Who, folder: Path | None = None) -> Any:
    """Call ``work`` with an empty home, in a child that is ``who``; its result, or its exception.
    What it returns may be a coroutine."""

    def whole(home: Path) -> Any:
        result = work(home)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    child = Child(lambda child: child.answer(lambda: whole(child.home)), who, folder)
    try:
        return child.returned()
    finally:
        child.close()


def child_test(work: Callable[..., Any]) -> Callable[..., None]:
    """A test that runs as a whole in a child, with the empty ``home`` that it asks for, as the
    fixture ``who`` says, or else as root."""

    @functools.wraps(work)
    def test(**fixtures: Any) -> None:
        in_child(lambda home: work(home=home, **fixtures), fixtures.get("who", "root"))

    signature = inspect.signature(work)
    rest = [one for name, one in signature.parameters.items() if name != "home"]
    del test.__wrapped__  # pytest reads its signature
    test.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return test


def kill_after_report(
    agent: Callable[[Callable[[str], object]], Awaitable[None]],
) -> tuple[int, str]:
    """Run ``agent`` in a fork of this process, and kill it once it has made its report: the pid of
    a sandbox's init, a space, any text. A pidfd of the init, which is a child of ours now, and the
    text."""
    pidfd.become_subreaper()  # to reap what the agent leaves, as the host's init would
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        async def run() -> None:
            await agent(lambda report: os.write(write, report.encode()))

        with suppress(BaseException):
            asyncio.run(run())
        os._exit(1)
    os.close(write)
    init, _, text = os.read(read, 200).decode().partition(" ")
    os.close(read)
    fd = os.pidfd_open(int(init))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return fd, text


class SandboxHost:
    """A child in which one job after the other runs, each sandbox tested once."""

    def __init__(self, who: Who) -> None:
        self.who = who
        self._child = Child(_serve, who, None)

    def run(self, job: Job) -> Outcome:
        outcome = self.do(attempt, replace(job, bundle=contents(job.bundle)))
        assert isinstance(outcome, Outcome)
        return outcome

    def say(self, script: str, **more: Any) -> str:
        return self.run(bash(script, **more)).stdout

    def do(self, work: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """Await ``work(sandboxes, *given)`` there; ``work`` is a function of a module."""
        self._child.send((work, given))
        return self._child.returned()

    def close(self) -> list[str]:
        """End the agent; what is left of it and its jobs."""
        try:
            self._child.send((Sandboxes.close, ()))
            left = self._child.returned()
        finally:
            self._child.close()
        assert isinstance(left, list)
        return left


class Sandboxes:
    """In the child: one for all jobs with the same settings."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._open: dict[str, tuple[Sandbox, SelfTestReport, LimitClock]] = {}
        self._names = itertools.count()

    async def of(self, job: Job) -> tuple[Sandbox, SelfTestReport, LimitClock]:
        key = f"{job.backend.__name__} {job.settings}"
        if key not in self._open:
            clock = LimitClock()
            own = self.home / str(len(self._open))
            sandbox = job.backend(clock, own / "agent", replace(job.settings, uid_base=uid_base()))
            self._open[key] = sandbox, await sandbox.self_test(), clock
        return self._open[key]

    def name(self) -> str:
        return f"attempt-{next(self._names)}"

    async def close(self) -> list[str]:
        base = uid_base()
        for sandbox, _, _ in self._open.values():
            await sandbox.close()
        uids = range(base, base + 4) if os.geteuid() == 0 else (os.geteuid(),)
        left = [path for path in self.home.glob("*/agent/*/*") if "template" not in path.name]
        return [*map(str, left), *(line for uid in uids for line in processes_of(uid))]


def _serve(child: Child) -> None:
    sandboxes = Sandboxes(child.home)
    with asyncio.Runner() as runner:
        while (asked := child.asked()) is not None:
            work, given = asked
            child.answer(lambda: runner.run(work(sandboxes, *given)))  # noqa: B023  # it is done now


_serial = itertools.count()


def unprivileged_uid() -> int:
    """Nobody else's, so that what is left of it can be found."""
    return 300_000 + os.getpid() % 1000 * 100 + next(_serial) % 100


def uid_base() -> int:
    """Uids of nobody else's, so that what is left of them can be found."""
    return 400_000 + (os.getpid() % 100_000) * 16


def become(uid: int | None) -> None:
    """Make a fresh child that uid, and mortal: it dies with the test."""
    # the interpreter may lie where the child may not read: what is imported late comes now
    for encoding in ("ascii", "latin-1", "utf-8", "idna", "cp437"):
        codecs.lookup(encoding)
    libc = ctypes.CDLL(None)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
    libc.prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG, which a change of uid clears


def _be_child(body: Callable[[], object], uid: int | None) -> NoReturn:
    try:
        become(uid)
        os.setsid()
        os.environ["HOSTILE_TOKEN"] = "the agent's own secret"
        warnings.simplefilter("ignore")
        body()
    finally:
        os._exit(0)


# ---------------------------------------------------------------- attempts


@asynccontextmanager
async def opened(job: Job, home: Path) -> AsyncIterator[Sandbox]:
    """A sandbox of its own for a job, which ``home`` may have served before."""
    settings = replace(job.settings, uid_base=uid_base())
    sandbox = job.backend(LimitClock(), home / "agent", settings)
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

    @property
    def names(self) -> list[str]:
        return [path.name for path in self.workspace.path.iterdir()]

    async def says(self, text: str = "") -> None:
        await until(lambda: text in self.stdout and bool(self.stdout))

    @property
    def clock(self) -> LimitClock:
        assert isinstance(self.sandbox.clock, LimitClock)
        return self.sandbox.clock

    async def is_seen(self) -> None:
        """Once it says something, let its gauges look at it; then let it go on. It may end."""
        ended = asyncio.ensure_future(self.process.wait())
        await until(lambda: ended.done() or bool(self.stdout))
        looks = self.clock.looks
        await until(lambda: ended.done() or self.clock.looks >= looks + 2)
        self.let_go()

    async def ends_by_itself(self) -> None:
        """As a soft limit does, whose samples may be seconds apart on a slow machine."""
        await self.process.wait()

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
        job.wall_s,
        job.grace_s,
        logs / f"{name}.stdout",
        logs / f"{name}.stderr",
        Grant(read_only=job.read_only, allow=job.allow),
    )
    if isinstance(sandbox.clock, LimitClock):
        sandbox.clock.over.clear()
    try:
        return Started(sandbox, workspace, await workspace.start(launch), launch, job.over)
    except BaseException:
        await workspace.destroy()
        raise


@asynccontextmanager
async def running(sandboxes: Sandboxes, job: Job, slot: int = 0) -> AsyncIterator[Started]:
    """An attempt in the sandbox that the tests share; nothing is left of it."""
    sandbox, _, _ = await sandboxes.of(job)
    started = await start(sandbox, job, sandboxes.home, sandboxes.name(), slot)
    try:
        yield started
    finally:
        await started.killed()
        await started.workspace.destroy()


async def attempt(sandboxes: Sandboxes, job: Job) -> Outcome:
    _, report, _ = await sandboxes.of(job)
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
        report=report,
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

    outcome = in_child(work, who, folder)
    assert isinstance(outcome, Outcome)
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


def use_bwrap(sandbox: Any, text: str) -> None:
    """Another program in bwrap's place."""
    home = sandbox.work_folders.images.parents[1]
    program = home / "bwrap"
    program.write_text(text)
    program.chmod(0o755)
    home.chmod(0o755)
    sandbox._tools = replace(sandbox.tools, bwrap=str(program))


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


# ---------------------------------------------------------------- what there is


async def turns(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251  # no time passes


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def processes_of(uid: int) -> list[str]:
    """Command lines of the living processes of a uid, ourselves left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            status = (entry / "status").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status:
                found.append(command or entry.name)
    return found


def dead_within(pidfd: int, seconds: float = 20.0) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])
