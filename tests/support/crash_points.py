"""Cutting the power of an agent at one step of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_agent.storage.folders import Folders
from shared.sql import Change
from shared.sqlite.database import Database
from tests.support.agent import Rig


class SimulatedCrash(BaseException):
    """kill -9: no handler of the program may act on it."""


class CrashPoint:
    """Blows at the ``number``-th step; from then on every step of the dead process fails.

    Attributes:
        steps: names of the steps that were taken.
        blown: set when it has blown.
    """

    def __init__(self, number: int) -> None:
        self.steps: list[str] = []
        self.blown = asyncio.Event()
        self._number = number
        self._loop = asyncio.get_running_loop()

    def step(self, name: str) -> None:
        if len(self.steps) >= self._number:
            self._loop.call_soon_threadsafe(self.blown.set)
            raise SimulatedCrash(name)
        self.steps.append(name)


class CrashingFolders(Folders):
    """Every change of a file is a step, and so is the moment after it."""

    def __init__(self, home: Path, token: Callable[[], str], fuse: CrashPoint) -> None:
        super().__init__(home, token)
        self._fuse = fuse

    def seal_bundle(self, staged: Path) -> str:
        self._fuse.step("before seal_bundle")
        name = super().seal_bundle(staged)
        self._fuse.step("after seal_bundle")
        return name

    def seal_result(self, staged: Path, payload_id: int) -> None:
        self._fuse.step("before seal_result")
        super().seal_result(staged, payload_id)
        self._fuse.step("after seal_result")

    def remove_file(self, path: Path) -> None:
        self._fuse.step(f"before discarding {path.parent.name}")
        super().remove_file(path)
        self._fuse.step(f"after discarding {path.parent.name}")


def crashing(database: Database, fuse: CrashPoint) -> Database:
    """The same database; each change is a step, before it and after its commit."""
    write = database.write

    async def fused_write(change: Change[Any]) -> Any:
        fuse.step("before commit")
        value = await write(change)
        fuse.step("after commit")
        return value

    database.write = fused_write  # type: ignore[method-assign]
    return database


class CrashingRig(Rig):
    """An agent that dies at one step; what it left on disk is opened by another rig."""

    fuse: CrashPoint

    async def open_with(self, fuse: CrashPoint) -> None:
        self.fuse = fuse
        self.sandbox.hook = fuse.step
        await self.open()

    async def open_database(self) -> Database:
        return crashing(await super().open_database(), self.fuse)

    def open_folders(self) -> Folders:
        return CrashingFolders(self.home, self.token, self.fuse)

    async def die(self) -> None:
        """Nothing of it acts any more."""
        tasks = self.runner._tasks if self.opened else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shut()
