"""Starts a chain up to its closed gate, and leaves nothing behind where that fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from client_agent.drain import LogDrain
from client_agent.sandbox import pidfd
from client_agent.sandbox.attempt import Parts
from client_agent.sandbox.base import Launch, SandboxBroken
from client_agent.sandbox.status import StatusPipe
from shared.clock import Clock


@dataclass(frozen=True, slots=True)
class Logs:
    """How much of stdout and stderr is stored and read, in bytes each."""

    limit: int
    hard_limit: int
    on_flood: Callable[[str], None]
    """Gets "stdout" or "stderr" when that has passed ``hard_limit``."""


class Pipes:
    """The four pipes of one start: gate, stdout, stderr, status."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self.gate_r, self.gate_w = self._pipe()
        self.out_r, self.out_w = self._pipe()
        self.err_r, self.err_w = self._pipe()
        self.status_r, self.status_w = self._pipe()
        for fd in (self.out_r, self.err_r, self.status_r):
            os.set_blocking(fd, False)

    def _pipe(self) -> tuple[int, int]:
        try:
            ends = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self._open += ends
        return ends

    def give(self, fd: int) -> int:
        """Hand a descriptor over to a new owner."""
        self._open.remove(fd)
        return fd

    def close(self, *fds: int) -> None:
        """Close these, or all that are still here."""
        for fd in fds or list(self._open):
            self._open.remove(fd)
            os.close(fd)


def spawn(
    pipes: Pipes, argv: Sequence[str], passed: Iterable[int], cwd: Path = Path("/")
) -> subprocess.Popen[bytes]:
    """Execute the chain: empty environment, a session of its own (a terminal sends its
    SIGINT to the agent alone), and no descriptors but the named ones.

    Only on the event loop's thread: the parent-death signal belongs to the *thread* that spawned.
    No ``preexec_fn`` and no ``user=``: both make Python fork instead of vfork, which costs 40 ms
    in a process of 1 GiB.

    Raises:
        SandboxBroken: the first program of the chain cannot be executed.
    """
    try:
        return subprocess.Popen(
            argv,
            stdin=pipes.gate_r,
            stdout=pipes.out_w,
            stderr=pipes.err_w,
            pass_fds=tuple(passed),
            env={},
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as problem:
        raise SandboxBroken(f"cannot execute {argv[0]}: {problem.strerror}") from problem
    finally:
        pipes.close(pipes.gate_r, pipes.out_w, pipes.err_w, pipes.status_w)


class Start:
    """One chain on its way up, after :func:`spawn`; owns the pipes.

    Args:
        record: gets the pid of the init before the gate can open.
    """

    def __init__(
        self,
        outer: subprocess.Popen[bytes],
        pipes: Pipes,
        launch: Launch,
        logs: Logs,
        record: Callable[[int], None],
    ) -> None:
        self._outer, self._record, self._pipes = outer, record, pipes
        self._outer_fd = os.pidfd_open(outer.pid)
        self._outer_dead = pidfd.watch(self._outer_fd)
        self._init_fd: int | None = None
        self._status = StatusPipe(pipes.give(pipes.status_r))
        self._stdout = LogDrain(
            pipes.give(pipes.out_r),
            launch.stdout,
            limit=logs.limit,
            hard_limit=logs.hard_limit,
            on_flood=lambda: logs.on_flood("stdout"),
            greeting=True,
        )
        self._stderr = LogDrain(
            pipes.give(pipes.err_r),
            launch.stderr,
            limit=logs.limit,
            hard_limit=logs.hard_limit,
            on_flood=lambda: logs.on_flood("stderr"),
        )

    async def up(self, clock: Clock, timeout_s: float, death_timeout_s: float) -> Parts:
        """Wait until the sandbox is up and its gate waits.

        Raises:
            SandboxBroken: it did not come up; it is dead.
        """
        timer = asyncio.create_task(clock.sleep(timeout_s))
        arrival = asyncio.create_task(self._arrive())
        try:
            await asyncio.wait({timer, arrival}, return_when=asyncio.FIRST_COMPLETED)
            late = not arrival.done()
            init = None if late else arrival.result()
            if init is not None and self._init_fd is not None:
                gate = self._pipes.give(self._pipes.gate_w)
                return Parts(
                    self._outer,
                    self._outer_fd,
                    self._outer_dead,
                    init,
                    self._init_fd,
                    gate,
                    self._status,
                    self._stdout,
                    self._stderr,
                )
            await self._abandon(clock, death_timeout_s)
        except BaseException:
            await self._abandon(clock, death_timeout_s)
            raise
        finally:
            timer.cancel()
            arrival.cancel()
        why = f"not up within {timeout_s:g} s" if late else f"exit code {self._outer.returncode}"
        said = self._stderr.tail(5) or "no message"
        raise SandboxBroken(f"the sandbox did not start ({why}): {said}")

    async def _arrive(self) -> int | None:
        """The pid of the init once the gate waits; None where it will not."""
        init = await self._status.child_pid
        if init is None:
            return None
        self._init_fd = pidfd.open_child(init, self._outer.pid)
        if self._init_fd is None:
            return None
        self._record(init)
        return init if await self._stdout.greeted else None

    async def _abandon(self, clock: Clock, death_timeout_s: float) -> None:
        """End the chain. The gate is closed first: even an orphan would run nothing of the
        user's."""
        self._pipes.close()
        if self._init_fd is not None:
            pidfd.kill(self._init_fd)
        elif not self._status.child_pid.done():
            pidfd.kill(self._outer_fd)  # stuck before it made a sandbox: there is nothing to orphan
        timer = asyncio.create_task(clock.sleep(death_timeout_s))
        ends = {self._outer_dead, self._stderr.closed}
        while not timer.done() and not all(end.done() for end in ends):
            await asyncio.wait(
                {timer, *(end for end in ends if not end.done())},
                return_when=asyncio.FIRST_COMPLETED,
            )
        timer.cancel()
        if self._outer_dead.done():
            self._outer.wait()
        self._outer_dead.cancel()
        for part in (self._status, self._stdout, self._stderr):
            part.stop()
        os.close(self._outer_fd)
        if self._init_fd is not None:
            os.close(self._init_fd)
