"""Simulated crashes of an agent at a chosen step of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_agent.storage.folders import Folders
from shared.sql import Change
from shared.sqlite.database import Database
from tests.kit.agent import Rig


class SimulatedCrash(BaseException):
    """kill -9: no handler of the program may act on it."""


class CrashPoint:
    """Crashes at the step after ``number`` steps; from then on every step fails.

    Attributes:
        steps: names of the steps that were taken.
        crashed: set when it has crashed.
    """

    def __init__(self, number: int) -> None:
        self.steps: list[str] = []
        self.crashed = asyncio.Event()
        self._number = number
        self._loop = asyncio.get_running_loop()

    def step(self, name: str) -> None:
        if len(self.steps) >= self._number:
            self._loop.call_soon_threadsafe(self.crashed.set)
            raise SimulatedCrash(name)
        self.steps.append(name)


class CrashingFolders(Folders):
    """Each change of a file is two steps: before it and after it."""

    def __init__(self, home: Path, token: Callable[[], str], crash_point: CrashPoint) -> None:
        super().__init__(home, token)
        self._crash_point = crash_point

    def seal_bundle(self, staged: Path) -> str:
        self._crash_point.step("before seal_bundle")
        name = super().seal_bundle(staged)
        self._crash_point.step("after seal_bundle")
        return name

    def seal_result(self, staged: Path, payload_id: int) -> None:
        self._crash_point.step("before seal_result")
        super().seal_result(staged, payload_id)
        self._crash_point.step("after seal_result")

    def remove_file(self, path: Path) -> None:
        self._crash_point.step(f"before removing {path.parent.name}")
        super().remove_file(path)
        self._crash_point.step(f"after removing {path.parent.name}")


def crashing(database: Database, crash_point: CrashPoint) -> Database:
    """The same database; each change is two steps: before it and after its commit."""
    write = database.write

    async def stepping_write(
        change: Change[Any], committed: Callable[[Any], None] | None = None
    ) -> Any:
        crash_point.step("before commit")
        value = await write(change, committed)
        crash_point.step("after commit")
        return value

    database.write = stepping_write  # type: ignore[method-assign]
    return database


class CrashingRig(Rig):
    """An agent that dies at one step; what it left on disk is opened by another rig."""

    crash_point: CrashPoint

    async def open_with(self, crash_point: CrashPoint) -> None:
        self.crash_point = crash_point
        self.sandbox.hook = crash_point.step
        await self.open()

    async def open_database(self) -> Database:
        return crashing(await super().open_database(), self.crash_point)

    def open_folders(self) -> Folders:
        return CrashingFolders(self.home, self.token, self.crash_point)

    async def die(self) -> None:
        """End its tasks, and close its files."""
        tasks = self.runner._tasks if self.opened else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shut()
