"""Supervises the processes of a running attempt: gate, timeouts, reason of its end, and death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from client_agent.sandbox.base import Ended, Launch
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.limits.meter import Meter
from client_agent.sandbox.process.gate import GO
from client_agent.sandbox.process.log_capture import LogCapture
from client_agent.sandbox.process.pipes import StatusPipe
from shared.clock import Clock
from shared.wire import Reason, Usage

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_KILLED: Final = 128 + signal.SIGKILL


@dataclass(slots=True)
class SpawnedProcesses:
    """The processes and descriptors of a started chain, which :class:`SupervisedProcess` owns."""

    outer: subprocess.Popen[bytes]
    outer_fd: int
    """pidfd of the process that the agent spawned. It gets no signal while the sandbox lives: if it
    were killed, orphans would be left, and if it got SIGTERM, the job would have no grace time."""
    outer_dead: asyncio.Future[None]
    """:func:`client_agent.sandbox.kernel.pidfd.watch` of it."""
    init: int
    init_fd: int
    """pidfd of the namespace's init. When it is dead, all processes of the namespace are."""
    gate: int
    """Write end of the gate's stdin."""
    status: StatusPipe | None
    """None: there is no sandbox, and the spawned process became the job."""
    stdout: LogCapture
    stderr: LogCapture


class SupervisedProcess:
    """Implements :class:`client_agent.sandbox.base.Process`."""

    def __init__(
        self,
        spawned: SpawnedProcesses,
        launch: Launch,
        meter: Meter,
        clock: Clock,
        death_timeout_s: float,
    ) -> None:
        self.pid = spawned.init
        self._spawned, self._launch, self._meter = spawned, launch, meter
        self._clock, self._death_timeout_s = clock, death_timeout_s
        self._cause: tuple[Reason | None, str] | None = None
        self.on_go: Callable[[], None] | None = None
        """Called once the gate is open."""
        self._later_causes: dict[Reason | None, str] = {}
        self._killed = self._terminating = False
        self._started_at: float | None = None
        self._timers: set[asyncio.Task[None]] = set()
        self._give_up_timer: asyncio.Task[None] | None = None
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._init_dead = pidfd.watch(spawned.init_fd)
        self._supervision = asyncio.create_task(self._supervise())

    def go(self) -> None:
        if self._spawned.gate < 0 or self._cause is not None:
            return
        self._started_at = self._clock.monotonic()
        self._meter.start(self)
        self._open_gate()
        if self.on_go is not None:
            self.on_go()
        if self._launch.timeout_s:
            self._after(
                self._launch.timeout_s,
                lambda: self.stop(
                    Reason.TIMEOUT, f"the job ran longer than its {self._launch.timeout_s:g} s"
                ),
            )

    def _open_gate(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._spawned.gate, GO)
        self._close_gate()

    @property
    def output_paused(self) -> bool:
        return self._spawned.stdout.paused or self._spawned.stderr.paused

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        if self._init_dead.done():
            return
        if self._cause is None:
            self._cause = (reason, message)
        elif reason != self._cause[0] and message:
            self._later_causes.setdefault(
                reason, message
            )  # a gauge may report it again at each poll
        if self._killed:
            return
        if not grace or self._started_at is None:
            self._kill()
        elif not self._terminating:
            self._terminating = True
            self._after(self._launch.grace_s, self._kill)  # even if SIGTERM cannot be sent
            try:
                self._terminate()
            except OSError as problem:
                log.warning("attempt.not_terminated", init=self.pid, error=str(problem))

    def _terminate(self) -> None:
        # SIGCONT, because a stopped process does not handle SIGTERM
        pidfd.signal_descendants(self.pid, signal.SIGTERM, signal.SIGCONT)
        if self._spawned.status is None:
            pidfd.kill(self._spawned.init_fd, signal.SIGTERM)
            pidfd.kill(self._spawned.init_fd, signal.SIGCONT)

    async def wait(self) -> Ended:
        return await asyncio.shield(self._supervision)

    def _kill(self) -> None:
        if self._killed or self._init_dead.done():
            return
        self._killed = True
        pidfd.kill(self._spawned.init_fd)
        self._close_gate()
        self._give_up_timer = self._after(self._death_timeout_s, self._give_up)

    def _give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    def _close_gate(self) -> None:
        if self._spawned.gate >= 0:
            os.close(self._spawned.gate)
            self._spawned.gate = -1

    def _after(self, seconds: float, action: Callable[[], object]) -> asyncio.Task[None]:
        async def later() -> None:
            await self._clock.sleep(seconds)
            action()

        task = asyncio.create_task(later())
        self._timers.add(task)
        task.add_done_callback(self._timers.discard)
        return task

    async def _supervise(self) -> Ended:
        try:
            usage, certain = await self._until_dead()
        finally:
            for timer in list(self._timers):
                timer.cancel()
            self._close()
        return self._make_ended(usage, certain)

    async def _until_dead(self) -> tuple[Usage, bool]:
        """What it used, and whether all of its processes are dead."""
        spawned = self._spawned
        certain = await self._wait_or_give_up(self._init_dead)
        ended_at = self._clock.monotonic()
        if certain:
            if self._give_up_timer is not None:  # the rest has a timeout of its own
                self._give_up_timer.cancel()
            certain = await self._meter.stop()
            # bwrap and the pipes: all writers are dead, so these end by themselves
            self._after(self._death_timeout_s, self._give_up)
            rest = [spawned.outer_dead, spawned.stdout.closed, spawned.stderr.closed]
            if spawned.status is not None:
                rest.append(spawned.status.closed)
            for end in rest:
                certain = await self._wait_or_give_up(end) and certain
        cpu_s, peak = self._reap()
        metered_cpu_s, metered_peak = self._meter.usage()
        wall_s = 0.0 if self._started_at is None else ended_at - self._started_at
        usage = Usage(
            wall_s=round(max(0.0, wall_s), 6),
            cpu_s=cpu_s if metered_cpu_s is None else metered_cpu_s,
            peak_memory_bytes=peak if metered_peak is None else metered_peak,
        )
        return usage, certain

    async def _wait_or_give_up(self, future: asyncio.Future[None]) -> bool:
        if not future.done():
            await asyncio.wait({future, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
        return future.done()

    def _reap(self) -> tuple[float | None, int | None]:
        """Reap the dead processes; what the kernel counted for them.

        Returns:
            CPU seconds of all, and the peak memory in bytes of the largest one; None: unknown.
        """
        cpu_s, peak = 0.0, 0
        if self._spawned.status is not None and pidfd.is_our_zombie(self._spawned.init_fd):
            # If bwrap ended before its child, the init, then the init is the agent's child now, and
            # counts for all processes that it reaped. Otherwise bwrap counts for it.
            _, _, used = os.wait4(self.pid, 0)
            cpu_s, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        pid, status, used = os.wait4(self._spawned.outer.pid, os.WNOHANG)
        if pid == 0:
            return None, None
        self._spawned.outer.returncode = os.waitstatus_to_exitcode(status)
        # A child starts with the agent's own size as its peak, so smaller peaks are unknown.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if used.ru_maxrss > own:
            peak = max(peak, used.ru_maxrss * 1024)
        return round(cpu_s + used.ru_utime + used.ru_stime, 6), peak or None

    def _close(self) -> None:
        self._close_gate()
        for future in (self._init_dead, self._spawned.outer_dead):
            future.cancel()
        spawned = self._spawned
        if spawned.status is not None:
            spawned.status.stop()
        spawned.stdout.stop()
        spawned.stderr.stop()
        pidfd.close(spawned.init_fd)
        pidfd.close(spawned.outer_fd)

    def _exit_code(self) -> int | None:
        if self._spawned.status is not None:
            code = self._spawned.status.exit_code
        else:
            code = self._spawned.outer.returncode
            if code is not None and code < 0:
                code = 128 - code  # as a shell reports a signal
        # If the agent killed the init, bwrap reports that as an exit code, but run.sh had none.
        return None if self._killed and code == _KILLED else code

    def _make_ended(self, usage: Usage, certain: bool) -> Ended:
        code = self._exit_code()
        limit_cause = self._meter.end_cause()
        warnings = [*self._later_causes.values(), *self._meter.warnings()]
        for name, capture in (("stdout", self._spawned.stdout), ("stderr", self._spawned.stderr)):
            if capture.truncated:
                warnings.append(
                    f"log_truncated: {name} had {capture.bytes_read} bytes; start and end are kept"
                )
            if capture.store_error is not None:
                warnings.append(f"log_lost: {name} could not be stored: {capture.store_error}")
        reason: Reason | None
        if not certain:
            reason = Reason.AGENT_ERROR
            message = (
                f"the job's processes could not be killed within {self._death_timeout_s:g} s; "
                "its files are kept apart and nothing was collected"
            )
        elif self._cause is not None:
            reason, message = self._cause
            if limit_cause is not None and limit_cause.reason != reason:
                warnings.append(f"{limit_cause.reason}: {limit_cause.message}")
        elif limit_cause is not None:
            reason, message = limit_cause.reason, limit_cause.message
        elif code is None:
            reason = Reason.SANDBOX_ERROR
            message = "the sandbox ended without an exit code: " + (
                self._spawned.stderr.tail(3) or "it said nothing"
            )
        elif code != 0:
            reason, message = Reason.EXIT_CODE, f"run.sh ended with exit code {code}"
        else:
            reason, message = None, ""
        return Ended(code, reason, message, usage, tuple(warnings), certain)
