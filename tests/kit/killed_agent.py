"""An agent that is killed with kill -9 while a sandbox of its runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from client_agent.sandbox.kernel import pidfd
from tests.kit.real_sandbox import Job, opened, start
from tests.kit.waiting import until

Agent: TypeAlias = Callable[[Callable[[str], object]], Awaitable[None]]


def kill_agent(job: Job, home: Path, *, go: bool) -> tuple[int, str]:
    """Kill an agent at its closed gate, or (``go``) once its job has printed something.

    Returns:
        A pidfd of the sandbox's init, and what the job had printed.
    """

    async def agent(report: Callable[[str], object]) -> None:
        async with opened(job, home) as sandbox:
            started = await start(sandbox, job, home)
            if go:
                started.process.go()
                await until(lambda: bool(started.stdout))
            report(f"{started.process.pid} {started.stdout}")
            await asyncio.Event().wait()

    return kill_after_report(agent)


def kill_after_report(agent: Agent) -> tuple[int, str]:
    """Run ``agent`` in a fork of this process, and kill it once it has made its report.

    Args:
        agent: gets a function for the report: the pid of a sandbox's init, a space, any text.

    Returns:
        A pidfd of the init, which this process inherits, and the text.
    """
    pidfd.become_subreaper()  # to reap what the agent leaves, as the host's init would
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        async def run() -> None:
            await agent(lambda report: os.write(write, report.encode()))

        try:
            asyncio.run(run())
        finally:
            os._exit(1)
    init, _, text = os.read(read, 200).decode().partition(" ")
    os.close(read)
    os.close(write)
    fd = os.pidfd_open(int(init))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return fd, text
