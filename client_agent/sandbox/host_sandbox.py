"""What backends that run their processes on this very host have in common."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import structlog

from client_agent.sandbox.base import Report, SandboxBroken
from client_agent.sandbox.host import Host, examine
from client_agent.sandbox.kernel import cgroup_tree, cgroups, pidfd
from client_agent.sandbox.kernel.work_folders import Places
from client_agent.sandbox.settings import SandboxSettings
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import Clock
from shared.wire import Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")
_NAME: Final = re.compile(r"[a-z0-9-]{1,100}")
_SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SELF_TEST_SLOT: Final = -1
"""Its uid is nobody else's, so that the test can run beside jobs."""


class HostSandbox(ABC):
    """Directories, disk images, cgroups and what the last run left of them.

    Args:
        home: the agent's directory; ``work/``, ``images/`` and ``quarantine/`` in it are ours.
    """

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.clock = clock
        self.drop = os.geteuid() == 0
        """The agent is root: jobs run as a uid of their slot."""
        self.places = Places(home, drop=self.drop)
        self._threads: ThreadPoolExecutor | None = None
        self.log_threads = ThreadPoolExecutor(2, "sandbox-logs")
        """Apart from other work, some of which takes seconds."""
        self._host: Host | None = None
        self._clearing = asyncio.Lock()
        self._removals: set[asyncio.Task[None]] = set()
        self.cleared = False
        """What the last run left is gone."""

    @abstractmethod
    async def self_test(self) -> Report: ...

    @abstractmethod
    def workspace(self, name: str, uid: int | None, limits: Limits) -> HostWorkspace:
        """The workspace of one attempt, not made yet."""

    async def clear(self) -> None:
        """Once in a life, before anything else: kill, then unmount, then remove. In that order
        nothing is pulled from under a live job.

        What would not die (it waits for a disk, say, with its SIGKILL before it) keeps its folder
        and its cgroup until the next start, and does not keep the agent from working.
        """
        async with self._clearing:
            if self.cleared:
                return
            alive = []
            for folder in self.places.left_over():
                if not await self._kill_recorded(folder):
                    log.warning("attempt.not_dead", folder=str(folder))
                    alive.append(self.places.quarantine(folder))
            await self._clear_groups()
            await self.in_thread(self.places.clear, alive)
            self.cleared = True

    async def prepare(self, name: str, slot: int, limits: Limits) -> HostWorkspace:
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name for an attempt: {name!r}")
        await self.clear()
        self.places.check_free(self.settings.free_floor)
        uid = self.settings.uid_base + slot if self.drop else None
        workspace = self.workspace(name, uid, limits)
        await workspace.make()
        return workspace

    def remove_later(self, workspace: HostWorkspace) -> None:
        """Remove what was put aside as soon as its processes are dead after all: whoever waits for
        a slow disk may just need longer than we do, and what is put aside takes space."""
        task = asyncio.create_task(
            self._remove_late(workspace), name=f"remove {workspace.name} late"
        )
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _remove_late(self, workspace: HostWorkspace) -> None:
        said = False
        while True:
            try:
                if workspace.is_dead():
                    await workspace.remove()
                    log.info("attempt.removed_late", attempt=workspace.name)
                    return
            except Exception:
                if not said:
                    said = True
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
                # in use: processes that would not die, see the quarantine
                with contextlib.suppress(OSError):
                    for folder in dict.fromkeys(host.hierarchy.folders.values()):
                        cgroups.remove_group(folder)
                    self.places.record_groups(())
        self.places.close()
        self.log_threads.shutdown(wait=False)
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread that sees the mounts of :attr:`places`."""
        if self._threads is None:
            _ = self.places.base  # threads inherit the mount namespace of whoever starts them
            self._threads = ThreadPoolExecutor(4, "sandbox")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    @property
    def host(self) -> Host:
        """What can be enforced here.

        Raises:
            SandboxBroken
        """
        if self._host is None:
            base = self.places.base
            self._host = examine(
                self.places.name, self.places.images, base, self.settings, root=self.drop
            )
        return self._host

    async def check_hard(self) -> None:
        """Raises SandboxBroken where the operator wants hard limits and some are soft."""
        await self.clear()  # before the host is examined, which leaves files that stay
        if self.settings.require_hard_limits and self.host.soft:
            raise SandboxBroken(
                f"require_hard_limits is set, but soft here are {', '.join(self.host.soft)}. "
                + " ".join(self.host.advice)
            )

    async def _kill_recorded(self, folder: Path) -> bool:
        """Whether it is dead."""
        fd = self.places.recorded_init(folder)
        if fd is None:
            return True
        try:
            pidfd.kill(fd)
            dead = pidfd.watch(fd)
            timer = asyncio.create_task(self.clock.sleep(self.settings.death_timeout_s))
            await asyncio.wait({dead, timer}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            return dead.done()
        finally:
            pidfd.close(fd)

    async def _clear_groups(self) -> None:
        """Kill what is left in the cgroups of the last run, and remove them."""
        recorded, current = self.places.recorded_groups(), list[Path]()
        with contextlib.suppress(cgroup_tree.NoCgroups):
            hierarchy = cgroup_tree.find(self.places.name)
            cgroup_tree.tidy(hierarchy)
            current = list(dict.fromkeys(hierarchy.folders.values()))
        deadline = self.clock.monotonic() + self.settings.death_timeout_s
        for top in dict.fromkeys([*recorded, *current]):
            for folder in cgroups.below(top):
                while cgroups.kill_group(folder) and self.clock.monotonic() <= deadline:
                    await self.clock.sleep(0.005)
                while not self._removed(folder) and self.clock.monotonic() <= deadline:
                    await self.clock.sleep(0.005)
                if folder.exists():
                    log.warning("cgroup.not_removed", cgroup=str(folder))
            if top not in current and not self._removed(top):
                current.append(top)  # the next start tries again
        self.places.record_groups(current)

    def _removed(self, folder: Path) -> bool:
        """The last process leaves its cgroup a moment after its death."""
        try:
            cgroups.remove_group(folder)
        except OSError:
            return False
        return True


def find_program(program: str, package: str) -> str:
    """Absolute path of a program of the host.

    Raises:
        SandboxBroken: it is not installed.
    """
    found = shutil.which(program, path=_SAFE_PATH)
    if found is None:
        raise SandboxBroken(
            f"{program} is not installed: apt install {package}, or dnf install {package}"
        )
    return found
