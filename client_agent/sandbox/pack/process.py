"""One attempt of a pack: supervised as any other, but its sandbox may outlive it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.base import Ended, Launch, SandboxSettings
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.limits.meter import Meter
from client_agent.sandbox.pack import driver
from client_agent.sandbox.pack.driver import SHM
from client_agent.sandbox.process.chain import TEMPORARY
from client_agent.sandbox.process.supervisor import SpawnedProcesses, SupervisedProcess
from shared.clock import Clock
from shared.wire import Reason, Usage

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

IN_MEMORY: Final = (TEMPORARY[0], SHM)

Attributes = tuple[object, ...]


def attributes_of(pid: int) -> Attributes | None:
    """What the processes that it starts get from it; None: it cannot be read."""
    try:
        return (
            Path(f"/proc/{pid}/limits").read_bytes(),
            os.getpriority(os.PRIO_PROCESS, pid),
            os.sched_getscheduler(pid),
            frozenset(os.sched_getaffinity(pid)),
            *(_top_folder(f"/proc/{pid}/root{one}") for one in IN_MEMORY),
        )
    except OSError:
        return None


def _top_folder(path: str) -> tuple[object, ...]:
    status = Path(path).stat()
    return status.st_mode, status.st_uid, status.st_gid, frozenset(os.listxattr(path))


def reaped_cpu_s(pid: int) -> float:
    """CPU time of those of its children that have ended, and of theirs."""
    fields = pidfd.stat_fields(pid)
    return 0.0 if fields is None else sum(map(int, fields[13:15])) / _TICKS_PER_S


def is_alone(init: int) -> bool:
    """Whether the init of a pid namespace, which waits for a command, has no children: then its
    namespace has no other process, because orphans become its children."""
    return not pidfd.descendants(init)


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_ANSWER: Final = 200


class PackedProcess(SupervisedProcess):
    """Implements :class:`client_agent.sandbox.base.Process`.

    Only an attempt that ends by itself leaves its sandbox to the next one. Whatever else ends it
    (a limit, its user, a stopping agent, a driver that does not answer as it should), ends the
    sandbox, as that of an attempt alone.

    Args:
        attributes: of the driver, when it had run nothing.
        release: closes the agent's own write ends of the pipes, or they would never be at an end.

    Attributes:
        reusable: it has ended, and the driver can start the next one.
        sandbox_ended: its sandbox ended with it.
    """

    def __init__(
        self,
        spawned: SpawnedProcesses,
        launch: Launch,
        meter: Meter,
        clock: Clock,
        settings: SandboxSettings,
        *,
        attributes: Attributes | None,
        release: Callable[[], None],
    ) -> None:
        self.reusable = self.sandbox_ended = False
        self._attributes, self._release = attributes, release
        self._buffer = b""
        self._answer: driver.Answer | None = None
        loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[None] = loop.create_future()
        self._cpu_before_s = 0.0
        super().__init__(spawned, launch, meter, clock, settings.death_timeout_s)

    def _open_gate(self) -> None:
        command = driver.command(self._launch.variables)
        self._cpu_before_s = reaped_cpu_s(self.pid)
        os.set_blocking(self._spawned.gate, False)
        asyncio.get_running_loop().add_reader(self._spawned.gate, self._on_answer)
        try:
            written = os.write(self._spawned.gate, command)
        except OSError:
            written = 0
        if written != len(command):
            self.stop(Reason.SANDBOX_ERROR, "the sandbox's driver takes no command", grace=False)

    def _on_answer(self) -> None:
        try:
            data = os.read(self._spawned.gate, _MAX_ANSWER)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._buffer += data
        if data and b"\n" not in self._buffer and len(self._buffer) < _MAX_ANSWER:
            return
        self._stop_listening()
        line, end, rest = self._buffer.partition(b"\n")
        answer = driver.parse(line) if end and not rest else None
        if answer is not None and answer.is_of(self._launch.variables):
            self._answer = answer
            self._answered.set_result(None)
        elif data:
            log.error("pack.wrong_answer", init=self.pid)
            self.stop(Reason.SANDBOX_ERROR, "the sandbox's driver gave a wrong answer", grace=False)

    def _stop_listening(self) -> None:
        if self._spawned.gate >= 0:
            asyncio.get_running_loop().remove_reader(self._spawned.gate)

    def _close_gate(self) -> None:
        self._stop_listening()
        super()._close_gate()

    async def _supervise(self) -> Ended:
        await asyncio.wait({self._init_dead, self._answered}, return_when=asyncio.FIRST_COMPLETED)
        # The agent looks for itself whether all processes of the attempt are dead.
        if not self._answered.done() or self._killed or not is_alone(self.pid):
            self.sandbox_ended = True
            self._kill()
            self._release()
            return await super()._supervise()
        # From here on its end is decided: stop() has no effect any more.
        self._init_dead.cancel()
        asyncio.get_running_loop().remove_reader(self._spawned.init_fd)
        self._cancel_timers()
        try:
            return await self._end_alone()
        finally:
            self._cancel_timers()

    def _cancel_timers(self) -> None:
        for timer in list(self._timers):
            timer.cancel()

    async def _end_alone(self) -> Ended:
        """Its processes are dead; the driver waits for the next command."""
        assert self._answer is not None, "it has answered"
        wall_s = max(0.0, self._clock.monotonic() - (self._started_at or 0.0))
        cpu_s = max(0.0, reaped_cpu_s(self.pid) - self._cpu_before_s)
        certain = await self._meter.stop()
        self._after(self._death_timeout_s, self._give_up)
        for capture in (self._spawned.stdout, self._spawned.stderr):
            capture.finish()
            certain = await self._wait_or_give_up(capture.closed) and certain
        metered_cpu_s, peak = self._meter.usage()
        used = Usage(
            wall_s=round(wall_s, 6),
            cpu_s=round(cpu_s if metered_cpu_s is None else metered_cpu_s, 6),
            peak_memory_bytes=peak,
        )
        ended = self._make_ended(used, certain)
        self.reusable = (
            self._answer.clean
            and certain
            and not self._killed
            and self._cause is None
            and self._meter.end_cause() is None
            and self._attributes is not None
            and self._attributes == attributes_of(self.pid)
        )
        return ended

    def _exit_code(self) -> int | None:
        """What the init itself ends with says nothing of run.sh."""
        return None if self._answer is None else self._answer.status
