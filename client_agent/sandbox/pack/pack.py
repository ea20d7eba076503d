"""A pack: one sandbox start, in which attempts run one after the other, each as if it were alone.

All attempts of a pack are one user's, of one array, with the same limits. Between two of them every
process is dead but the driver, the job's directory and the file systems in memory are empty, and
the counters of the limits begin at 0. What cannot be made as new ends the pack: the next attempt
gets a new sandbox.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple

import structlog

from client_agent.sandbox.base import HARD, Launch, Process, SandboxBroken
from client_agent.sandbox.host_resources import HostResources
from client_agent.sandbox.limits import usage
from client_agent.sandbox.limits.meter import Meter
from client_agent.sandbox.pack import driver, process
from client_agent.sandbox.pack.process import PackedProcess
from client_agent.sandbox.process.log_capture import LogCapture
from client_agent.sandbox.process.supervisor import SpawnedProcesses, SupervisedProcess
from client_agent.sandbox.workspace import HostWorkspace
from client_agent.storage.remove_tree import empty_folder

log: structlog.stdlib.BoundLogger = structlog.get_logger()

UNSAFE: Final = frozenset({"ptrace", "process_vm"})
"""With these calls allowed, a job could control the driver."""


class DrivenWorkspace(HostWorkspace, ABC):
    """One in which a driver can be started."""

    @abstractmethod
    async def start_driver(self, launch: Launch) -> tuple[SpawnedProcesses, list[int]]:
        """Start a driver, which waits for its first command. Returns further descriptors of its
        pipes: both reads, then both writes. Raises SandboxBroken."""


class _PipeState(NamedTuple):
    """What a job can change of a pipe for all who have it."""

    flags: int
    size: int
    mode: int

    @classmethod
    def of(cls, fd: int) -> _PipeState:
        flags, size = fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        return cls(flags, size, os.fstat(fd).st_mode & 0o7777)

    def restore(self, fd: int) -> None:
        """Raises OSError: the kernel does not give it so much memory any more."""
        now = self.of(fd)
        if now.flags != self.flags:
            fcntl.fcntl(fd, fcntl.F_SETFL, self.flags)
        if now.size != self.size:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, self.size)
        if now.mode != self.mode:
            os.fchmod(fd, self.mode)


class Pack:
    """Implements :class:`client_agent.sandbox.base.Pack`.

    Args:
        workspace: made already.
    """

    def __init__(self, resources: HostResources, workspace: DrivenWorkspace) -> None:
        self._resources, self._workspace = resources, workspace
        self.usable = True
        self._image_use = self._used()
        self._mode = os.fstat(workspace.fd).st_mode & 0o7777
        self._spawned: SpawnedProcesses | None = None
        self._kept: list[int] = []
        """Ends of the job's pipes that stay open: both reads, then both writes."""
        self._pipes: list[_PipeState] = []
        """Of both writes, as they were when no job had had them."""
        self._attributes: process.Attributes | None = None
        self._common: Mapping[str, str] = {}
        self._launch: Launch | None = None

    def workspace(self) -> PackedWorkspace:
        """For the next attempt; the one before is destroyed."""
        return PackedWorkspace(self, self._workspace)

    async def close(self) -> None:
        """End the driver, and remove everything. Repeats are harmless."""
        self.usable = False
        spawned, launch = self._spawned, self._launch
        if spawned is not None and launch is not None:
            self._spawned = None
            self._release()
            clock, settings = self._resources.clock, self._resources.settings
            meter = Meter([], clock, settings.poll_s, threading.Event())
            ending = SupervisedProcess(spawned, launch, meter, clock, settings.death_timeout_s)
            ending.stop(None, "", grace=False)
            self._workspace.process = ending
        await self._workspace.destroy()

    async def start(self, launch: Launch) -> PackedProcess:
        """Up to its closed gate. Raises SandboxBroken, or OSError."""
        if launch.grant.allow & UNSAFE:
            raise SandboxBroken("jobs that may control other processes cannot be packed")
        workspace = self._workspace
        if self._spawned is None:
            self._spawned = await self._start_driver(launch)
        elif driver.common(launch.variables) != self._common:
            raise SandboxBroken("an attempt of a pack has other variables than the first")
        else:
            self._next(self._spawned, launch)
        self._launch = launch
        clock, settings = self._resources.clock, self._resources.settings
        workspace.process = process = PackedProcess(
            self._spawned,
            launch,
            workspace.meter(launch),
            clock,
            settings,
            attributes=self._attributes,
            release=self._release,
        )
        return process

    async def _start_driver(self, launch: Launch) -> SpawnedProcesses:
        spawned, self._kept = await self._workspace.start_driver(launch)
        self._pipes = [_PipeState.of(fd) for fd in self._kept[2:]]
        self._common = driver.common(launch.variables)
        self._attributes = process.attributes_of(spawned.init)
        return spawned

    def _next(self, spawned: SpawnedProcesses, launch: Launch) -> None:
        """Make counters and logs ready for the next attempt."""
        workspace = self._workspace
        if workspace.group is not None:
            workspace.group.restart_counters()
        if workspace.enforcement.get("cpu") != HARD:
            workspace.cpu_before_s = usage.process_usage(spawned.init).cpu_s
        logs = workspace.logs(launch)
        out_r, err_r, *_ = self._kept
        stdout = LogCapture(os.dup(out_r), launch.stdout, "stdout", logs)
        try:
            spawned.stderr = LogCapture(os.dup(err_r), launch.stderr, "stderr", logs)
        except BaseException:
            stdout.stop()
            raise
        spawned.stdout = stdout

    async def after(self, attempt: PackedProcess | None) -> None:
        """An attempt is over and collected; None: it was not started."""
        if attempt is not None:
            await attempt.wait()
        if attempt is None or attempt.reusable:
            try:
                if await self._resources.in_thread(self._empty):
                    return
            except OSError as problem:
                log.warning("pack.not_emptied", attempt=self._workspace.name, error=str(problem))
        elif attempt.sandbox_ended:
            self._spawned = None
        await self.close()

    def _empty(self) -> bool:
        """Empty the job's directory, and make the pipes as they were. Returns whether all is as
        new. Blocking."""
        for pipe_end, state in zip(self._kept[2:], self._pipes, strict=False):
            state.restore(pipe_end)
        image, fd = self._workspace.image, self._workspace.fd
        if image is not None and not image.worth_emptying():
            return False
        os.fchmod(fd, 0o700)
        empty_folder(fd)
        os.fchmod(fd, self._mode)
        return self._used() == self._image_use and not os.listxattr(fd)

    def _used(self) -> tuple[int, int]:
        image = self._workspace.image
        return (0, 0) if image is None else image.used()

    def _release(self) -> None:
        kept, self._kept = self._kept, []
        for fd in kept:
            os.close(fd)


class PackedWorkspace:
    """Implements :class:`client_agent.sandbox.base.Workspace` for one attempt of a pack."""

    def __init__(self, pack: Pack, workspace: DrivenWorkspace) -> None:
        self._pack = pack
        self.path, self.fd, self.enforcement = workspace.path, workspace.fd, workspace.enforcement
        self.uid, self.gid, self.seen_as = workspace.uid, workspace.gid, workspace.seen_as
        self._process: PackedProcess | None = None
        self._destroyed = False

    async def start(self, launch: Launch) -> Process:
        self._process = await self._pack.start(launch)
        return self._process

    async def destroy(self) -> None:
        if not self._destroyed:
            self._destroyed = True
            await asyncio.shield(self._pack.after(self._process))
