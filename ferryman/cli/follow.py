"""``--wait``: shows a job's history as it happens, and why nothing happens."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Final

from ferryman.cli import show
from ferryman.cli.options import Server

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models import JobDoc

FOLLOW_PATIENCE_S: Final = 60.0
"""Patience while a job is followed: long enough for a restart of the server."""
FIRST_POLL_S: float = 1.0
MAX_POLL_S: Final = 15.0
"""Pauses between two requests for a job that does not change state; they double up to the last."""


async def follow_job(client: Client, server: Server, job_id: int, *, quiet: bool) -> JobDoc:
    """Show each change of state on stderr, and why a queued job waits; return the ended job."""
    job = await client.status(job_id)
    client.patience = FOLLOW_PATIENCE_S
    events = client.events(job_id)
    next_event = asyncio.ensure_future(anext(events, None))
    pause, last_reason = None, ""  # the history so far is not waited for
    try:
        with show.live_status(quiet=quiet) as (add_line, set_status):
            while True:
                done, _ = await asyncio.wait({next_event}, timeout=pause)
                if not done:
                    job = await client.status(job_id)
                    set_status(show.status_line(job))
                    reason = job.queue.reason if job.queue is not None else ""
                    if reason not in {"", last_reason}:
                        add_line(show.waiting_line(reason))
                    last_reason, pause = reason, min(2 * (pause or 0), MAX_POLL_S)
                    continue
                event = next_event.result()
                if event is None:
                    break
                if event.event == "job.progress":
                    set_status(f"{event.status}  {event.message}")
                if event.event != "job.progress" or not sys.stderr.isatty():
                    add_line(show.event_line(event, job.created_at))
                if show.is_move(event):
                    set_status(str(event.status))
                pause = FIRST_POLL_S
                next_event = asyncio.ensure_future(anext(events, None))
        return await client.wait(job_id)
    except asyncio.CancelledError:
        show.print_message(f"the job goes on: {server.command(f'status {job_id}')}")
        raise
    finally:
        next_event.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await next_event
        await events.aclose()
