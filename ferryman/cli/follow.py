"""``--wait``: shows a job's history as it happens, why nothing happens, and how it ended."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ferryman.cli import show
from ferryman.cli.options import Server
from ferryman.cli.results import partial_hint
from ferryman.errors import AlreadyEnded, FerrymanError, WaitedTooLong
from ferryman.units import say_count

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models.jobs import JobDoc

FOLLOW_RETRY_FOR_S: Final = 60.0
"""Patience while a job is followed: long enough for a restart of the server."""
_OUTPUT_WAIT_S: Final = 2.0
"""For the rest of its output, once it has ended."""
_MAX_LINES: Final = 1_000
_MAX_LINE: Final = 1_000
"""Characters."""
_COMMAND: Final = re.compile(r"::[a-z-]+( .*?)?::")
FIRST_POLL_S: float = 1.0
MAX_POLL_S: Final = 15.0
"""Pauses between two requests for a job that does not change state; they double up to the last."""


class _Output:
    """Shows what the job writes to stdout, of each attempt that starts meanwhile."""

    def __init__(self, client: Client, job_id: int, add_line: Callable[[str], None]) -> None:
        self._client, self._job_id, self._add_line = client, job_id, add_line
        self._lines = 0
        self._task: asyncio.Task[None] | None = None
        self._attempt = 0

    def show(self, attempt: int) -> None:
        """It runs: show what it writes."""
        if attempt != self._attempt and (self._task is None or self._task.done()):
            self._attempt = attempt
            self._task = asyncio.create_task(self._follow(attempt))

    async def finish(self, seconds: float) -> None:
        """Show what is left of it, if that comes in time."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, attempt: int) -> None:
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        with contextlib.suppress(FerrymanError):  # it is shown for convenience: `logs` says why not
            async for chunk in self._client.follow_log(self._job_id, attempt):
                *lines, rest = (rest + decoder.decode(chunk)).split("\n")
                rest = rest[:_MAX_LINE]
                for line in lines:
                    self._print(line)
        if rest:
            self._print(rest)

    def _print(self, line: str) -> None:
        if _COMMAND.match(line):
            return  # its event is shown
        self._lines += 1
        if self._lines <= _MAX_LINES:
            self._add_line(f"  | {line[:_MAX_LINE]}")
        elif self._lines == _MAX_LINES + 1:
            self._add_line(f"  | … all of it: ferryman logs {self._job_id}")


async def follow_job(client: Client, job_id: int, *, quiet: bool) -> JobDoc:
    """Show each change of state on stderr, why the job waits, and what it writes to stdout; return
    the ended job.
    """
    job = await client.status(job_id)
    events = client.events(job_id)
    next_event = asyncio.ensure_future(anext(events, None))
    pause, last_reason = None, ""  # the history so far is not waited for
    output = _Output(client, job_id, lambda line: add_line(line))
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
                if show.is_move(event) and event.status == "Running" and not quiet:
                    output.show(event.attempt)
                elif show.is_move(event):
                    await output.finish(_OUTPUT_WAIT_S)
                if event.event == "job.progress":
                    set_status(f"{event.status}  {event.message}")
                if event.event != "job.progress" or not sys.stderr.isatty():
                    add_line(show.event_line(event, job.created_at))
                if show.is_move(event):
                    set_status(str(event.status))
                pause = FIRST_POLL_S
                next_event = asyncio.ensure_future(anext(events, None))
        return await client.wait(job_id)
    finally:
        await output.finish(0)
        next_event.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await next_event
        await events.aclose()


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


def conclude(job: JobDoc, server: Server, *, quiet: bool) -> None:
    """Say how it ended. Why it failed is an error, so --quiet does not silence it."""
    if job.status == "Completed":
        if not quiet:
            show.print_message(f"fetch the result: {server.command(f'download {job.id}')}")
        return
    reason = f" ({job.reason})" if job.reason else ""
    show.print_message(f"job {job.id} {job.status}{reason}: {job.message}")
    for line in show.stderr_lines(job):
        show.print_message(line)
    if job.children is not None and job.children.failed:
        failed = server.command(f"list --parent {job.id} --state Failed")
        show.print_message(f"children that failed: {failed}")
    show.print_message(partial_hint(server, job.id))
