"""Schedules: uploads that become a job again and again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Unpack

from ferryman.bundle import Files
from ferryman.calls import Calls
from ferryman.fields import JobOptions, upload_fields
from ferryman.form import form_of
from ferryman.models import JobDoc
from ferryman.schedule_models import Missed, Overlap, ScheduleDoc, SchedulePage


class ScheduleCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def add_schedule(
        self,
        files: Files,
        *,
        cron: str,
        service: str,
        name: str,
        user: str | None = None,
        time_zone: str | None = None,
        overlap: Overlap | None = None,
        missed: Missed | None = None,
        tags: str | Iterable[str] = (),
        **options: Unpack[JobOptions],
    ) -> ScheduleDoc:
        """Store a bundle, and have the server make a job of it at each time.

        It is sent once: after an error, look with :meth:`schedules` whether it is there.

        Args:
            files: as :meth:`submit` takes them.
            cron: minute, hour, day of the month, month, day of the week.
            name: of the schedule, and of its jobs.
            time_zone: such as ``"Europe/Amsterdam"``; None: UTC.
            overlap: when the job before has not ended: ``"skip_if_running"``, ``"queue"`` or
                ``"replace"``; None: the server's default.
            missed: times while the server was down: ``"skip"`` or ``"run_once"``.
            options: as :meth:`submit` takes them; each job gets them.

        Raises:
            Conflict: the user has a schedule of that name.
            As :meth:`submit`
        """
        fields = upload_fields(service, self._user_of(user), name, tags, options)
        given = {"cron": cron, "time_zone": time_zone, "overlap": overlap, "missed": missed}
        fields += [(field, value) for field, value in given.items() if value is not None]
        async with form_of(fields, files) as form:
            headers = {"Content-Type": form.content_type, "Content-Length": str(form.size)}
            async with self._transport.answer(
                "POST", "api/v1/schedules", headers=headers, body=form.stream()
            ) as answer:
                return await self._transport.read(answer, ScheduleDoc)

    async def schedules(self, *, user: str | None = None) -> AsyncGenerator[ScheduleDoc, None]:
        """Schedules, newest first."""
        query = {"user": user} if user else {}
        while True:
            page = await self._transport.get("api/v1/schedules", SchedulePage, query=query)
            for schedule in page.items:
                yield schedule
            if page.next is None:
                return
            query["cursor"] = page.next

    async def schedule(self, schedule_id: int) -> ScheduleDoc:
        """Raises NotFound."""
        return await self._transport.get(f"api/v1/schedules/{schedule_id}", ScheduleDoc)

    async def pause_schedule(self, schedule_id: int) -> ScheduleDoc:
        """It makes no jobs until it is resumed. Raises NotFound."""
        path = f"api/v1/schedules/{schedule_id}/pause"
        return (await self._transport.post(path, ScheduleDoc))[1]

    async def resume_schedule(self, schedule_id: int) -> ScheduleDoc:
        """It goes on with its next time. Raises NotFound."""
        path = f"api/v1/schedules/{schedule_id}/resume"
        return (await self._transport.post(path, ScheduleDoc))[1]

    async def run_schedule(self, schedule_id: int) -> JobDoc | None:
        """Make a job of it now; it is not repeated after a lost answer.

        Returns:
            The job. None: it is made as soon as the one before is cancelled.

        Raises:
            Conflict: it cannot be made; the text says why.
            NotFound
        """
        path = f"api/v1/schedules/{schedule_id}/run"
        async with self._transport.answer("POST", path) as answer:
            if answer.status == 202:
                return None
            return await self._transport.read(answer, JobDoc)

    async def delete_schedule(self, schedule_id: int) -> None:
        """Delete it; its jobs stay. Raises NotFound."""

        async def once() -> None:
            async with self._transport.answer("DELETE", f"api/v1/schedules/{schedule_id}"):
                pass

        await self._transport.retry(once)
