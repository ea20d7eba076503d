"""What the attempts of one agent share on this host: folders, threads, cgroups, disk images."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

import structlog

from client_agent.sandbox.host_limits import Host, probe_host
from client_agent.sandbox.kernel import cgroups
from client_agent.sandbox.kernel.work_folders import WorkFolders
from client_agent.sandbox.settings import SandboxSettings
from shared.clock import Clock

log: structlog.stdlib.BoundLogger = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")


class Removable(Protocol):
    """A quarantined workspace."""

    name: str

    def is_dead(self) -> bool: ...

    async def remove(self) -> None: ...


class HostResources:
    """Released by :meth:`close`.

    Args:
        home: the agent's directory. ``work/``, ``images/`` and ``quarantine/`` in it are used here.
    """

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.clock = clock
        self.separate_uids = os.geteuid() == 0
        """The agent is root: each job runs as the uid of its slot."""
        self.work_folders = WorkFolders(home, separate_uids=self.separate_uids)
        self._threads: ThreadPoolExecutor | None = None
        self.log_threads = ThreadPoolExecutor(2, "sandbox-logs")
        """Separate threads, because other work may take seconds."""
        self._host: Host | None = None
        self._removals: set[asyncio.Task[None]] = set()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread that sees the mounts of :attr:`work_folders`."""
        if self._threads is None:
            _ = self.work_folders.base  # new threads inherit this thread's mount namespace
            self._threads = ThreadPoolExecutor(4, "sandbox")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    @property
    def host(self) -> Host:
        """What this host can enforce. Raises SandboxBroken."""
        if self._host is None:
            base = self.work_folders.base
            self._host = probe_host(
                self.work_folders.name,
                self.work_folders.images,
                base,
                self.settings,
                root=self.separate_uids,
            )
        return self._host

    def remove_when_dead(self, workspace: Removable) -> None:
        """Remove a quarantined workspace, which takes space, once its processes are dead. A process
        that waits for a slow disk dies later than the agent waits for it."""
        task = asyncio.create_task(self._poll_until_removed(workspace), name="remove when dead")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _poll_until_removed(self, workspace: Removable) -> None:
        logged = False
        while True:
            try:
                if workspace.is_dead():
                    await workspace.remove()
                    log.info("attempt.removed_late", attempt=workspace.name)
                    return
            except Exception:
                if not logged:
                    logged = True
                    log.exception("attempt.not_removed", attempt=workspace.name)
            await self.clock.sleep(self.settings.death_timeout_s)

    async def close(self) -> None:
        for task in list(self._removals):
            task.cancel()
            await asyncio.wait({task})
        host, self._host = self._host, None
        if host is not None:
            if host.images is not None:
                await self.in_thread(host.images.close)
            if host.hierarchy is not None:
                # a group is busy if its processes would not die
                with contextlib.suppress(OSError):
                    for folder in dict.fromkeys(host.hierarchy.folders.values()):
                        cgroups.remove_group(folder)
                    self.work_folders.record_groups(())
        self.work_folders.close()
        self.log_threads.shutdown(wait=False)
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
