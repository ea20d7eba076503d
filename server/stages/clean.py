"""Ended → Cleaned → deleted: remove jobs that have expired since they ended, and files that no row
refers to.

Row before files: a crash in between leaves orphans, never a job whose files are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from server.domain.errors import FerrymanError
from server.domain.jobs import FileKind
from server.stages.by_hand import Delete
from server.stages.stage import Core, Stage
from server.storage.scratch import Scratch
from server.store import changes, requests, retention
from shared.clock import SECOND, Micros
from shared.sql import Tx
from shared.sqlite.database import Database

log = structlog.get_logger()
_AT_ONCE: Final = 50
"""Jobs in a transaction, which overwrites the bytes of small contents while others wait."""
_FILES_AT_ONCE: Final = 1_000
_ORPHANS_EVERY_S: Final = 3_600.0
_ORPHAN_AGE_S: Final = 86_400.0
"""What is younger is not looked at: an operator who started with a wrong database has that long."""
_ORPHANS_A_SWEEP: Final = 100
_ORPHANS_SHARE: Final = 20
"""Of so many files one may be deleted in a sweep, at least one: more would say that the database is
the wrong one."""
_ORPHANS_REMEMBERED: Final = 1_000


class Clean(Stage):
    """The Cleaner.

    Args:
        delete: deletes ended jobs.

    Attributes:
        orphans_left: files without a row that the last sweep was not allowed to delete.
    """

    def __init__(self, core: Core, delete: Delete) -> None:
        super().__init__(core)
        self._finish = delete.finish
        self._orphans_due = self.core.clock.monotonic()
        self._unlisted: list[tuple[FileKind, str]] = []
        """Kinds of files that are still to be looked through for orphans, each behind a name."""
        self._files = self._unknown = 0
        self._found: dict[tuple[FileKind, str], None] = {}
        """The first of the old files without a row that this sweep has found."""
        self._found_before: frozenset[tuple[FileKind, str]] = frozenset()
        """Those of the sweep before."""
        self.orphans_left = 0

    async def run_once(self) -> int:
        """Some of everything, so that a stop does not have to wait for all of it. Returns how many
        jobs and files were removed.
        """
        now = self.core.clock.now()
        cleaned = await self._clean(now)
        deleted = await self._delete()
        forgotten = await self._forget(now)
        more = await self.core.database.write(_tidy, now)
        orphans = await self._remove_orphans()
        left = await self.core.database.maintain()
        if left or more or self._unlisted or max(cleaned, deleted, forgotten) >= _AT_ONCE:
            self.core.wakeups.cleaner.set()
        return cleaned + deleted + forgotten + orphans

    async def _clean(self, now: int) -> int:
        ids, files = await self.core.database.write(retention.clean_expired, now, _AT_ONCE)
        await self.core.storage.delete(files)
        if ids:
            log.info("jobs.cleaned", jobs=len(ids), job_ids=ids)
        return len(ids)

    async def _delete(self) -> int:
        """Jobs that could not be deleted when it was asked for, because they had not ended."""
        deleted = 0
        for job in await self.core.database.read(requests.to_delete, _AT_ONCE):
            try:
                await self._finish(job)
            except FerrymanError as problem:
                log.info("job.not_deleted", job_id=job.id, error=str(problem))
            else:
                deleted += 1
        return deleted

    async def _forget(self, now: int) -> int:
        forgotten = 0
        for name in await self.core.database.read(retention.cleaned_services):
            keep_s = self._service(name).forget_after_s
            if keep_s:
                before = now - round(keep_s * SECOND)
                forgotten += await self.core.database.write(
                    retention.forget, name, before, _AT_ONCE
                )
        return forgotten

    async def _remove_orphans(self) -> int:
        """Stored files whose row never came, or went first; some of them at a time.

        A file is deleted when it is older than a day by its own time, and had no row in two sweeps
        of this run, which are an hour apart whatever the clocks say; and only few in a sweep.
        """
        if self.core.clock.monotonic() >= self._orphans_due:
            self._unlisted = [(kind, "") for kind in FileKind]
            self._orphans_due = self.core.clock.monotonic() + _ORPHANS_EVERY_S
            self._files = self._unknown = 0
            self._found = {}
        elif not self._unlisted:
            return 0
        looked_at = 0
        while self._unlisted and looked_at < _FILES_AT_ONCE:
            kind, after = self._unlisted.pop()
            if names := await self.core.storage.list(kind, after):
                self._unlisted.append((kind, names[-1]))
                looked_at += len(names)
                await self._look_at(kind, names)
        return 0 if self._unlisted else await self._end_sweep()

    async def _in_use(self, names: Sequence[str]) -> set[str]:
        return await self.core.database.read(retention.files_in_use, names)

    async def _look_at(self, kind: FileKind, names: Sequence[str]) -> None:
        orphans = await self.core.storage.orphans(names, self._in_use)
        before = self.core.clock.now() - round(_ORPHAN_AGE_S * SECOND)
        old = await self.core.storage.stored_before(kind, orphans, before) if orphans else []
        self._files += len(names)
        self._unknown += len(old)
        room = _ORPHANS_REMEMBERED - len(self._found)
        self._found |= dict.fromkeys((kind, name) for name in old[:room])

    async def _end_sweep(self) -> int:
        """Delete what may be deleted of what this sweep and the one before have found."""
        most = max(1, min(_ORPHANS_A_SWEEP, self._files // _ORPHANS_SHARE))
        due = [file for file in self._found if file in self._found_before]
        removed = 0
        for kind in FileKind:
            chosen = [name for of, name in due[:most] if of is kind]
            removed += await self.core.storage.delete_orphans(kind, chosen, self._in_use)
        self._found_before = frozenset(self._found)
        self.orphans_left = self._unknown - removed if len(due) > most else 0
        if self.orphans_left:
            log.warning("orphans.kept", files=self.orphans_left, deleted=removed)
        elif removed:
            log.info("orphans.removed", files=removed)
        return removed


def _tidy(tx: Tx, now: Micros) -> bool:
    """In one commit; whether keys are still to be forgotten, or children to expire."""
    keys = retention.forget_old(tx, now)
    return retention.expire_children(tx, now) or keys


async def recover(database: Database, scratch: Scratch) -> None:
    """Remove the scratch files of earlier runs, and log what is resumed."""
    removed = await asyncio.to_thread(scratch.clear)
    taken_up = sum((await changes.totals_of(database)).agents.values())
    log.info("server.recovered", jobs=taken_up, half_files=removed)
