"""Schedules → Queued: each time that is due makes one job of a stored bundle.

The schedules are in memory, too. A time moves on in the transaction that inserts its job. One at
which a job of the schedule has not ended makes none. One that comes while no server runs is made up
for at the next start, by one job for all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from server.domain import access
from server.domain.allowances import Quota
from server.domain.errors import BadField, FerrymanError, NotFound
from server.domain.jobs import BatchRequest, Bundle, FileKind, Job, NewJob
from server.domain.schedules import Schedule, job_fields, next_time
from server.domain.upload_fields import upload_request
from server.stages.accept import Accept, check_size, new_job, with_tasks
from server.stages.stage import Core, Stage
from server.storage.scratch import ScratchFile
from server.store import schedules as rows
from shared.clock import SECOND
from shared.files.bundles.format import BundleSummary
from shared.principals import LOCAL, Principal

log = structlog.get_logger()
_HOUR: Final = 3_600 * SECOND


class Schedules(Stage):
    """Keeps schedules, and makes their jobs."""

    def __init__(self, core: Core, accept: Accept, *, rehearsal: bool = False) -> None:
        super().__init__(core)
        self._accept, self._is_rehearsal = accept, rehearsal
        self._known: dict[int, Schedule] = {}
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read them. A time from a clock that was ahead would come too late."""
        async with self._changing:
            now = self.core.clock.now()
            for one in await self.core.database.read(rows.all_schedules):
                with suppress(BadField):
                    next_at = min(one.next_at, next_time(one.cron, one.time_zone, now))
                    one = replace(one, next_at=next_at)
                self._known[one.id] = one

    async def run_once(self) -> int:
        """Make the jobs whose time has come; how many schedules were due."""
        due = [number for number, one in self._known.items() if self._left_s(one) <= 0]
        for number in due:
            async with self._changing:
                if number in self._known:
                    await self._fire(self._known[number])
        return len(due)

    def until_next_s(self) -> float:
        """Seconds until one is due."""
        return max(0.01, min(map(self._left_s, self._known.values()), default=float("inf")))

    def _left_s(self, schedule: Schedule) -> float:
        if self._is_rehearsal:  # the other server makes its jobs
            return float("inf")
        return (schedule.next_at - self.core.clock.now()) / SECOND

    async def _fire(self, schedule: Schedule) -> None:
        now, by, most = self.core.clock.now(), schedule.submitted_by, Quota()
        next_at = now + _HOUR
        new: NewJob | str
        try:
            next_at = next_time(schedule.cron, schedule.time_zone, now)
            request = upload_request(schedule.fields, self.core.services, LOCAL)
        except FerrymanError as problem:  # the settings have changed since
            new = str(problem)
        else:
            if schedule.has_gather:
                batch = replace(request.batch or BatchRequest(), has_gather=True)
                request = replace(request, batch=batch)
            new = new_job(request, schedule.bundle, now, by, schedule_id=schedule.id)
            most = self.core.settings.allowances.quota(request.service, request.user_id)
            most = most._replace(uploaded=0)  # the bundle of a schedule was uploaded once
        self._known[schedule.id], made = await self.core.database.write(
            rows.fire, schedule, next_at, new, most
        )
        if isinstance(made, Job):
            self.core.measures.jobs.uploaded(now, made.service)
            log.info("schedule.fired", schedule=schedule.id, job_id=made.id)
        else:
            log.warning("schedule.not_fired", schedule=schedule.id, why=made)

    async def create(
        self,
        principal: Principal,
        fields: Mapping[str, str],
        content: ScratchFile,
        bundle: BundleSummary,
    ) -> Schedule:
        """Add a schedule whose form is whole: its jobs are of this bundle. Raises BadField,
        NotAllowed, BundleTooLarge, Conflict, OverQuota, OSError.
        """
        own = job_fields(fields)
        cron, time_zone = " ".join(fields["cron"].split()), fields.get("time_zone") or "UTC"
        request = upload_request(own, self.core.services, principal)
        check_size(request, bundle)
        await with_tasks(request, content.path, bundle)  # it refuses what it refuses of an upload
        most = self.core.settings.allowances.quota(request.service, own["user_id"])
        now, most = self.core.clock.now(), most._replace(queued=0)  # it makes no job yet
        new = {
            "name": own["name"],
            "user_id": request.user_id,
            "service": request.service.name,
            "submitted_by": principal.name,
            "cron": cron,
            "time_zone": time_zone,
            "fields": json.dumps(own),
            "has_gather": int(bundle.has_gather),
            "next_at": next_time(cron, time_zone, now),
            "created_at": now,
        }

        async def insert(stored: Bundle) -> tuple[Schedule, Bundle]:
            made = await self.core.database.write(rows.insert, new, stored, most)
            return made, made.bundle

        schedule = await self._accept.store(content, bundle, insert)
        self._known[schedule.id] = schedule
        self.core.wakeups.schedules.set()
        log.info("schedule.created", schedule=schedule.id, user_id=schedule.user_id)
        return schedule

    def page(
        self, principal: Principal, user_id: str | None, before_id: int, limit: int
    ) -> tuple[list[Schedule], int | None]:
        """Those that the principal may see, the newest first; and the next page's ``before_id``.
        Raises NotAllowed.
        """
        visible = access.visible(principal)
        found = [
            one
            for one in sorted(self._known.values(), key=lambda one: -one.id)
            if one.id < before_id and visible.has(one) and user_id in (None, one.user_id)
        ]
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def delete(self, principal: Principal, number: int) -> None:
        """Delete it; its jobs stay. Raises NotAllowed, NotFound."""
        visible = access.visible(principal)
        async with self._changing:
            if number not in self._known or not visible.has(self._known[number]):
                raise NotFound("schedule_not_found", f"schedule {number} not found")
            file = await self.core.database.write(rows.delete, number)
            del self._known[number]
        if file is not None:
            await self.core.storage.delete([(FileKind.BUNDLE, file)])
        log.info("schedule.deleted", schedule=number)
