"""What goes on for long: the end of a job, its events and logs; many things at a time, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast, get_args

from ferryman.errors import (
    BadArgument,
    NoResult,
    NotReady,
    NotUnderstood,
    Refused,
    TryLater,
    Unreachable,
    WaitedTooLong,
)
from ferryman.models.events import EventDoc, EventPage
from ferryman.models.jobs import AttemptDoc, JobDoc
from ferryman.transport import Transport, no_result

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
PAGE_SIZE: Final = 100


async def in_order(
    work: Iterable[Callable[[], Awaitable[T]]], at_once: int
) -> AsyncGenerator[T, None]:
    """Call each, ``at_once`` at the same time, and give what they return in their order.

    What fails is raised in its turn; then, or when nobody takes the rest, what still runs is
    cancelled.
    """
    running: deque[asyncio.Future[T]] = deque()
    try:
        for start in work:
            running.append(asyncio.ensure_future(start()))
            if len(running) >= at_once:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def buffered(items: AsyncGenerator[T, None], ahead: int) -> AsyncGenerator[T, None]:
    """The same items, of which ``ahead`` are taken before they are asked for."""
    room, ready = asyncio.Semaphore(ahead), asyncio.Queue[T | None]()

    async def fill() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    await room.acquire()
                    ready.put_nowait(item)
        finally:
            ready.put_nowait(None)

    filling = asyncio.create_task(fill())
    try:
        while (item := await ready.get()) is not None:
            yield item
            room.release()
        await filling
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


_PAGE: Final = 500
MIN_PAUSE_S: Final = 0.5
"""Pause after a long poll that was answered at once, as by a server that is stopping."""


class _Page(Protocol[T_co]):
    @property
    def items(self) -> Sequence[T_co]: ...

    @property
    def next(self) -> str | None: ...


async def pages(
    transport: Transport,
    path: str,
    model: type[_Page[T]],
    query: Mapping[str, str],
    *,
    limit: int | None = None,
    cursor: str = "cursor",
) -> AsyncGenerator[T, None]:
    """The items of a list, fetched page by page as they are asked for; at most ``limit``."""
    wanted, left = dict(query), limit
    while left is None or left > 0:
        if left is not None:
            wanted["limit"] = str(min(PAGE_SIZE, left))
        page: Any = await transport.get(path, cast("Any", model), query=wanted)
        for item in page.items:
            yield item
        if page.next is None:
            return
        wanted[cursor] = page.next
        left = None if left is None else left - len(page.items)


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


Stream: TypeAlias = Literal["stdout", "stderr"]
_FOLLOWED_S: Final = 15.0
"""After so long without a byte the server ends an answer, and is asked again."""
_AGAIN_S: Final = 0.25


async def fetch_log(transport: Transport, job_id: int, attempt: int | None, stream: Stream) -> str:
    """The log of an attempt, or of the latest one that has logs; see :meth:`Client.log`."""
    if stream not in get_args(Stream):
        raise BadArgument(f"a log is stdout or stderr, not {stream!r}")
    if attempt is None:
        job = await transport.get(f"api/v1/jobs/{job_id}", JobDoc)
        latest = latest_with_logs(job.attempts or ())
        if latest is None:
            kind = NoResult if job.ended else NotReady
            why = f"no agent has taken job {job_id}: {job.message}"
            if job.children is not None:
                why = f"job {job_id} is the parent of a batch: its children have the logs"
            raise kind(409, "no_attempt", why)
        attempt = latest.number

    async def once() -> str:
        path, query = f"api/v1/jobs/{job_id}/logs", {"stream": stream, "attempt": str(attempt)}
        async with transport.answer("GET", path, query=query) as answer:
            if answer.content_type != "text/plain":
                raise NotUnderstood(
                    str(answer.url), f"expected plain text, got {answer.content_type}"
                )
            return await answer.text("utf-8", errors="replace")

    try:
        return await transport.retry(once)
    except Refused as problem:
        raise no_result(problem) from None


async def follow_log(
    transport: Transport, job_id: int, attempt: int | None, stream: Stream, tail: int | None
) -> AsyncGenerator[bytes, None]:
    """See :meth:`ferryman.Client.follow_log`."""
    if stream not in get_args(Stream):
        raise BadArgument(f"a log is stdout or stderr, not {stream!r}")
    path, offset = f"api/v1/jobs/{job_id}/logs", 0
    away_since: float | None = None
    while True:
        query = {"stream": stream, "follow": "1"}
        query |= {"offset": str(offset)} if tail is None else {"tail": str(tail)}
        query |= {"attempt": str(attempt)} if attempt is not None else {}
        try:
            async with transport.answer("GET", path, query=query, hold_s=_FOLLOWED_S) as answer:
                away_since = None
                offset, tail = int(answer.headers.get("Ferryman-Log-Offset", offset)), None
                if "Ferryman-Log-Attempt" in answer.headers:
                    attempt = int(answer.headers["Ferryman-Log-Attempt"])
                ended = answer.headers.get("Ferryman-Log-Ended") == "true"
                async for chunk in answer.content.iter_any():
                    offset += len(chunk)
                    yield chunk
        except (Unreachable, TryLater):
            now = transport.clock.monotonic()
            away_since = now if away_since is None else away_since
            if now - away_since >= transport.retry_for:
                raise
            ended = False
        except Refused as problem:
            if problem.code != "log_moves":  # it has ended, and its result is on the way
                raise no_result(problem) from None
            ended = False
        if ended:
            return
        await transport.clock.sleep(_AGAIN_S)


def latest_with_logs(attempts: Sequence[AttemptDoc]) -> AttemptDoc | None:
    """The latest attempt that has logs, or runs; if none has, the latest: the server says why."""
    with_logs = [
        attempt
        for attempt in attempts
        if attempt.links.stdout or (attempt.started_at and attempt.ended_at is None)
    ]
    return next(reversed(with_logs or attempts), None)
