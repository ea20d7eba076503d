"""The baseline: the same bundle, the same sandbox, no server and no agent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from client_agent.sandbox.base import Launch, SandboxSettings
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import RealClock
from shared.wire import Limits

HELLO = b"echo hello\n"
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/job", "LANG": "C.UTF-8"}


@asynccontextmanager
async def sandbox(home: Path, settings: SandboxSettings | None = None) -> AsyncIterator[Bubblewrap]:
    """A sandbox that is ready."""
    home.mkdir(parents=True, exist_ok=True)
    found = Bubblewrap(RealClock(), home, settings)
    await found.clear()
    await found.self_test()
    try:
        yield found
    finally:
        await found.close()


def write_script(workspace: HostWorkspace, script: bytes) -> None:
    """Make ``run.sh``, owned by the job."""
    fd = os.open("run.sh", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=workspace.fd)
    os.write(fd, script)
    if workspace.uid is not None:
        os.fchown(fd, workspace.uid, workspace.gid or workspace.uid)
    os.close(fd)


async def spawn(
    found: Bubblewrap,
    logs: Path,
    name: str,
    slot: int,
    script: bytes = HELLO,
    parts: dict[str, list[float]] | None = None,
) -> float:
    """Seconds from nothing to certain death of a hello bundle, its directory removed.

    Args:
        parts: gets the seconds of each part, by name.
    """
    start = last = time.perf_counter()

    def lap(part: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if parts is not None:
            parts.setdefault(part, []).append(now - last)
        last = now

    workspace = await found.prepare(name, slot, Limits())
    out, err = logs / f"{name}.out", logs / f"{name}.err"
    try:
        write_script(workspace, script)
        lap("prepare")
        process = await workspace.start(Launch(["bash", "run.sh"], ENV, 60.0, 1.0, out, err))
        lap("start up to the gate")
        process.go()
        ended = await process.wait()
        lap("run and die")
        assert ended.exit_code == 0, ended
    finally:
        await workspace.destroy()
        lap("destroy")
        out.unlink(missing_ok=True)
        err.unlink(missing_ok=True)
    return time.perf_counter() - start


async def rate(found: Bubblewrap, logs: Path, at_once: int, count: int) -> float:
    """Spawns a second, ``at_once`` beside each other."""
    numbers = iter(range(count))

    async def worker(slot: int) -> None:
        for number in numbers:
            await spawn(found, logs, f"r{at_once}-{number}", slot)

    start = time.perf_counter()
    await asyncio.gather(*(worker(slot) for slot in range(at_once)))
    return count / (time.perf_counter() - start)
