"""What the backends have in common that run jobs as processes of this host."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.base import Ahead, SandboxBroken, SandboxSettings, SelfTestReport
from client_agent.sandbox.host_resources import HostResources
from client_agent.sandbox.kernel import cgroup_tree, cgroups, pidfd
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import Clock
from shared.wire import Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_NAME: Final = re.compile(r"[a-z0-9-]{1,100}")
_SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SELF_TEST_SLOT: Final = -1
"""No job has its uid, so the self-test can run at the same time as jobs."""


class HostSandbox(HostResources, ABC):
    """Removes what the previous run left, and makes workspaces."""

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        super().__init__(clock, home, settings)
        self._clearing = asyncio.Lock()
        self.cleared = False
        """Whether what the previous run left is removed."""

    @abstractmethod
    async def self_test(self) -> SelfTestReport: ...

    @abstractmethod
    def workspace(self, name: str, uid: int | None, limits: Limits) -> HostWorkspace:
        """The workspace of one attempt; its folder is not made yet."""

    async def clear(self) -> None:
        """Kill the processes, then remove the cgroups and folders of the previous run. This is done
        once, before anything else.

        A process that does not die, for example because it waits for a disk, keeps its folder and
        its cgroup until the next start. The agent works nevertheless.
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

    async def prepare(
        self, name: str, slot: int, limits: Limits, ahead: Ahead | None = None
    ) -> HostWorkspace:
        del ahead
        uid = self.settings.uid_base + slot if self.separate_uids else None
        return await self.make_workspace(name, uid, limits)

    async def make_workspace(self, name: str, uid: int | None, limits: Limits) -> HostWorkspace:
        """A workspace whose folder is made. Raises SandboxBroken or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name for an attempt: {name!r}")
        await self.clear()
        self.work_folders.check_free(self.settings.free_floor)
        workspace = self.workspace(name, uid, limits)
        await workspace.make()
        return workspace

    async def check_required_limits(self) -> None:
        """Raises SandboxBroken if the operator requires hard limits and some are soft."""
        await self.clear()  # before the host is probed, because that makes files that stay
        if self.settings.require_hard_limits and self.host.soft_limits:
            soft = ", ".join(self.host.soft_limits)
            advice = " ".join(self.host.advice)
            raise SandboxBroken(f"require_hard_limits is set, but soft here are {soft}. {advice}")

    async def _kill_recorded_init(self, folder: Path) -> bool:
        """Kill the init recorded in ``folder``; whether it is dead."""
        fd = self.work_folders.open_recorded_init(folder)
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
        """Kill what is left in the cgroups of the previous run, and remove them."""
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
        """Try to remove a cgroup. The last process leaves it a moment after its death."""
        try:
            cgroups.remove_group(folder)
        except OSError:
            return False
        return True


def find_program(program: str, package: str) -> str:
    """Absolute path of a program of the host. Raises SandboxBroken if it is not installed."""
    path = shutil.which(program, path=_SAFE_PATH)
    if path is None:
        raise SandboxBroken(
            f"{program} is not installed: apt install {package}, or dnf install {package}"
        )
    return path
