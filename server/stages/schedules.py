"""Schedules → Queued: each time that is due makes one job of a stored bundle.

The row holds all there is to know: the time moves on in the transaction that inserts the job. After
a downtime the first time that was missed is the one that is looked at, and the next one is the
first behind now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog

from server.domain import access
from server.domain.allowances import Allowances
from server.domain.cron import next_time
from server.domain.errors import BadField, BundleTooLarge, FerrymanError
from server.domain.jobs import Bundle
from server.domain.leases import Lease
from server.domain.schedules import (
    LATE_S,
    Fired,
    NewSchedule,
    NoSuchSchedule,
    Outcome,
    Schedule,
    ScheduleRefusal,
    Timing,
    job_fields,
    timing_of,
)
from server.domain.upload_fields import upload_request
from server.ports import ScratchFile
from server.ports.schedules import Firing
from server.ports.schedules import Schedules as Store
from server.stages.accept import Accept, new_job
from server.stages.array_tasks import with_counted_tasks, with_tasks
from server.stages.stage import Resources, Stage
from shared.clock import SECOND, Micros, say_time
from shared.files.bundles.format import BundleSummary
from shared.principals import LOCAL, Principal
from shared.units.durations import say_duration

log = structlog.get_logger()
_AT_ONCE: Final = 100
_HOUR: Final = 3_600 * SECOND


class Schedules(Stage):
    """Keeps schedules, and makes their jobs.

    Args:
        allowances: what each user may have.
        on_change: called when one may be due at another time than before.
    """

    def __init__(
        self,
        resources: Resources,
        store: Store,
        accept: Accept,
        *,
        allowances: Allowances | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(resources)
        self._store, self._accept, self._on_change = store, accept, on_change
        self._allowances = allowances or Allowances()
        self._next_at: Micros | None = None
        self._corrected = False

    # -- what is due

    async def run_once(self) -> int:
        """Make the jobs whose time has come; how many schedules were looked at."""
        if not self._corrected:
            await self._correct()
            self._corrected = True
        due = await self._store.due(self._clock.now(), _AT_ONCE)
        for schedule in due:
            await self._fire(schedule)
        self._next_at = await self._store.next_at()
        return len(due)

    def until_next_s(self) -> float:
        """Seconds until one is due, as the last sweep found it."""
        if self._next_at is None:
            return float("inf")
        return max(0.01, (self._next_at - self._clock.now()) / SECOND)

    async def _correct(self) -> None:
        """After a start: a time that was counted on a clock that was ahead would come too late."""
        now, after_id = self._clock.now(), 0
        while found := await self._store.due_behind(now, after_id, _AT_ONCE):
            for schedule in found:
                after_id = schedule.id
                next_at = _next_at(schedule.timing, now)
                if next_at < schedule.next_at:
                    await self._store.correct(schedule, next_at)

    async def _fire(self, schedule: Schedule, *, by_hand: bool = False) -> Fired:
        now = self._clock.now()
        is_due = schedule.next_at <= now and not by_hand
        firing = Firing(
            schedule=schedule,
            at=now,
            next_at=_next_at(schedule.timing, now) if is_due else schedule.next_at,
            by_hand=by_hand,
            most_stored=self._allowances.of(schedule.user_id).stored,
        )
        refusal = _missed(schedule, now) if is_due else ""
        try:
            request = with_counted_tasks(
                upload_request(schedule.fields, self._services, LOCAL),
                schedule.tasks,
                has_gather=schedule.has_gather,
            )
        except FerrymanError as problem:  # the settings have changed since
            refusal = refusal or str(problem)
        else:
            firing = replace(
                firing,
                new=new_job(
                    request,
                    schedule.bundle,
                    now,
                    schedule.submitted_by,
                    schedule_id=schedule.id,
                ),
                most_queued=request.service.queued_of(request.user_id),
            )
        fired = await self._store.fire(
            replace(firing, new=None, refusal=refusal) if refusal else firing
        )
        if fired.how is Outcome.QUEUED:
            log.info("schedule.fired", schedule=schedule.id, job_id=fired.job_id, by_hand=by_hand)
        elif fired.how is not Outcome.GONE:
            log.warning("schedule.not_fired", schedule=schedule.id, why=fired.message)
        return fired

    # -- what users do

    async def create(
        self,
        principal: Principal,
        fields: Mapping[str, str],
        content: ScratchFile,
        bundle: BundleSummary,
    ) -> Schedule:
        """Add a schedule whose form is whole: its jobs are of this bundle.

        Raises:
            BadField, NotAllowed, BundleTooLarge, ScheduleRefusal, TooManySchedules, StorageFull,
            DayUsed, OverDay, ServerPaused, OSError
        """
        timing, own = timing_of(fields), job_fields(fields)
        request = upload_request(own, self._services, principal)
        if bundle.bytes > request.limits.disk:
            service, most = request.service, request.limits.disk
            raise BundleTooLarge(service.name, service.limits.disk, most, bundle.bytes)
        now = self._clock.now()
        next_at = _first_at(timing, now)
        request = await with_tasks(request, content.path, bundle)
        batch, allowed = request.batch, self._allowances.of(request.user_id)

        async def insert(stored: Bundle, lease: Lease | None) -> tuple[Schedule, bool]:
            schedule = await self._store.insert(
                NewSchedule(
                    name=own["name"],
                    user_id=request.user_id,
                    service=request.service.name,
                    submitted_by=principal.name,
                    timing=timing,
                    fields=own,
                    bundle=stored,
                    next_at=next_at,
                    created_at=now,
                    tasks=batch.total if batch is not None and batch.file is not None else 0,
                    has_gather=bundle.has_gather,
                ),
                allowed.schedules,
                allowed.stored,
                lease,
                allowed.uploaded,
            )
            return schedule, schedule.bundle.file == stored.file

        schedule = await self._accept.store(content, bundle, insert)
        self._on_change()
        log.info("schedule.created", schedule=schedule.id, user_id=schedule.user_id)
        return schedule

    async def read(self, principal: Principal, number: int) -> Schedule:
        """The schedule, if the principal may see it.

        Raises:
            NotAllowed, NoSuchSchedule
        """
        visible = access.visible(principal)
        schedule = await self._store.get(number)
        if not visible.has(schedule):
            raise NoSuchSchedule(number)
        return schedule

    async def page(
        self, principal: Principal, user_id: str | None, before_id: int | None, limit: int
    ) -> tuple[list[Schedule], int | None]:
        """Those that the principal may see, the newest first; and the next page's ``before_id``.

        Raises:
            NotAllowed
        """
        visible = access.visible(principal)
        if visible.user_id is not None and user_id not in (None, visible.user_id):
            return [], None
        user_id = visible.user_id or user_id
        return await self._store.page(user_id, visible.submitted_by, before_id, limit)

    async def delete(self, principal: Principal, number: int) -> None:
        """Delete it; its jobs stay.

        Raises:
            NotAllowed, NoSuchSchedule
        """
        await self.read(principal, number)
        await self._storage.delete(await self._store.delete(number))
        log.info("schedule.deleted", schedule=number)

    async def pause(self, principal: Principal, number: int) -> Schedule:
        """It is not due until it is resumed.

        Raises:
            NotAllowed, NoSuchSchedule
        """
        await self.read(principal, number)
        return await self._store.set_paused(number, None)

    async def resume(self, principal: Principal, number: int) -> Schedule:
        """It is due again, at its next time; those in between were not missed.

        Raises:
            NotAllowed, NoSuchSchedule
        """
        schedule = await self.read(principal, number)
        if schedule.paused:
            next_at = _next_at(schedule.timing, self._clock.now())
            schedule = await self._store.set_paused(number, next_at)
            self._on_change()
        return schedule

    async def run(self, principal: Principal, number: int) -> Fired:
        """Make a job now, as if it were due; its times stay as they are.

        Returns:
            QUEUED, or PENDING where a former job is being cancelled first.

        Raises:
            NotAllowed, NoSuchSchedule
            ScheduleRefusal: there is no job, and why.
        """
        fired = await self._fire(await self.read(principal, number), by_hand=True)
        if fired.how not in (Outcome.QUEUED, Outcome.PENDING):
            raise ScheduleRefusal("schedule_not_run", f"schedule {number}: {fired.message}")
        return fired


def _missed(schedule: Schedule, now: Micros) -> str:
    """Why a time that is noticed only now makes no job; empty: it does."""
    late_s = (now - schedule.next_at) / SECOND
    if late_s <= LATE_S or schedule.timing.missed == "run_once":
        return ""
    return (
        f"skipped: no server was running at {say_time(schedule.next_at)}, which was noticed "
        f"{say_duration(round(late_s))} later"
    )


def _first_at(timing: Timing, now: Micros) -> Micros:
    """When a new schedule is due first.

    Raises:
        BadField: there is no such time zone.
    """
    try:
        return next_time(timing.cron, ZoneInfo(timing.time_zone), now)
    except (ZoneInfoNotFoundError, OSError):
        message = (
            f"Invalid time_zone: {timing.time_zone!r} is not known here; write Europe/Berlin or UTC"
        )
        raise BadField("time_zone", "invalid_time_zone", message) from None
    except ValueError as problem:
        raise BadField("cron", "invalid_cron", f"Invalid cron: {problem}") from None


def _next_at(timing: Timing, now: Micros) -> Micros:
    """When it is due next. In an hour where that cannot be said: its time zone is gone."""
    try:
        return _first_at(timing, now)
    except BadField as problem:
        log.warning("schedule.no_next_time", cron=timing.cron, error=str(problem))
        return now + _HOUR
