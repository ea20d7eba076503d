"""Whether the server can take new work, and how its parts are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from server.domain.troubles import Trouble, TroubleKind
from server.loops.runner import Supervisor
from server.ports import Disk, Scratch, Vitals
from shared.clock import Clock
from shared.probe import Probe
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable
from shared.units.sizes import say_count

_SILENT = TroubleKind.DATA_FOLDER_SILENT
_FULL = "the disk is full"
_UNWRITABLE = "the data folder cannot be written"


class Health:
    """Checks the server.

    Args:
        min_free: bytes of disk that uploads must leave.
        aside: the folder of files that were moved aside.
        unknown: how many stored files have no row, and may not be deleted yet.
        results_waiting: says that no upload is taken because results wait for room on the disk;
            empty: they do not, or not at all agents.
    """

    def __init__(
        self,
        database: Database,
        scratch: Scratch,
        supervisor: Supervisor,
        min_free: int,
        results_waiting: Callable[[], str],
        clock: Clock,
        *,
        aside: Path,
        unknown: Callable[[], int],
    ) -> None:
        self._aside, self._unknown, self._is_aside = aside, unknown, False
        self._database, self._scratch, self._supervisor = database, scratch, supervisor
        self._min_free, self._results_waiting = min_free, results_waiting
        self._disk = Probe("the data folder", self._check_disk, clock)
        self._measured: Disk | None = None
        self._started_at = clock.now()

    async def troubles(self) -> list[Trouble]:
        """What is wrong now; empty: all is well."""
        problems = [
            Trouble(TroubleKind.LOOP_STUCK, f"the {one.name} loop is stuck", one.name)
            for one in self._supervisor.loops()
            if one.stuck
        ]
        failure = self._database.failure
        if failure is not None:
            kind = TroubleKind.DATABASE_UNUSABLE
            if failure.damaged:
                kind = TroubleKind.DATABASE_DAMAGED
            elif failure.full:
                kind = TroubleKind.DATABASE_FULL
            problems.append(Trouble(kind, str(failure)))
        problems += [_of_disk(text) for text in await self._disk.problems()]
        if waiting := self._results_waiting():
            problems.append(Trouble(TroubleKind.RESULTS_WAITING, waiting))
        return problems

    def files_to_look_at(self) -> list[Trouble]:
        """What an operator should look at; new work is welcome all the same."""
        found = []
        if count := self._unknown():
            text = f"{say_count(count, 'stored file')} without a row in the database"
            found.append(Trouble(TroubleKind.FILES_UNKNOWN, text))
        if self._is_aside:
            text = f"files were moved aside to {self._aside}"
            found.append(Trouble(TroubleKind.FILES_MOVED_ASIDE, text))
        return found

    async def vitals(self) -> Vitals:
        """How its parts are now."""
        silent = any(_of_disk(one).kind is _SILENT for one in await self._disk.problems())
        try:
            size: int | None = await self._database.size()
            unused: int | None = await self._database.free_bytes()
        except DatabaseUnavailable:
            size = unused = None
        disk = None if silent else self._measured
        return Vitals(self._started_at, disk, size, unused, self._supervisor.loops())

    def _check_disk(self) -> list[str]:
        problems = []
        try:
            free, total = self._scratch.free_bytes(), self._scratch.total_bytes()
            least = self._min_free
            self._measured = Disk(free, total, least)
            if free < least:
                problems.append(_FULL)
            self._scratch.check_writable()
            self._is_aside = self._aside.is_dir()
        except OSError as problem:
            problems.append(f"{_UNWRITABLE}: {problem.strerror}")
        return problems


def _of_disk(text: str) -> Trouble:
    if text == _FULL:
        return Trouble(TroubleKind.DISK_FULL, text)
    if text.startswith(_UNWRITABLE):
        return Trouble(TroubleKind.DATA_FOLDER_UNWRITABLE, text)
    return Trouble(_SILENT, text)
