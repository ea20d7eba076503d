"""What backends that run their processes on this very host have in common."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.base import SandboxBroken, SelfTestReport
from client_agent.sandbox.host_resources import HostResources
from client_agent.sandbox.kernel import cgroup_tree, cgroups, pidfd
from client_agent.sandbox.settings import SandboxSettings
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import Clock
from shared.wire import Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_NAME: Final = re.compile(r"[a-z0-9-]{1,100}")
_SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SELF_TEST_SLOT: Final = -1
"""Its uid is nobody else's, so that the test can run beside jobs."""


class HostSandbox(HostResources, ABC):
    """Clears what the last run left, and makes workspaces."""

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        super().__init__(clock, home, settings)
        self._clearing = asyncio.Lock()
        self.cleared = False
        """What the last run left is gone."""

    @abstractmethod
    async def self_test(self) -> SelfTestReport: ...

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
            for folder in self.work_folders.leftovers():
                if not await self._kill_recorded_init(folder):
                    log.warning("attempt.not_dead", folder=str(folder))
                    alive.append(self.work_folders.quarantine(folder))
            await self._clear_cgroups()
            await self.in_thread(self.work_folders.clear, alive)
            self.cleared = True

    async def prepare(self, name: str, slot: int, limits: Limits) -> HostWorkspace:
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name for an attempt: {name!r}")
        await self.clear()
        self.work_folders.check_free(self.settings.free_floor)
        uid = self.settings.uid_base + slot if self.separate_uids else None
        workspace = self.workspace(name, uid, limits)
        await workspace.make()
        return workspace

    async def check_required_limits(self) -> None:
        """Raises SandboxBroken where the operator wants hard limits and some are soft."""
        await self.clear()  # before the host is examined, which leaves files that stay
        if self.settings.require_hard_limits and self.host.soft_limits:
            soft = ", ".join(self.host.soft_limits)
            advice = " ".join(self.host.advice)
            raise SandboxBroken(f"require_hard_limits is set, but soft here are {soft}. {advice}")

    async def _kill_recorded_init(self, folder: Path) -> bool:
        """Whether it is dead."""
        fd = self.work_folders.recorded_init(folder)
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

    async def _clear_cgroups(self) -> None:
        """Kill what is left in the cgroups of the last run, and remove them."""
        recorded, current = self.work_folders.recorded_groups(), list[Path]()
        with contextlib.suppress(cgroup_tree.CgroupsUnavailable):
            hierarchy = cgroup_tree.find_hierarchy(self.work_folders.name)
            cgroup_tree.remove_empty_groups(hierarchy)
            current = list(dict.fromkeys(hierarchy.folders.values()))
        deadline = self.clock.monotonic() + self.settings.death_timeout_s
        for top in dict.fromkeys([*recorded, *current]):
            for folder in cgroups.subgroups(top):
                while cgroups.kill_group(folder) and self.clock.monotonic() <= deadline:
                    await self.clock.sleep(0.005)
                while not self._removed(folder) and self.clock.monotonic() <= deadline:
                    await self.clock.sleep(0.005)
                if folder.exists():
                    log.warning("cgroup.not_removed", cgroup=str(folder))
            if top not in current and not self._removed(top):
                current.append(top)  # the next start tries again
        self.work_folders.record_groups(current)

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
