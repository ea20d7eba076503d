"""What each layer of a start costs, down from a bare bash: all in turn, in one run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from client_agent.sandbox import options, seccomp
from client_agent.sandbox.bubblewrap import Bubblewrap
from client_agent.sandbox.cgroups import Group
from client_agent.sandbox.settings import SandboxSettings
from client_agent.sandbox.workspace import HostWorkspace
from shared.wire import Limits
from tests.bench import bare
from tests.bench.table import Row, median

TRUE = b"true\n"
MIB = 1 << 20
WARM_UP = 5

Variant = Callable[[], Awaitable[float]]
"""Runs one start; seconds."""


class Chain:
    """The launch of SANDBOX.md, section 3, as a plain command line: nobody watches it.

    Args:
        workspace: gives the directory and the uid; ``run.sh`` is in it.
    """

    def __init__(self, found: Bubblewrap, workspace: HostWorkspace) -> None:
        self._found, self._workspace = found, workspace
        self._serial = 0

    def bash(self) -> float:
        return timed(["/bin/bash", "run.sh"], cwd=self._workspace.path)

    def minimal(self) -> float:
        command = [self._found.tools.bwrap, "--ro-bind", "/", "/", "/bin/bash", "run.sh"]
        return timed(command, cwd=self._workspace.path)

    def all_options(self) -> float:
        return self.with_options(lambda given: given)

    def with_options(self, change: Callable[[list[str]], list[str]]) -> float:
        """bwrap under setpriv, with our options but for a change."""
        uid = self._workspace.uid
        drop = [] if uid is None else [self._found.tools.setpriv, *become(uid)]
        start = time.perf_counter()
        fds = self._descriptors(change)
        command = [*drop, self._found.tools.bwrap, "--args", str(fds.args), "--"]
        return self._run([*command, "/bin/bash", "run.sh"], fds, start)

    def whole(self) -> float:
        return self._chain([], time.perf_counter())

    def in_cgroups(self) -> float:
        start = time.perf_counter()
        hierarchy = self._found.host.hierarchy
        assert hierarchy is not None
        self._serial += 1
        group = Group(hierarchy, f"plain{self._serial}", Limits())
        self._chain(group.join, start)
        while not _removed(group):  # bwrap's exit is not yet the death of what was in it
            time.sleep(0.0001)
        return time.perf_counter() - start

    def _chain(self, join: Sequence[str], start: float) -> float:
        fds = self._descriptors()
        inside = options.gated(["/bin/bash", "run.sh"], {"nproc": 256, "nofile": 1024, "core": 0})
        tools, uid = self._found.tools, self._workspace.uid
        return self._run(options.chain(tools, fds.args, inside, uid=uid, join=join), fds, start)

    def _descriptors(
        self, change: Callable[[list[str]], list[str]] = lambda given: given
    ) -> options.Descriptors:
        found = self._found
        fds = options.Descriptors(
            args=os.memfd_create("args", os.MFD_CLOEXEC),
            job=self._workspace.fd,
            status=os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC),
            passwd=found.constant("passwd", options.PASSWD.encode()),
            group=found.constant("group", options.GROUP.encode()),
            hosts=found.constant("hosts", options.HOSTS.encode()),
            seccomp=found.constant("seccomp ", seccomp.program(frozenset())),
        )
        given = options.bwrap_options(fds, bare.ENV, scratch=256 * MIB, shm=64 * MIB)
        os.write(fds.args, options.encode_args(change(given)))
        os.lseek(fds.args, 0, os.SEEK_SET)
        return fds

    def _run(self, command: Sequence[str], fds: options.Descriptors, start: float) -> float:
        try:
            timed(command, passed=fds.passed())
        finally:
            for fd in fds.passed():
                if fd != fds.job:
                    os.close(fd)
        return time.perf_counter() - start


def _removed(group: Group) -> bool:
    try:
        group.remove()
    except OSError:
        return False
    return True


def become(uid: int) -> list[str]:
    return [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


def timed(command: Sequence[str], *, cwd: Path = Path("/"), passed: Sequence[int] = ()) -> float:
    """Seconds from the spawn to the exit; the word for a gate is there from the beginning."""
    start = time.perf_counter()
    ends = os.pipe2(os.O_CLOEXEC)
    os.write(ends[1], b"go\n")
    os.close(ends[1])
    process = subprocess.Popen(
        command,
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
    assert code == 0, said
    return time.perf_counter() - start


async def chained(found: Bubblewrap, name: str) -> tuple[Chain, HostWorkspace]:
    """A chain with a directory of its own; to be destroyed."""
    workspace = await found.prepare(name, 60, Limits())
    bare.write_script(workspace, TRUE)
    return Chain(found, workspace), workspace


def _plain(run: Callable[[], float]) -> Variant:
    async def variant() -> float:
        return run()

    return variant


async def layers(folder: Path, rounds: int) -> list[Row]:
    """One start of each kind after the other, ``rounds`` times."""
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(
            bare.sandbox(folder / "plain", SandboxSettings(disk_images=False))
        )
        chain, workspace = await chained(plain, "chain")
        stack.push_async_callback(workspace.destroy)
        variants: dict[str, Variant] = {
            "bare bash run.sh": _plain(chain.bash),
            "bwrap, minimal": _plain(chain.minimal),
            "bwrap, all our options": _plain(chain.all_options),
            "the chain": _plain(chain.whole),
        }
        base = "the chain"
        if plain.host.hierarchy is not None:
            base = f"the chain in {len(set(plain.host.hierarchy.folders.values()))} cgroups"
            variants[base] = _plain(chain.in_cgroups)
        ours = {"our cycle": plain}
        if plain.drop:
            images = await stack.enter_async_context(bare.sandbox(folder / "images"))
            if images.host.images is not None:
                ours["our cycle with a disk image"] = images
        serials = iter(range(10**9))

        def cycle(found: Bubblewrap) -> Variant:
            return lambda: bare.spawn(found, folder, f"s{next(serials)}", 0, TRUE)

        variants |= {name: cycle(found) for name, found in ours.items()}
        times: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(WARM_UP + rounds):
            for name, run in variants.items():
                took = await run()
                if number >= WARM_UP:
                    times[name].append(took)
    took_s = {name: median(found) for name, found in times.items()}
    first = next(iter(took_s))
    rows = [
        Row(f"start: {name}", f"{took * 1e3:.2f} ms", first, took / took_s[first], "", None)
        for name, took in took_s.items()
    ]
    for name in ours:
        ratio = took_s[name] / took_s[base]
        rows.append(Row(name, f"{took_s[name] * 1e3:.2f} ms", base, ratio, "≤ 1.3", ratio <= 1.3))
    return rows
