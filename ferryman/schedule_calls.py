"""Schedules: uploads that become a job again and again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Unpack

from ferryman.bundle import Files
from ferryman.calls import Calls
from ferryman.fields import JobOptions, upload_fields
from ferryman.form import form_of
from ferryman.models import ScheduleDoc, SchedulePage


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
        tags: str | Iterable[str] = (),
        **options: Unpack[JobOptions],
    ) -> ScheduleDoc:
        """Store a bundle, and have the server make a job of it at each time.

        A time at which the job before has not ended makes none. It is sent once: after an error,
        look with :meth:`schedules` whether it is there.

        Args:
            files: as :meth:`submit` takes them.
            cron: minute, hour, day of the month, month, day of the week.
            name: of the schedule, and of its jobs.
            time_zone: such as ``"Europe/Amsterdam"``; None: UTC.
            options: as :meth:`submit` takes them; each job gets them.

        Raises:
            Conflict: the user has a schedule of that name.
            As :meth:`submit`
        """
        fields = upload_fields(service, self._user_of(user), name, tags, options)
        fields += [("cron", cron)] + ([("time_zone", time_zone)] if time_zone else [])
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

    async def delete_schedule(self, schedule_id: int) -> None:
        """Delete it; its jobs stay. Raises NotFound."""

        async def once() -> None:
            async with self._transport.answer("DELETE", f"api/v1/schedules/{schedule_id}"):
                pass

        await self._transport.retry(once)
