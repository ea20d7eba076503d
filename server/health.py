"""Whether the server can take new work, and how its parts are."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from server.domain.troubles import Trouble, TroubleKind
from server.loops import Supervisor
from server.stages.clean import Clean
from server.stages.results import Results
from server.stages.stage import Core
from server.store.data_folder import UNKNOWN
from shared.probe import Probe, is_silent
from shared.sqlite.files import DatabaseUnavailable
from shared.units.sizes import say_count


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk with the data folder, in bytes.

    Attributes:
        min_free: what uploads must leave.
    """

    free: int
    total: int
    min_free: int


log: structlog.stdlib.BoundLogger = structlog.get_logger()
_SILENT = TroubleKind.DATA_FOLDER_SILENT


class Health:
    """Checks the server."""

    def __init__(self, core: Core, supervisor: Supervisor, clean: Clean, waiting: Results) -> None:
        self._core, self._database, self._supervisor = core, core.database, supervisor
        self._clean, self._waiting = clean, waiting
        self._disk = Probe("the data folder", self._check_disk, core.clock)
        self._measured: Disk | None = None
        self._disk_troubles: list[Trouble] = []
        self._aside, self._is_aside = core.settings.server.data_dir / UNKNOWN, False
        self.started_at = core.clock.now()

    async def troubles(self) -> list[Trouble]:
        """What is wrong now; empty: all is well."""
        problems = [
            Trouble(TroubleKind.LOOP_STUCK, f"the {one.name} loop is stuck", one.name)
            for one in self._supervisor.loops
            if not one.healthy
        ]
        failure = self._database.failure
        if failure is not None:
            kind = TroubleKind.DATABASE_UNUSABLE
            if failure.damaged:
                kind = TroubleKind.DATABASE_DAMAGED
            elif failure.full:
                kind = TroubleKind.DATABASE_FULL
            problems.append(Trouble(kind, str(failure)))
        silent = [Trouble(_SILENT, text) for text in await self._disk.problems()]
        problems += silent or self._disk_troubles
        if self._waiting.hold_uploads():
            problems.append(Trouble(TroubleKind.RESULTS_WAITING, self._waiting.sentence()))
        return problems

    async def unready(self) -> dict[str, str]:
        """Why no uploads are taken: kind of trouble -> sentence."""
        return {one.kind.value: one.text for one in await self.troubles()}

    async def alive(self) -> bool:
        """For the watchdog, whether a restart would not help: every loop goes round, or waits for a
        disk that does not answer, for which a new process would wait, too.
        """
        stuck = self._supervisor.stuck()
        if stuck:
            log.error("loop.stuck", loops=stuck)
        return not stuck or any(one.kind is _SILENT for one in await self.troubles())

    def files_to_look_at(self) -> list[Trouble]:
        """What an operator should look at; new work is welcome all the same."""
        found = []
        if count := self._clean.orphans_left:
            text = f"{say_count(count, 'stored file')} without a row in the database"
            found.append(Trouble(TroubleKind.FILES_UNKNOWN, text))
        if self._is_aside:
            text = f"files were moved aside to {self._aside}"
            found.append(Trouble(TroubleKind.FILES_MOVED_ASIDE, text))
        return found

    async def disk(self) -> Disk | None:
        """How full it is; None: it does not answer."""
        return None if any(map(is_silent, await self._disk.problems())) else self._measured

    async def database_bytes(self) -> tuple[int, int] | tuple[None, None]:
        """Of its file, and those of them that are not in use; None: it cannot be read."""
        try:
            return await self._database.sizes()
        except DatabaseUnavailable:
            return None, None

    def _check_disk(self) -> list[str]:
        found, scratch = list[Trouble](), self._core.scratch
        try:
            free, total = scratch.free_bytes(), scratch.total_bytes()
            least = self._core.settings.server.least_free(total)
            self._measured = Disk(free, total, least)
            if free < least:
                found.append(Trouble(TroubleKind.DISK_FULL, "the disk is full"))
            scratch.check_writable()
            self._is_aside = self._aside.is_dir()
        except OSError as problem:
            text = f"the data folder cannot be written: {problem.strerror}"
            found.append(Trouble(TroubleKind.DATA_FOLDER_UNWRITABLE, text))
        self._disk_troubles = found
        return []
