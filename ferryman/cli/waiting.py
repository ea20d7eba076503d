"""Waiting for the end of jobs, and what Ctrl-C does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferryman.cli import show
from ferryman.cli.follow import FOLLOW_RETRY_FOR_S, follow_job
from ferryman.cli.options import Server
from ferryman.errors import AlreadyEnded, WaitedTooLong
from ferryman.units import say_count

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models import JobDoc


async def wait_for(
    client: Client,
    server: Server,
    job_ids: Sequence[int],
    *,
    quiet: bool,
    timeout: float | None = None,
    cancel: bool = False,
) -> list[JobDoc]:
    """The jobs once all have ended; a single one is followed on stderr.

    Args:
        timeout: seconds; None: for ever.
        cancel: Ctrl-C cancels the jobs; otherwise it says that they go on.

    Raises:
        WaitedTooLong
    """
    client.retry_for = FOLLOW_RETRY_FOR_S
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            if len(job_ids) == 1:
                return [await follow_job(client, job_ids[0], quiet=quiet)]
            return [await _end_of(client, job_id, quiet=quiet) for job_id in job_ids]
    except TimeoutError:
        if timeout is None or not limit.expired():
            raise
        for job_id in job_ids:
            job = await client.status(job_id)
            if not job.ended:
                problem = WaitedTooLong(job, timeout)
                problem.add_note(f"wait again: {server.command(f'wait {_words(job_ids)}')}")
                raise problem from None
        return [await client.status(job_id) for job_id in job_ids]  # just now
    except asyncio.CancelledError:
        if cancel:
            await _cancel(client, job_ids)
        else:
            goes = "the job goes" if len(job_ids) == 1 else "the jobs go"
            show.print_message(f"{goes} on: {server.command(f'status {_words(job_ids)}')}")
        raise


def _words(job_ids: Sequence[int]) -> str:
    return " ".join(map(str, job_ids))


async def _end_of(client: Client, job_id: int, *, quiet: bool) -> JobDoc:
    job = await client.wait(job_id)
    if not quiet:
        reason = f" ({job.reason})" if job.reason else ""
        show.print_message(f"job {job.id} {job.status}{reason}: {job.message}")
    return job


async def _cancel(client: Client, job_ids: Sequence[int]) -> None:
    """Cancel them all; a second Ctrl-C ends the waiting for their processes' end."""
    if len(job_ids) > 1:
        done = [item async for item in client.bulk("cancel", job_ids)]
        show.print_message(f"{say_count(sum(one.ok for one in done), 'job')} cancelled")
        return
    show.print_message(f"cancelling job {job_ids[0]}")
    try:
        await client.cancel(job_ids[0])
    except AlreadyEnded as problem:
        show.print_message(str(problem))
    else:
        show.print_message(f"job {job_ids[0]} is cancelled")
