"""Starts a chain of programs up to its closed gate. If that fails, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import Launch, SandboxBroken
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.process.log_capture import LogCapture, LogSettings
from client_agent.sandbox.process.status_pipe import StatusPipe
from client_agent.sandbox.process.supervisor import SpawnedProcesses
from client_agent.sandbox.settings import SandboxSettings
from shared.clock import Clock

_POLL_S: Final = 0.001


class Pipes:
    """Both ends of the pipes for gate, stdout, stderr and status, until they are handed over or
    closed."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self.gate_r, self.gate_w = self._pipe()
        self.out_r, self.out_w = self._pipe()
        self.err_r, self.err_w = self._pipe()
        self.err_inode = os.fstat(self.err_r).st_ino
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

    def hand_over(self, fd: int) -> int:
        """Hand a descriptor over to a new owner."""
        self._open.remove(fd)
        return fd

    def close(self, *fds: int) -> None:
        """Close these descriptors, or all that were not handed over."""
        for fd in fds or list(self._open):
            if fd in self._open:
                self._open.remove(fd)
                os.close(fd)


class Start:
    """A chain that is being started.

    Args:
        record: called with the pid of the init before the gate can open.
        without_bwrap: there is no bwrap: the spawned process becomes the job.

    Raises:
        OSError: a log file cannot be made; nothing is left open.
    """

    def __init__(
        self,
        launch: Launch,
        logs: LogSettings,
        record: Callable[[int], None],
        clock: Clock,
        settings: SandboxSettings,
        *,
        without_bwrap: bool = False,
    ) -> None:
        self.pipes = pipes = Pipes()
        self._record, self._clock, self._settings = record, clock, settings
        self._owned: list[StatusPipe | LogCapture] = []
        self._outer: subprocess.Popen[bytes]  # this and the next are known once it is spawned
        self._outer_dead: asyncio.Future[None]
        self._outer_fd = -1
        self._init_fd: int | None = None
        self._orphans: list[int] = []
        self._status: StatusPipe | None = None
        try:
            if not without_bwrap:
                self._status = StatusPipe(pipes.hand_over(pipes.status_r))
                self._owned.append(self._status)
            self._stdout = self._capture(pipes.out_r, launch.stdout, logs, "stdout")
            self._stderr = self._capture(pipes.err_r, launch.stderr, logs, "stderr")
        except BaseException:
            self.close()
            raise

    def _capture(self, fd: int, path: Path, logs: LogSettings, stream: str) -> LogCapture:
        capture = LogCapture(fd, path, stream, logs)
        self.pipes.hand_over(fd)
        self._owned.append(capture)
        return capture

    def spawn(
        self,
        argv: Sequence[str],
        passed: Iterable[int],
        cwd: Path = Path("/"),
        namespace: AbstractContextManager[None] | None = None,
    ) -> None:
        """Execute the chain with an empty environment, only the named descriptors, and a session of
        its own, so that a terminal sends its SIGINT to the agent alone. Raises SandboxBroken if the
        first program of the chain cannot be executed.

        Must be called on the event loop's thread, because the parent-death signal is sent when the
        *thread* that spawned ends. ``preexec_fn`` and ``user=`` are not used: with them Python
        forks instead of using vfork, which takes 40 ms in a process of 1 GiB.

        Args:
            namespace: is entered for the spawning only.
        """
        pipes = self.pipes
        try:
            with namespace or nullcontext():
                self._outer = subprocess.Popen(
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
        pipes.close(pipes.gate_r, pipes.out_w, pipes.err_w, pipes.status_w)
        self._outer_fd = os.pidfd_open(self._outer.pid)
        self._outer_dead = pidfd.watch(self._outer_fd)

    async def wait_until_ready(self) -> SpawnedProcesses:
        """Wait until the sandbox is ready and its gate waits for ``go``. Raises SandboxBroken if
        it did not start; then its processes are dead."""
        timer = asyncio.create_task(self._clock.sleep(self._settings.start_timeout_s))
        gate_ready = asyncio.create_task(self._wait_for_gate())
        try:
            await asyncio.wait({timer, gate_ready}, return_when=asyncio.FIRST_COMPLETED)
            late = not gate_ready.done()
            init = None if late else gate_ready.result()
            if init is not None and self._init_fd is not None:
                return SpawnedProcesses(
                    self._outer,
                    self._outer_fd,
                    self._outer_dead,
                    init,
                    self._init_fd,
                    self.pipes.hand_over(self.pipes.gate_w),
                    self._status,
                    self._stdout,
                    self._stderr,
                )
            await self._abandon()
        except BaseException:
            # in a task of its own, so that a second cancellation does not stop it
            await asyncio.shield(asyncio.create_task(self._abandon()))
            raise
        finally:
            timer.cancel()
            gate_ready.cancel()
        why = f"exit code {self._outer.returncode}"
        if late:
            why = f"not up within {self._settings.start_timeout_s:g} s"
        stderr = self._stderr.tail(5) or "no message"
        raise SandboxBroken(f"the sandbox did not start ({why}): {stderr}")

    async def _wait_for_gate(self) -> int | None:
        """The pid of the init, once the gate waits; None if the start failed."""
        if self._status is None:
            init: int | None = self._outer.pid
            self._init_fd = os.dup(self._outer_fd)
        else:
            init = await self._status.child_pid
            self._init_fd = None if init is None else pidfd.open_child(init, self._outer.pid)
        if init is None or self._init_fd is None:
            return None
        self._record(init)
        if not await self._stdout.ready:
            return None
        # The gate is the init's child, and may run first. The init sets its parent-death signal
        # and then its filter, which can be seen. If the agent opened the gate earlier and were
        # killed, the job would keep running.
        while self._status is not None and not (filtered := pidfd.has_seccomp_filter(init)):
            if filtered is None:
                return None
            await self._clock.sleep(_POLL_S)
        return init

    async def _abandon(self) -> None:
        """End the chain. When its pipe is closed, the gate ends by itself and runs nothing of the
        user's.

        The chain is killed only if that takes too long, because a bwrap that is killed while it
        makes its sandbox leaves an orphan behind.
        """
        self.pipes.close()
        # every process of the chain has stderr open
        ends = [self._outer_dead, self._stderr.closed]
        if self._init_fd is not None:
            ends.append(pidfd.watch(self._init_fd))
        for kill in (False, True, True):  # twice: orphans appear only after the death of bwrap
            if kill and not all(end.done() for end in ends):
                for fd in (self._init_fd, self._outer_fd):
                    if fd is not None:
                        pidfd.kill(fd)
                # children of a bwrap that was killed before it reported its child, or before the
                # child set its parent-death signal
                for fd in pidfd.open_orphans(self.pipes.err_inode):
                    self._orphans.append(fd)
                    pidfd.kill(fd)
                    ends.append(pidfd.watch(fd))
            timer = asyncio.create_task(self._clock.sleep(self._settings.death_timeout_s / 3))
            while not timer.done() and not all(end.done() for end in ends):
                await asyncio.wait(
                    {timer, *(end for end in ends if not end.done())},
                    return_when=asyncio.FIRST_COMPLETED,
                )
            timer.cancel()
        if self._outer_dead.done():
            self._outer.wait()
            for fd in (self._init_fd, *self._orphans):
                if fd is not None:
                    pidfd.reap(fd)
        self.close()

    def close(self) -> None:
        """Close all descriptors."""
        self.pipes.close()
        for reader in self._owned:
            reader.stop()
        for fd in (self._outer_fd, self._init_fd, *self._orphans):
            if fd is not None and fd >= 0:
                pidfd.close(fd)
