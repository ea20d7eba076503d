"""The baselines: the same bundle and the same sandbox without server and agent; and the launch of
that sandbox as a plain command line that nobody watches.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from client_agent.sandbox.base import Launch, SandboxSettings
from client_agent.sandbox.bubblewrap import command, seccomp
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.process.gate import GO, Gate
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import RealClock
from shared.wire import Limits

HELLO = b"echo hello\n"
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


def write_script(workspace: HostWorkspace) -> None:
    fd = os.open("run.sh", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=workspace.fd)
    os.write(fd, HELLO)
    if workspace.uid is not None:
        os.fchown(fd, workspace.uid, workspace.gid or workspace.uid)
    os.close(fd)


async def spawns(found: Bubblewrap, logs: Path, at_once: int, count: int) -> float:
    """Hello bundles a second, from nothing to certain death and no directory, so many at once."""
    numbers = iter(range(count))

    async def worker(slot: int) -> None:
        for number in numbers:
            await _spawn(found, logs / f"{number}", slot)

    start = time.perf_counter()
    await asyncio.gather(*(worker(slot) for slot in range(at_once)))
    return count / (time.perf_counter() - start)


async def _spawn(found: Bubblewrap, log: Path, slot: int) -> None:
    workspace = await found.prepare(f"r{log.name}", slot, Limits())
    out, err = log.with_suffix(".out"), log.with_suffix(".err")
    try:
        write_script(workspace)
        process = await workspace.start(Launch(["bash", "run.sh"], ENV, 60.0, 1.0, out, err))
        process.go()
        ended = await process.wait()
        assert ended.exit_code == 0, ended
    finally:
        await workspace.destroy()
        out.unlink(missing_ok=True)
        err.unlink(missing_ok=True)


def chain(found: Bubblewrap, workspace: HostWorkspace, tree: RootTree) -> float:
    """Seconds of the line of programs that starts a sandbox and its script, which has to wait for
    nobody at its gate."""
    start = time.perf_counter()
    line, word = os.pipe()
    gate = Gate({"nproc": 256, "nofile": 1024, "core": 0}, line)
    fds = command.Descriptors(
        args=os.memfd_create("args", os.MFD_CLOEXEC),
        job=workspace.fd,
        status=os.memfd_create("status", os.MFD_CLOEXEC),
        seccomp=found.constants.open("seccomp ", seccomp.program(frozenset())),
    )
    try:
        given = command.bwrap_options(fds, ENV | gate.env, root=tree, scratch=256 << 20)
        os.write(fds.args, command.encode_args(given))
        os.lseek(fds.args, 0, os.SEEK_SET)
        with subprocess.Popen(
            command.chain(found.tools, fds.args, ("bash", "run.sh"), uid=workspace.uid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(*fds.passed(), gate.fd, line),
            env={},
            cwd="/",
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            gate.give({})
            os.write(word, GO)
            _, said = process.communicate()
        assert process.returncode == 0, said
        _reap(fds.status)
    finally:
        gate.close()
        for fd in (*fds.passed(), line, word):
            if fd != fds.job:
                os.close(fd)
    return time.perf_counter() - start


def _reap(status: int) -> None:
    """Wait for the sandbox's init, too: it outlives bwrap, and then it is ours, because the
    agent's sandbox makes this process a subreaper. Ten thousand zombies slow the machine down."""
    os.lseek(status, 0, os.SEEK_SET)
    for line in os.read(status, 1 << 16).splitlines():
        init = json.loads(line).get("child-pid")
        if init is not None:
            with suppress(ChildProcessError):  # bwrap itself saw its end
                os.waitpid(init, 0)
