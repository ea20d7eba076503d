"""``--wait``: a job's history as it happens, and what is the matter while nothing happens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from ferryman.cli import show
from ferryman.cli.options import Server

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models import JobDoc

PATIENT_S: Final = 60.0
"""Patience once a job is being followed: a restart of the server must not lose sight of it."""
FIRST_LOOK_S: float = 1.0
LONGEST_LOOK_S: Final = 15.0
"""Pauses between two looks at a job that does not move; they double from the first to the last."""


async def follow(client: Client, server: Server, job_id: int, *, quiet: bool) -> JobDoc:
    """Show each change of state on stderr, and why a queued job waits; return the ended job."""
    job = await client.status(job_id)
    client.patience = PATIENT_S
    events = client.events(job_id)
    coming = asyncio.ensure_future(anext(events, None))
    pause, told = None, ""  # the history so far comes at once
    try:
        with show.moving(quiet=quiet) as (tell, move):
            while True:
                done, _ = await asyncio.wait({coming}, timeout=pause)
                if not done:
                    job = await client.status(job_id)
                    move(show.doing(job))
                    why = job.queue.reason if job.queue is not None else ""
                    if why not in {"", told}:
                        tell(show.waiting_line(why))
                    told, pause = why, min(2 * (pause or 0), LONGEST_LOOK_S)
                    continue
                event = coming.result()
                if event is None:
                    break
                tell(show.event_line(event, job.created_at))
                move(str(event.status))
                pause = FIRST_LOOK_S
                coming = asyncio.ensure_future(anext(events, None))
        return await client.wait(job_id)
    except asyncio.CancelledError:
        show.say(f"the job goes on: {server.command(f'status {job_id}')}")
        raise
    finally:
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await coming
        await events.aclose()
