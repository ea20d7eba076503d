"""The baselines: the same bundle and the same sandbox without server and agent; and the launch of
that sandbox as plain command lines that nobody watches.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from client_agent.sandbox.base import Launch, SandboxSettings
from client_agent.sandbox.bubblewrap import command, seccomp
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.process.chain import gated
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import RealClock
from shared.wire import Limits

HELLO = b"echo hello\n"
RUN = ("/bin/bash", "run.sh")
SLOT = 60
"""Its uid is nobody else's here."""
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/job", "LANG": "C.UTF-8"}


@asynccontextmanager
async def sandbox(home: Path, settings: SandboxSettings | None = None) -> AsyncIterator[Bubblewrap]:
    home.mkdir(parents=True, exist_ok=True)
    found = Bubblewrap(RealClock(), home, settings)
    await found.clear()
    await found.self_test()
    try:
        yield found
    finally:
        await found.close()


def write_script(workspace: HostWorkspace, script: bytes) -> None:
    fd = os.open("run.sh", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=workspace.fd)
    os.write(fd, script)
    if workspace.uid is not None:
        os.fchown(fd, workspace.uid, workspace.gid or workspace.uid)
    os.close(fd)


async def spawn(found: Bubblewrap, logs: Path, name: str, slot: int) -> float:
    """Seconds from nothing to certain death of a hello bundle, its directory removed."""
    start = time.perf_counter()
    workspace = await found.prepare(name, slot, Limits())
    out, err = logs / f"{name}.out", logs / f"{name}.err"
    try:
        write_script(workspace, HELLO)
        process = await workspace.start(Launch(["bash", "run.sh"], ENV, 60.0, 1.0, out, err))
        process.go()
        ended = await process.wait()
        assert ended.exit_code == 0, ended
    finally:
        await workspace.destroy()
        out.unlink(missing_ok=True)
        err.unlink(missing_ok=True)
    return time.perf_counter() - start


async def rate(work: Callable[[int, int], Awaitable[object]], at_once: int, count: int) -> float:
    """Calls a second with a slot and a number, ``at_once`` beside each other."""
    numbers = iter(range(count))

    async def worker(slot: int) -> None:
        for number in numbers:
            await work(slot, number)

    start = time.perf_counter()
    await asyncio.gather(*(worker(slot) for slot in range(at_once)))
    return count / (time.perf_counter() - start)


async def spawns(found: Bubblewrap, logs: Path, at_once: int, count: int) -> float:
    return await rate(lambda slot, number: spawn(found, logs, f"r{number}", slot), at_once, count)


class Chain:
    """Each method runs one start, from nothing to the exit of what it spawned; seconds. They may
    be called from several threads at once. ``run.sh`` is in the workspace.
    """

    def __init__(self, found: Bubblewrap, workspace: HostWorkspace, tree: RootTree) -> None:
        self._found, self._workspace, self._tree = found, workspace, tree

    def minimal(self) -> float:
        """As whoever measures: root, where it is root. The script is ours."""
        argv = [self._found.tools.bwrap, "--ro-bind", "/", "/", *RUN]
        return timed(argv, cwd=self._workspace.path)

    def whole(self) -> float:
        start = time.perf_counter()
        with self._descriptors() as fds:
            inside = gated(RUN, {"nproc": 256, "nofile": 1024, "core": 0})
            tools, uid = self._found.tools, self._workspace.uid
            argv = command.chain(tools, fds.args, inside, uid=uid)
            timed(argv, passed=fds.passed())
        return time.perf_counter() - start

    @contextmanager
    def _descriptors(self) -> Iterator[command.Descriptors]:
        found = self._found
        fds = command.Descriptors(
            args=os.memfd_create("args", os.MFD_CLOEXEC),
            job=self._workspace.fd,
            status=os.memfd_create("status", os.MFD_CLOEXEC),
            seccomp=found.constants.open("seccomp ", seccomp.program(frozenset())),
        )
        try:
            given = command.bwrap_options(fds, ENV, root=self._tree, scratch=256 << 20)
            os.write(fds.args, command.encode_args(given))
            os.lseek(fds.args, 0, os.SEEK_SET)
            yield fds
            _reap(fds.status)
        finally:
            for fd in fds.passed():
                if fd != fds.job:
                    os.close(fd)


def _reap(status: int) -> None:
    """Wait for the sandbox's init, too: it outlives bwrap, and then it is ours, because the
    agent's sandbox makes this process a subreaper. Ten thousand zombies slow the machine down."""
    os.lseek(status, 0, os.SEEK_SET)
    for line in os.read(status, 1 << 16).splitlines():
        init = json.loads(line).get("child-pid")
        if init is not None:
            with suppress(ChildProcessError):  # bwrap itself saw its end
                os.waitpid(init, 0)


def timed(argv: Sequence[str], *, cwd: Path = Path("/"), passed: Sequence[int] = ()) -> float:
    """Seconds from the spawn to the exit; the word for a gate is there from the beginning."""
    start = time.perf_counter()
    ends = os.pipe2(os.O_CLOEXEC)
    os.write(ends[1], b"go\n")
    os.close(ends[1])
    process = subprocess.Popen(
        argv,
        stdin=ends[0],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=passed,
        env={},
        cwd=cwd,
        start_new_session=True,
    )
    os.close(ends[0])
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    code = process.wait()
    assert code == 0, (argv, said)
    return time.perf_counter() - start


async def chained(found: Bubblewrap, name: str) -> tuple[Chain, HostWorkspace]:
    """A chain with a directory of its own; to be destroyed."""
    workspace = await found.prepare(name, SLOT, Limits())
    write_script(workspace, b"true\n")
    os.fchmod(workspace.fd, 0o755)  # for a root that has no rights over files in its namespace
    return Chain(found, workspace, await found.use_tree(network=False)), workspace
