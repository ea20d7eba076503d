"""Ended → Cleaned: remove what has expired, judged by when the job ended, and what nothing refers
to.
"""

from __future__ import annotations

from typing import Final

import structlog

from server.domain.jobs import Job, Move
from server.ports import Files, Jobs
from shared.clock import SECOND, Clock
from shared.wire import JobState

log = structlog.get_logger()
S = JobState
_AT_ONCE: Final = 200
_KEYS_KEPT_S: Final = 86_400.0
_ORPHANS_EVERY_S: Final = 3_600.0


class Clean:
    """The Cleaner."""

    def __init__(self, jobs: Jobs, files: Files, clock: Clock) -> None:
        self._jobs, self._files, self._clock = jobs, files, clock
        self._orphans_due = clock.monotonic()

    async def run_once(self) -> int:
        """Returns how many jobs and files were removed."""
        cleaned = 0
        while expired := await self._jobs.expired(self._clock.now(), _AT_ONCE):
            for job in expired:
                cleaned += await self._clean(job)
            if len(expired) < _AT_ONCE:
                break
        now = self._clock.now()
        await self._jobs.forget_idempotency_keys(now - round(_KEYS_KEPT_S * SECOND))
        if self._clock.monotonic() >= self._orphans_due:
            cleaned += await self.remove_orphans()
            self._orphans_due = self._clock.monotonic() + _ORPHANS_EVERY_S
        return cleaned

    async def remove_orphans(self) -> int:
        """Sealed files whose row never came, or went first."""
        removed = 0
        for kind in ("bundles", "results"):
            removed += await self._files.orphans(kind, self._jobs.files_in_use)
        if removed:
            log.info("orphans.removed", files=removed)
        return removed

    async def _clean(self, job: Job) -> bool:
        # Row before files: a crash in between leaves orphans, never a job whose files are gone.
        moved = await self._jobs.move(
            Move(
                job.id,
                job.attempt,
                job.state,
                S.CLEANED,
                self._clock.now(),
                f"expired; it had ended as {job.state}",
                job.reason,
                {"bundle": None, "result": None, "expires_at": None},
            )
        )
        if moved is None:
            return False
        if job.bundle is not None:
            await self._files.remove("bundles", job.bundle.file)
        if job.result is not None:
            await self._files.remove("results", job.result.file)
        return True
