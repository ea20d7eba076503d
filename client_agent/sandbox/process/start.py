"""Starts a chain of programs up to its closed gate. If that fails, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from client_agent.sandbox.base import Launch, SandboxBroken, SandboxSettings
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.process.gate import Gate
from client_agent.sandbox.process.log_capture import LogCapture, LogSettings
from client_agent.sandbox.process.pipes import Pipes, Remainder, StatusPipe
from client_agent.sandbox.process.supervisor import SpawnedProcesses
from client_agent.storage.open_beneath import raise_if_shortage
from shared.clock import Clock

_POLL_S: Final = 0.001


class Start:
    """A chain that is being started, or waits at its closed gate.

    Args:
        record: called with the pid of the init before the gate can open.
        rlimits: of a chain that ends in the job's bash, which gets a gate; None: it has none, such
            as a driver, which reads its stdin.
        without_bwrap: there is no bwrap: the spawned process becomes the job.
    """

    def __init__(
        self,
        record: Callable[[int], None],
        clock: Clock,
        settings: SandboxSettings,
        rlimits: Mapping[str, int] | None,
        *,
        without_bwrap: bool = False,
    ) -> None:
        self.pipes = pipes = Pipes()
        self._gate = None if rlimits is None else Gate(rlimits, pipes.gate_r)
        self.env = {} if self._gate is None else self._gate.env
        """Further variables with which the command inside has to be started."""
        self._record, self._clock, self._settings = record, clock, settings
        self._outer: subprocess.Popen[bytes]  # this and the next are known once it is spawned
        self._outer_dead: asyncio.Future[None]
        self._outer_fd = -1
        self._init = -1
        self._on_init: Callable[[int], None] | None = None
        self._init_fd: int | None = None
        self._orphans: list[int] = []
        self._captures: list[LogCapture] = []
        self._ending: asyncio.Task[str] | None = None
        self._loop = asyncio.get_running_loop()
        self._spoke: asyncio.Future[bool] = self._loop.create_future()
        """Whether the gate wrote its byte; done when that is known."""
        self._status = None if without_bwrap else StatusPipe(pipes.hand_over(pipes.status_r))
        self._loop.add_reader(pipes.out_r, self._on_ready_byte)

    def _on_ready_byte(self) -> None:
        """Read one byte: the others are the job's."""
        with contextlib.suppress(BlockingIOError):
            byte = os.read(self.pipes.out_r, 1)
            self._loop.remove_reader(self.pipes.out_r)
            self._spoke.set_result(bool(byte))

    def spawn(
        self,
        argv: Sequence[str],
        passed: Iterable[int],
        cwd: Path = Path("/"),
        namespace: AbstractContextManager[None] | None = None,
    ) -> None:
        """Execute the chain with an empty environment, only the named descriptors, and a session of
        its own, so that a terminal sends its SIGINT to the agent alone. Raises SandboxBroken if the
        first program of the chain cannot be executed, OSError if the agent is short of something.

        Must be called on the event loop's thread, because the parent-death signal is sent when the
        *thread* that spawned ends. ``preexec_fn`` and ``user=`` are not used: with them Python
        forks instead of using vfork, which takes 40 ms in a process of 1 GiB.

        Args:
            namespace: is entered for the spawning only.
        """
        pipes = self.pipes
        gate = [] if self._gate is None else [self._gate.fd, pipes.gate_r]
        try:
            with namespace or nullcontext():
                self._outer = subprocess.Popen(
                    argv,
                    stdin=pipes.gate_r if self._gate is None else subprocess.DEVNULL,
                    stdout=pipes.out_w,
                    stderr=pipes.err_w,
                    pass_fds=[*passed, *gate],
                    env={},
                    cwd=cwd,
                    start_new_session=True,
                )
        except OSError as problem:
            raise_if_shortage(problem)
            raise SandboxBroken(f"cannot execute {argv[0]}: {problem.strerror}") from problem
        pipes.close(pipes.gate_r, pipes.out_w, pipes.err_w, pipes.status_w)
        self._outer_fd = os.pidfd_open(self._outer.pid)
        self._outer_dead = pidfd.watch(self._outer_fd)

    def tell_init(self, on_init: Callable[[int], None] | None) -> None:
        """Have it called with the pid of the init, as soon as that is known."""
        if on_init is not None and self._init >= 0:
            on_init(self._init)
        else:
            self._on_init = on_init

    async def wait_until_ready(self) -> None:
        """Wait until the sandbox is ready and its gate waits for ``go``. Raises SandboxBroken if
        it did not start; then its processes are dead."""
        timer = asyncio.create_task(self._clock.sleep(self._settings.start_timeout_s))
        gate_ready = asyncio.create_task(self._wait_for_gate())
        try:
            await asyncio.wait({timer, gate_ready}, return_when=asyncio.FIRST_COMPLETED)
            late = not gate_ready.done()
            if not late and gate_ready.result():
                return
            stderr = await self.abandon()
        except BaseException:
            await self.abandon()
            raise
        finally:
            timer.cancel()
            gate_ready.cancel()
        why = f"exit code {self._outer.returncode}"
        if late:
            why = f"not up within {self._settings.start_timeout_s:g} s"
        raise SandboxBroken(f"the sandbox did not start ({why}): {stderr or 'no message'}")

    @property
    def waits(self) -> bool:
        """Whether it is at its gate, and alive."""
        init = self._init_fd
        return init is not None and not self._outer_dead.done() and not _is_dead(init)

    def hand_over(self, launch: Launch, logs: LogSettings) -> SpawnedProcesses:
        """The processes and descriptors, of which the output is read from now on. Raises OSError if
        a log file cannot be made.
        """
        assert self._init_fd is not None, "it is ready"
        if self._gate is not None:
            self._gate.give(launch.variables)
            self._gate.close()
        stdout = self._capture(self.pipes.out_r, launch.stdout, logs, "stdout")
        stderr = self._capture(self.pipes.err_r, launch.stderr, logs, "stderr")
        return SpawnedProcesses(
            self._outer,
            self._outer_fd,
            self._outer_dead,
            self._init,
            self._init_fd,
            self.pipes.hand_over(self.pipes.gate_w),
            self._status,
            stdout,
            stderr,
        )

    def _capture(self, fd: int, path: Path, logs: LogSettings, stream: str) -> LogCapture:
        capture = LogCapture(fd, path, stream, logs)
        self.pipes.hand_over(fd)
        self._captures.append(capture)
        return capture

    async def abandon(self) -> str:
        """End the chain, unless that was done before; the end of what it said."""
        if self._ending is None:
            # in a task of its own, so that a cancellation does not stop it
            self._ending = asyncio.create_task(self._abandon())
        return await asyncio.shield(self._ending)

    async def _wait_for_gate(self) -> bool:
        """Whether the gate waits; False: the start failed."""
        if self._status is None:
            init: int | None = self._outer.pid
            self._init_fd = os.dup(self._outer_fd)
        else:
            init = await self._status.child_pid
            self._init_fd = None if init is None else pidfd.open_child(init, self._outer.pid)
        if init is None or self._init_fd is None:
            return False
        self._init = init
        self._record(init)
        if self._on_init is not None:
            self._on_init(init)
        if not await self._spoke:
            return False
        # The gate is the init's child, and may run first. The init sets its parent-death signal
        # and then its filter, which can be seen. If the agent opened the gate earlier and were
        # killed, the job would keep running.
        while self._status is not None and not (filtered := pidfd.has_seccomp_filter(init)):
            if filtered is None:
                return False
            await self._clock.sleep(_POLL_S)
        return True

    async def _abandon(self) -> str:
        """When its pipe is closed, the gate ends by itself and runs nothing of the user's. The
        chain is killed only if that takes too long, because a bwrap that is killed while it makes
        its sandbox leaves an orphan behind.
        """
        said = None
        if self.pipes.is_open(self.pipes.err_r):
            said = Remainder(self.pipes.hand_over(self.pipes.err_r))
        self._close_pipes()
        # every process of the chain has stderr open
        ends = [self._outer_dead, self._captures[-1].closed if said is None else said.closed]
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
            await self._until_init_is_dead()
            self._outer.wait()
            for fd in (self._init_fd, *self._orphans):
                if fd is not None:
                    pidfd.reap(fd)
        self.close()
        if said is None:
            return ""
        said.stop()
        return said.text

    async def _until_init_is_dead(self) -> None:
        """Of a bwrap that is dead. It may have reported its init after the start was given up: that
        has become a child of this process, which has to reap it.
        """
        timer: asyncio.Future[Any] = asyncio.create_task(
            self._clock.sleep(self._settings.death_timeout_s / 3)
        )
        if self._init_fd is None and self._status is not None:
            reported: asyncio.Future[Any] = self._status.child_pid
            await asyncio.wait({timer, reported}, return_when=asyncio.FIRST_COMPLETED)
            init = reported.result() if reported.done() else None
            if self._init_fd is None and init is not None:
                self._init_fd = pidfd.open_child(init, self._outer.pid)
        if self._init_fd is not None:
            dead = pidfd.watch(self._init_fd)
            await asyncio.wait({timer, dead}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()

    def _close_pipes(self) -> None:
        if self.pipes.is_open(self.pipes.out_r):
            self._loop.remove_reader(self.pipes.out_r)
        self.pipes.close()

    def close(self) -> None:
        """Close all descriptors."""
        self._close_pipes()
        if self._gate is not None:
            self._gate.close()
        for reader in (self._status, *self._captures):
            if reader is not None:
                reader.stop()
        for fd in (self._outer_fd, self._init_fd, *self._orphans):
            if fd is not None and fd >= 0:
                pidfd.close(fd)


def _is_dead(fd: int) -> bool:
    poll = select.poll()  # select(2) takes no descriptor beyond 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
