"""Runs a bundle through a real sandbox in a child process of the test, as root or as another
user.

A child, because the agent changes its process for good (subreaper, mount namespace, uid), and
because a fork needs no new interpreter: one run costs little more than the job itself.
"""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import os
import pickle
import resource
import select
import signal
import traceback
import warnings
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from client_agent.collect.contents import Contents, ResultsLimitExceeded, SkippedFile
from client_agent.collect.pack import collect, collect_extras
from client_agent.sandbox.base import (
    Ended,
    Grant,
    Launch,
    Process,
    SandboxSettings,
    SelfTestReport,
    Workspace,
)
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.none import NoSandbox
from client_agent.sandbox.workspace import HostWorkspace
from client_agent.storage.remove_tree import remove_tree
from shared.clock import RealClock
from shared.wire import Limits
from tests.kit.memory_folder import new_folder

MIB = 1 << 20
HOSTILE = Path(__file__).parents[1] / "hostile"
Who: TypeAlias = Literal["root", "user"]

SMALL = Limits(
    cpus=1.0,
    memory=192 * MIB,
    pids=48,
    disk=48 * MIB,
    log=256 << 10,
    results=40 * MIB,
)
SETTINGS = SandboxSettings(scratch=24 * MIB, poll_s=0.05, death_timeout_s=20.0)


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
    skipped_more: int
    results_limit: ResultsLimitExceeded | str | None
    grown: int
    """Bytes by which the agent's peak of resident memory grew."""
    enforcement: Mapping[str, str]
    survivors: list[str]
    """Command lines of the job's processes that are alive when its end is reported."""
    left: list[str]
    """Paths that are left below the sandbox's folders."""
    home: Path
    """The agent's."""
    extra: Any = None

    @property
    def lines(self) -> list[str]:
        return (self.stdout + "\n" + self.stderr).splitlines()


@dataclass
class Job:
    """What to run, and how."""

    bundle: Path | Mapping[str, bytes | str]
    limits: Limits = SMALL
    timeout_s: float = 20.0
    grace_s: float = 0.5
    settings: SandboxSettings = SETTINGS
    backend: type[Bubblewrap] | type[NoSandbox] = Bubblewrap
    env: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ("bash", "run.sh")
    read_only: tuple[tuple[Path, str], ...] = ()
    allow: frozenset[str] = frozenset()
    before_go: Callable[[Started], Awaitable[Any]] | None = None
    during: Callable[[Started], Awaitable[Any]] | None = None
    """Called once the job runs; what the last of the two returns is ``Outcome.extra``."""


def bash(script: str, **more: Any) -> Job:
    """A bundle of a script."""
    return replace(Job({"run.sh": script}), **more)


def python(program: str, **more: Any) -> Job:
    """A bundle of a program."""
    return replace(Job({"run.sh": "exec python3 p.py\n", "p.py": program}), **more)


def can(who: Who) -> bool:
    """Whether a test can run as root, or as another user."""
    return os.geteuid() == 0 or who == "user"


def run(job: Job, who: Who, folder: Path | None = None) -> Outcome:
    """Run a bundle to its end and collect it."""
    # read here: the checkout may lie where another user may not look, such as /root
    job = replace(job, bundle=contents(job.bundle))
    outcome = in_child(lambda home: asyncio.run(attempt(job, home)), who, folder)
    assert isinstance(outcome, Outcome)
    return outcome


def in_child(work: Callable[[Path], Any], who: Who, folder: Path | None = None) -> Any:
    """Call ``work`` with an empty home, in a child that is ``who``; its result, or its
    exception. The home is in memory: a sandbox writes hundreds of small files, which on a disk cost
    five times as much."""
    home = new_folder() if folder is None else folder
    uid = unprivileged_uid() if os.geteuid() == 0 and who == "user" else None
    if uid is not None:
        os.chown(home, uid, uid)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of other tests: the child touches none
        pid = os.fork()
    if pid == 0:
        _be_child(work, home, uid, write)
    os.close(write)
    try:
        data = _read_all(read, pid)
        os.waitpid(pid, 0)
    finally:
        os.close(read)
        if folder is None:
            remove_tree(home)
    if not data:
        raise AssertionError("the child died without a word")
    kind, value = pickle.loads(data)
    if kind == "raised":
        raise AssertionError(value)
    return value


def unprivileged_uid() -> int:
    """Nobody else's, so that what is left of it can be found."""
    return 300_000 + os.getpid() % 100_000


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


def _be_child(work: Callable[[Path], Any], home: Path, uid: int | None, write: int) -> None:
    try:
        become(uid)
        os.setsid()
        warnings.simplefilter("ignore")
        try:
            answer = ("returned", work(home))
            data = pickle.dumps(answer)
        except BaseException:  # noqa: BLE001  # the parent reports it
            data = pickle.dumps(("raised", traceback.format_exc()))
        with os.fdopen(write, "wb") as out:
            out.write(data)
    finally:
        os._exit(0)


def _read_all(fd: int, pid: int, seconds: float = 90.0) -> bytes:
    pieces: list[bytes] = []
    while True:
        ready, _, _ = select.select([fd], [], [], seconds)
        if not ready:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"the child did not end within {seconds} s")
        more = os.read(fd, 1 << 20)
        if not more:
            return b"".join(pieces)
        pieces.append(more)


@asynccontextmanager
async def opened(job: Job, home: Path) -> AsyncIterator[Bubblewrap | NoSandbox]:
    """The sandbox for a job, which ``home`` may have served before."""
    sandbox = job.backend(RealClock(), home / "agent", replace(job.settings, uid_base=uid_base()))
    try:
        yield sandbox
    finally:
        await sandbox.close()


def uid_base() -> int:
    """Uids of nobody else's, so that what is left of them can be found."""
    return 400_000 + (os.getpid() % 100_000) * 16


@dataclass
class Started:
    """An attempt behind its closed gate."""

    workspace: HostWorkspace
    process: Process
    launch: Launch

    @property
    def stdout(self) -> str:
        return self.launch.stdout.read_text(errors="replace")


async def start(
    sandbox: Bubblewrap | NoSandbox, job: Job, home: Path, name: str = "attempt", slot: int = 0
) -> Started:
    """Prepare, unpack, start."""
    workspace = await sandbox.prepare(name, slot, job.limits)
    unpack(job.bundle, workspace)
    logs = home / "logs"
    logs.mkdir(exist_ok=True)
    launch = Launch(
        job.argv,
        {"FERRYMAN_JOB_ID": "1", **job.env},
        job.timeout_s,
        job.grace_s,
        logs / f"{name}.stdout",
        logs / f"{name}.stderr",
        Grant(read_only=job.read_only, allow=job.allow),
    )
    try:
        return Started(workspace, await workspace.start(launch), launch)
    except BaseException:
        await workspace.destroy()
        raise


async def attempt(job: Job, home: Path) -> Outcome:
    """Self-test, prepare, start, go, wait, collect, destroy."""
    os.environ["HOSTILE_TOKEN"] = "the agent's own secret"
    async with opened(job, home) as sandbox:
        report = await sandbox.self_test()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = await start(sandbox, job, home)
        workspace, process, launch = started.workspace, started.process, started.launch
        extra = await job.before_go(started) if job.before_go else None
        process.go()
        if job.during:
            extra = await job.during(started)
        ended = await process.wait()
        uid = os.geteuid() if workspace.uid is None else workspace.uid
        survivors = processes_of(uid)
        dest = home / "result.zip"
        made, limit = await asyncio.to_thread(pack, started, job, dest)
        enforcement = dict(workspace.enforcement)
        await workspace.destroy()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with zipfile.ZipFile(dest) as archive:
        assert archive.testzip() is None
        files = {name: archive.open(name).read(MIB) for name in archive.namelist()}
    return Outcome(
        ended=ended,
        report=report,
        stdout=started.stdout,
        stderr=launch.stderr.read_text(errors="replace"),
        stdout_bytes=launch.stdout.stat().st_size,
        files=files,
        skipped=made.skipped,
        skipped_more=made.skipped_more,
        results_limit=limit,
        grown=(after - before) * 1024,
        enforcement=enforcement,
        survivors=survivors,
        left=[str(path) for path in (home / "agent").rglob("*") if "template" not in path.name],
        home=home,
        extra=extra,
    )


def pack(started: Started, job: Job, dest: Path) -> tuple[Contents, ResultsLimitExceeded | None]:
    """As the agent does it."""
    extras = {"stdout.log": started.launch.stdout, "stderr.log": started.launch.stderr}
    try:
        fd = started.workspace.fd
        return collect(fd, dest, job.limits, extras, lambda _: b"{}\n"), None
    except ResultsLimitExceeded as problem:
        return collect_extras(dest, extras, lambda _: b"{}\n"), problem


def contents(bundle: Path | Mapping[str, bytes | str]) -> Mapping[str, bytes | str]:
    """The files of a bundle, by name."""
    if isinstance(bundle, Path):
        return {path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()}
    return bundle


def unpack(bundle: Path | Mapping[str, bytes | str], workspace: Workspace) -> None:
    """Write the files of a bundle, flat, as the job's."""
    for name, content in contents(bundle).items():
        data = content.encode() if isinstance(content, str) else content
        flags = os.O_CREAT | os.O_WRONLY | os.O_EXCL
        fd = os.open(name, flags, 0o644, dir_fd=workspace.fd)
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            if workspace.uid is not None and workspace.gid is not None:
                os.fchown(fd, workspace.uid, workspace.gid)


async def turns(count: int = 1) -> None:
    """Let the event loop run ``count`` times."""
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251  # no time passes


def descriptors() -> int:
    """How many are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def processes_of(uid: int) -> list[str]:
    """Command lines of the living processes of a uid, ourselves left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            status = (entry / "status").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        line = next(line for line in status.splitlines() if line.startswith("Uid:"))
        if line.split()[1] == str(uid) and "\nState:\tZ" not in status:
            found.append(command or entry.name)
    return found


def names_in(started: Started) -> list[str]:
    return [path.name for path in started.workspace.path.iterdir()]
