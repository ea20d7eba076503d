"""Ended → Cleaned → deleted: remove jobs that have expired since they ended, and files that no row
refers to.

Row before files: a crash in between leaves orphans, never a job whose files are gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from server.domain import ending
from server.domain.errors import FerrymanError
from server.domain.files import FileKind
from server.domain.jobs import Job
from server.ports import RunningServers
from server.stages.stage import Resources, Stage
from shared.clock import SECOND

log = structlog.get_logger()
_AT_ONCE: Final = 200
_FILES_AT_ONCE: Final = 1_000
_KEYS_KEPT_S: Final = 86_400.0
_UPLOADED_KEPT_S: Final = 31 * 86_400.0
_ORPHANS_EVERY_S: Final = 3_600.0


class Clean(Stage):
    """The Cleaner.

    Args:
        running_servers: the runs of servers that are alive; what they store is no orphan.
        finish: deletes an ended job.
        more: called when a sweep has left something to the next one, which should come at once.
    """

    def __init__(
        self,
        resources: Resources,
        running_servers: RunningServers,
        finish: Callable[[Job], Awaitable[None]],
        more: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(resources)
        self._running_servers, self._finish, self._more = running_servers, finish, more
        self._orphans_due = self._clock.monotonic()
        self._unlisted: list[tuple[FileKind, str]] = []
        """Kinds of files that are still to be looked through for orphans, each behind a name."""

    async def run_once(self) -> int:
        """Some of everything, so that a stop does not have to wait for all of it.

        Returns:
            How many jobs and files were removed.
        """
        now = self._clock.now()
        expired = await self._jobs.expired(now, _AT_ONCE)
        cleaned = await self._clean(expired, now) if expired else 0
        deleted = await self._delete()
        forgotten = await self._forget(now)
        await self._jobs.forget_idempotency_keys(now - round(_KEYS_KEPT_S * SECOND))
        await self._jobs.forget_uploaded(now - round(_UPLOADED_KEPT_S * SECOND))
        await self._jobs.forget_tickets(now)
        orphans = await self._remove_orphans()
        left = await self._jobs.maintain()
        if left or self._unlisted or max(len(expired), deleted, forgotten) >= _AT_ONCE:
            self._more()
        return cleaned + deleted + forgotten + orphans

    async def _clean(self, expired: list[Job], now: int) -> int:
        cleaned, files = await self._jobs.clean([ending.expired(job, now) for job in expired])
        await self._storage.delete(files)
        if cleaned:
            log.info("jobs.cleaned", jobs=cleaned, job_ids=[job.id for job in expired])
        return cleaned

    async def _delete(self) -> int:
        """Jobs that could not be deleted when it was asked for, because they had not ended."""
        deleted = 0
        for job in await self._jobs.to_delete(_AT_ONCE):
            try:
                await self._finish(job)
            except FerrymanError as problem:
                log.info("job.not_deleted", job_id=job.id, error=str(problem))
            else:
                deleted += 1
        return deleted

    async def _forget(self, now: int) -> int:
        forgotten = 0
        for name in await self._jobs.cleaned_services():
            keep_s = self._service(name).forget_after_s
            if keep_s:
                before = now - round(keep_s * SECOND)
                forgotten += await self._jobs.forget(name, before, _AT_ONCE)
        return forgotten

    async def _remove_orphans(self) -> int:
        """Stored files whose row never came, or went first; some of them at a time."""
        if self._clock.monotonic() >= self._orphans_due:
            self._unlisted = [(kind, "") for kind in FileKind]
            self._orphans_due = self._clock.monotonic() + _ORPHANS_EVERY_S
        looked_at = removed = 0
        while self._unlisted and looked_at < _FILES_AT_ONCE:
            kind, after = self._unlisted.pop()
            if names := await self._storage.list(kind, after):
                self._unlisted.append((kind, names[-1]))
                looked_at += len(names)
                removed += await self._storage.delete_orphans(
                    kind, names, self._jobs.files_in_use, self._running_servers
                )
        if removed:
            log.info("orphans.removed", files=removed)
        return removed
