"""The launch of a sandbox as plain command lines that nobody watches."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from client_agent.sandbox.bubblewrap import command, seccomp
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.process.chain import gated
from client_agent.sandbox.workspace import HostWorkspace
from shared.wire import Limits
from tests.bench import bare

TRUE = b"true\n"
RUN = ("/bin/bash", "run.sh")
SLOT = 60
"""Its uid is nobody else's here."""
MIB = 1 << 20


class Chain:
    """Each method runs one start, from nothing to the exit of what it spawned; seconds. They may
    be called from several threads at once.

    Args:
        workspace: gives the directory and the uid; ``run.sh`` is in it.
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
            given = command.bwrap_options(fds, bare.ENV, root=self._tree, scratch=256 * MIB)
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
    bare.write_script(workspace, TRUE)
    os.fchmod(workspace.fd, 0o755)  # for a root that has no rights over files in its namespace
    return Chain(found, workspace, await found.use_tree(network=False)), workspace
