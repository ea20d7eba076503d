"""Long polls: waiting for the end of a job, and following its history."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from ferryman.errors import WaitedTooLong
from ferryman.event_models import EventDoc, EventPage
from ferryman.models import JobDoc
from ferryman.transport import Transport

_PAGE: Final = 500
MIN_PAUSE_S: Final = 0.5
"""Pause after a long poll that was answered at once, as by a server that is stopping."""


async def wait_for_end(transport: Transport, job_id: int, timeout: float | None) -> JobDoc:
    """See :meth:`ferryman.Client.wait`."""
    clock = transport.clock
    start = clock.monotonic()
    while True:
        left = None if timeout is None else start + timeout - clock.monotonic()
        wait_s = transport.long_poll_s()
        wait_s = wait_s if left is None else max(0, min(wait_s, left))
        asked_at = clock.monotonic()
        job = await transport.get(
            f"api/v1/jobs/{job_id}", JobDoc, query={"wait": f"{wait_s:.3f}"}, hold_s=wait_s
        )
        if job.ended:
            return job
        now = clock.monotonic()
        if timeout is not None and now >= start + timeout:
            raise WaitedTooLong(job, timeout)
        if now - asked_at < min(wait_s, MIN_PAUSE_S):
            await clock.sleep(MIN_PAUSE_S)


async def follow_events(
    transport: Transport, job_id: int, after: int
) -> AsyncGenerator[EventDoc, None]:
    """See :meth:`ferryman.Client.events`."""
    clock = transport.clock
    ended = False
    while True:
        wait_s = 0 if ended else round(transport.long_poll_s())
        asked_at = clock.monotonic()
        page = await transport.get(
            f"api/v1/jobs/{job_id}/events",
            EventPage,
            query={"after": str(after), "wait": str(wait_s)},
            hold_s=wait_s,
        )
        for event in page.items:
            after = max(after, event.seq)
            yield event
        if ended and not page.items:
            return
        if page.items:
            # Only the server knows which states are ended: a small request for each change.
            ended = (await transport.get(f"api/v1/jobs/{job_id}", JobDoc)).ended
        elif clock.monotonic() - asked_at < MIN_PAUSE_S:
            await clock.sleep(MIN_PAUSE_S)


async def follow_all_events(
    transport: Transport, after: int | None, user: str | None, service: str | None
) -> AsyncGenerator[EventDoc, None]:
    """See :meth:`ferryman.Client.all_events`."""
    clock = transport.clock
    chosen = {"user": user, "service": service}
    query = {name: one for name, one in chosen.items() if one is not None}
    query |= {"after": "now" if after is None else str(after), "limit": str(_PAGE)}
    wait_s = 0  # the number to go on from is needed at once
    while True:
        asked_at = clock.monotonic()
        page = await transport.get(
            "api/v1/events", EventPage, query={**query, "wait": str(wait_s)}, hold_s=wait_s
        )
        for event in page.items:
            yield event
        query["after"] = str(page.reached)
        at_once = page.next is not None or not wait_s
        if not page.items and not at_once and clock.monotonic() - asked_at < MIN_PAUSE_S:
            await clock.sleep(MIN_PAUSE_S)
        wait_s = 0 if page.next is not None else round(transport.long_poll_s())
