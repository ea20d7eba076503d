"""The log of an attempt: at its agent while it runs, in its stored result afterwards."""

from __future__ import annotations

import asyncio
import os
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiohttp import hdrs, web
from pydantic import BaseModel

from server.agents.ferryman_agent import FerrymanAgent
from server.domain import states
from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent
from server.domain.errors import FerrymanError
from server.domain.jobs import Attempt, FileKind, Job
from server.http.context import Context
from server.http.event_stream import KEEPALIVE_S
from server.http.problems import Refusal
from server.http.results import cleaned, missing_result
from server.store import jobs
from shared.clock import wait_for
from shared.files.archives.zip_headers import STORED
from shared.files.archives.zip_reader import ZipEntry, ZipIndex, read_content, read_packed
from shared.files.names import BundleError
from shared.files.opened import closing_fd
from shared.http.file_response import Part, requested_part, send_chunks
from shared.ids import AttemptKey
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import JobState

STREAMS: Final = ("stdout", "stderr")
LOG_HEADERS: Final = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}
DAMAGED: Final = (BundleError, EOFError, OSError, zlib.error)
"""Reading a stored log raises these."""
CHUNK: Final = 1 << 15
"""As server-sent events it takes several times as much memory, for each reader that is slow."""
_PACKED: Final = 1 << 16
_STATES: Final = 32
"""Of one log, about 40 KiB each."""
_BETWEEN: Final = 1 << 20
"""Bytes between two of them, at least."""
_RECEIPT: Final = "ferryman.json"
_MAX_RECEIPT: Final = 1 << 20
"""Bytes. Every result has one; it names the logs."""
States: TypeAlias = dict[int, tuple[int, Any]]
"""Places in a log that is compressed -> bytes read to get there, and the state of the unpacker."""


class Receipt(BaseModel):
    """Of ``ferryman.json``: what is read of it here."""

    logs: dict[str, str]


class Unpacker:
    """Unpacks one log. Its method blocks.

    Args:
        states: places that were reached. Other unpackers of the same log add to it, too. None: no
            state is kept.
        chunk: bytes of a piece, at most.
    """

    def __init__(
        self, path: Path, entry: ZipEntry, states: States | None = None, chunk: int = CHUNK
    ) -> None:
        self._path, self._entry, self._chunk = path, entry, chunk
        self._keep, self._states = states is not None, {} if states is None else states
        self._between = max(_BETWEEN, entry.size // _STATES)

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from ``start`` up to, not including, ``stop``. Some pieces are empty.

        Raises:
            BundleError, EOFError, zlib.error: it is damaged.
            FileNotFoundError: it was removed meanwhile.
        """
        entry = self._entry
        # Opened for each: a thread may still read when whoever waited for it has gone.
        with closing_fd(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            if not self._keep and (start, stop) == (0, entry.size):
                yield from read_content(fd, entry, self._chunk)  # with its checksum
            elif entry.method == STORED:
                yield from read_packed(fd, entry, start, stop, self._chunk)
            elif stop > start:
                yield from self._inflate(fd, start, stop)

    def _inflate(self, fd: int, start: int, stop: int) -> Iterator[bytes]:
        entry = self._entry
        places = sorted(self._states)
        near = bisect_right(places, start) - 1
        at = places[near] if near >= 0 else 0
        taken, state = self._states[at] if near >= 0 else (0, zlib.decompressobj(-zlib.MAX_WBITS))
        engine, last = state.copy(), at
        for packed in read_packed(fd, entry, taken, entry.packed, _PACKED):
            data = packed
            while True:
                # What comes before the place is given to nobody: larger pieces take fewer turns.
                most = self._chunk if at >= start else max(self._chunk, _PACKED)
                piece = engine.decompress(data, most)
                taken += len(data) - len(engine.unconsumed_tail)
                data = engine.unconsumed_tail
                yield piece[max(0, start - at) : stop - at]
                at += len(piece)
                if self._keep and at - last >= self._between and len(self._states) <= _STATES:
                    last = at
                    self._states.setdefault(at, (taken, engine.copy()))
                if at >= stop:
                    return
                # A full piece may mean that more waits inside, although all input is taken.
                if engine.eof or not (data or len(piece) == most):
                    break
        raise EOFError("it is shorter than it says")


class StoredLog:
    """A log that can be read. ``size`` is in bytes."""

    def __init__(self, context: Context, unpacker: Unpacker, size: int) -> None:
        self._context, self._unpacker, self.size = context, unpacker, size

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``.

        Raises:
            *DAMAGED
        """
        pieces = self._unpacker.read(start, stop)
        while (piece := await self._context.pools.reads.run(next, pieces, None)) is not None:
            if piece:
                yield piece


@asynccontextmanager
async def stored_log(
    context: Context,
    job: Job,
    attempt: Attempt,
    stream: str,
    states: States | None = None,
    chunk: int = CHUNK,
) -> AsyncIterator[StoredLog]:
    """The log of an attempt.

    Args:
        states, chunk: see :class:`Unpacker`.

    Raises:
        Refusal: why there is none.
    """
    if attempt.result is None:
        raise nothing_left(job, attempt)
    async with context.core.contents.local_copy(FileKind.RESULT, attempt.result) as path:
        try:
            entry = await context.pools.reads.run(_find, path, stream)
        except FileNotFoundError:
            raise await missing_result(context, job, attempt.number) from None
        except (BundleError, LookupError, ValueError) as problem:
            why = f"the result of the attempt has no such log: {problem}"
            raise Refusal(HTTPStatus.CONFLICT, "no_log", why) from problem
        yield StoredLog(context, Unpacker(path, entry, states, chunk), entry.size)


def nothing_left(job: Job, attempt: Attempt) -> Refusal:
    """Why there is no result."""
    if job.state is JobState.CLEANED:
        return cleaned(job)
    if attempt.ended_at is None:
        why = f"attempt {attempt.number} of job {job.id} has not ended; /download_partial/{job.id}"
        return Refusal(HTTPStatus.CONFLICT, "not_ended", f"{why} shows what there is now")
    why = f"attempt {attempt.number} of job {job.id} left nothing: {attempt.message}"
    return Refusal(HTTPStatus.CONFLICT, "no_result", why)


def _find(path: Path, stream: str) -> ZipEntry:
    """Where the log is in a result. Blocking."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        index = ZipIndex(fd)
        receipt = _found(index, _RECEIPT)
        if receipt.size > _MAX_RECEIPT:
            raise ValueError("its receipt is too large")
        text = b"".join(read_content(fd, receipt))
        return _found(index, Receipt.model_validate_json(text).logs[stream])


def _found(index: ZipIndex, name: str) -> ZipEntry:
    entry, _ = index.find(name)
    if entry is None:
        raise LookupError(name)
    return entry


_AGAIN_S: Final = 1.0
"""After an agent had nothing to say, or could not be reached."""
FOR_NOW: Final = frozenset({"log_moves", "agent_unreachable"})
"""Codes of refusals that who follows a log waits for to be over."""
LOG_SENDS: Final = (
    "ETag",
    "Accept-Ranges",
    "Ferryman-Log-Attempt",
    "Ferryman-Log-Offset",
    "Ferryman-Log-Next",
    "Ferryman-Log-Ended",
)
"""Headers of a log."""
Log: TypeAlias = Callable[[int, int], AsyncGenerator[bytes, None]]
"""Gives its bytes from one position to another, at least."""


@dataclass(frozen=True, slots=True)
class LiveKind:
    """Something that an attempt writes, and the codes of refusals to show it."""

    what: str
    not_shown: str
    moves: str
    """The attempt has ended, and its result has not come yet."""


LOG: Final = LiveKind("the log", "no_live_log", "log_moves")
FILES: Final = LiveKind("its files", "no_live_files", "files_move")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an attempt's log; none: nothing came for a while."""

    data: bytes
    attempt: int | None


@asynccontextmanager
async def opened_log(
    context: Context,
    job: Job,
    attempt: Attempt,
    stream: str,
    states: States | None = None,
    chunk: int = CHUNK,
) -> AsyncIterator[tuple[int, Log]]:
    """Its size, and its bytes from one position to another.

    Args:
        states, chunk: how a stored one is read, see :class:`Unpacker`.

    Raises:
        Refusal: it cannot be read now; also while it is read.
        *DAMAGED: while a stored one is read.
    """
    agent = live_agent(context, job, attempt)
    if agent is None:
        async with stored_log(context, job, attempt, stream, states, chunk) as stored:
            yield stored.size, stored.chunks
        return
    try:
        size = await agent.size(job, f"logs/{stream}")
    except AgentError as problem:
        raise why_not(job, attempt, problem) from problem

    async def chunks(start: int, _: int) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(agent.content(job, f"logs/{stream}", offset=start)) as some:
                async for chunk in some:
                    yield chunk
        except AgentError as problem:
            raise why_not(job, attempt, problem) from problem

    yield size, chunks


async def log_pieces(
    context: Context, job: Job, attempt: Attempt | None, stream: str, offset: int
) -> AsyncGenerator[Piece, None]:
    """What an attempt writes (None: the next one of the job), until all of it was given.

    Raises:
        *DAMAGED: of its stored result.
    """
    clock = context.core.clock
    number = None if attempt is None else attempt.number
    quiet_since = clock.monotonic()
    with context.core.wakeups.of(job.id) as changed:
        while not context.core.wakeups.closing:
            changed.clear()
            patience_s = KEEPALIVE_S
            try:
                job = await context.core.database.read(jobs.get, job.id)
                attempt = await find_attempt(context, job, number)
                if attempt is not None and has_started(job, attempt):
                    number, patience_s = attempt.number, _AGAIN_S
                    async with aclosing(_rest(context, job, attempt, stream, offset)) as chunks:
                        async for chunk in chunks:
                            offset += len(chunk)
                            yield Piece(chunk, number)
                            quiet_since = clock.monotonic()
                    if attempt.ended_at is not None:
                        return
                elif job.ended:
                    return
            except AgentError:
                pass  # it has ended there, and its result is on the way; or the agent is away
            except Refusal as refusal:
                if refusal.code not in FOR_NOW:
                    return
            except (FerrymanError, DatabaseUnavailable):
                return  # the job was deleted, or the caller asks again and gets the reason
            quiet_s = clock.monotonic() - quiet_since
            if quiet_s >= KEEPALIVE_S:
                quiet_since = clock.monotonic()
                yield Piece(b"", number)
            else:
                await wait_for(changed, min(patience_s, KEEPALIVE_S - quiet_s), clock)


async def _rest(
    context: Context, job: Job, attempt: Attempt, stream: str, offset: int
) -> AsyncGenerator[bytes, None]:
    """Its bytes from ``offset`` on, and what it goes on to write."""
    agent = live_agent(context, job, attempt)
    if agent is not None:
        chunks = agent.content(job, f"logs/{stream}", offset=offset, follow=1)
        async with aclosing(chunks), aclosing(_until_closing(context, job, chunks)) as some:
            async for chunk in some:
                yield chunk
        return
    async with stored_log(context, job, attempt, stream) as stored:
        if offset < stored.size:
            async for chunk in stored.chunks(offset, stored.size):
                yield chunk


async def _until_closing(
    context: Context, job: Job, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """The chunks as they come, and no more of them once the server stops."""

    async def following() -> bytes | None:
        return await anext(chunks, None)

    with context.core.wakeups.of(job.id, end_only=True) as ended:
        waiting: asyncio.Task[Any] = asyncio.create_task(ended.wait())
        coming: asyncio.Task[Any] = asyncio.create_task(following())
        try:
            while True:
                await asyncio.wait({waiting, coming}, return_when=asyncio.FIRST_COMPLETED)
                if context.core.wakeups.closing:
                    return
                chunk = await coming
                if chunk is None:
                    return
                yield chunk
                coming = asyncio.create_task(following())
        finally:
            for task in (waiting, coming):
                task.cancel()
            await asyncio.gather(waiting, coming, return_exceptions=True)


async def send_log(
    request: web.Request,
    attempt: Attempt,
    stream: str,
    log: Log,
    size: int,
    start: int | None = None,
) -> web.StreamResponse:
    """A log as it is now, or the range of it that was asked for.

    Args:
        start: the query asks for what is behind this byte: then that is the whole answer.
    """
    headers = {**LOG_HEADERS, hdrs.ACCEPT_RANGES: "bytes", hdrs.CACHE_CONTROL: "no-cache"}
    part = Part(HTTPStatus.OK, start or 0, size, {})
    if start is None:
        # What stands at a place of an attempt's log never changes, but a log is cut at its end.
        ended = "" if attempt.ended_at is not None else "-live"
        tag = f"log-{attempt.job_id}.{attempt.number}-{stream}-{size}{ended}"
        headers[hdrs.ETAG] = f'"{tag}"'
        found = requested_part(request, size, tag, headers)
        if isinstance(found, web.Response):
            return found
        part = found
    headers |= log_headers(attempt, part.start) | {"Ferryman-Log-Next": str(part.stop)}
    try:
        return await send_chunks(request, part, headers, log)
    except ConnectionError:
        raise
    except DAMAGED as problem:  # once the answer has begun, its connection is closed instead
        message = f"the log of attempt {attempt.number} cannot be read: {problem}"
        raise Refusal(HTTPStatus.CONFLICT, "unreadable_result", message) from problem


def log_headers(attempt: Attempt | None, start: int) -> dict[str, str]:
    """Which attempt's log it is, and where what is sent begins."""
    headers = {"Ferryman-Log-Offset": str(start)}
    if attempt is not None:
        headers["Ferryman-Log-Attempt"] = str(attempt.number)
    headers["Ferryman-Log-Ended"] = str(
        attempt is not None and attempt.ended_at is not None
    ).lower()
    return headers


async def find_attempt(context: Context, job: Job, number: int | None) -> Attempt | None:
    """The attempt, or the latest one; None: there is none yet. Raises NoSuchAttempt."""
    if number is not None:
        return await context.core.database.read(jobs.attempt, AttemptKey(job.id, number))
    latest = await context.core.database.read_list(jobs.attempts, job.id, 1)
    return latest[0] if latest else None


def has_started(job: Job, attempt: Attempt) -> bool:
    """Whether an agent has, or had, it."""
    if attempt.ended_at is not None:
        return True
    return job.attempt == attempt.number and job.state in states.AT_AGENT


def live_agent(
    context: Context, job: Job, attempt: Attempt, kind: LiveKind = LOG
) -> FerrymanAgent | None:
    """Who has what the attempt writes; None: it has ended, and has left it in its result.

    Raises:
        Refusal: nobody shows it now.
    """
    if attempt.ended_at is not None:
        return None
    if not has_started(job, attempt):
        raise not_started(job, kind)
    agent = context.core.registry.named(job.agent or "")
    if not isinstance(agent, FerrymanAgent):
        who = "a job-orchestrator client" if agent else "not in the server's settings"
        message = f"agent {job.agent} is {who}: {kind.what} can be read when the attempt has ended"
        raise Refusal(HTTPStatus.CONFLICT, kind.not_shown, message)
    return agent


def why_not(job: Job, attempt: Attempt, problem: AgentError, kind: LiveKind = LOG) -> Refusal:
    """The answer where an agent does not show it."""
    if isinstance(problem, NoSuchPayload):
        message = f"attempt {attempt.number} of job {job.id} has ended, its result is on the way"
        return Refusal(HTTPStatus.CONFLICT, kind.moves, message, retry_after_s=1)
    if isinstance(problem, RefusedByAgent):
        message = f"agent {job.agent} does not show {kind.what}: {problem}"
        return Refusal(HTTPStatus.CONFLICT, kind.not_shown, message)
    return Refusal(503, "agent_unreachable", str(problem), retry_after_s=5)


def not_started(job: Job, kind: LiveKind = LOG) -> Refusal:
    message = f"job {job.id} is {job.state}, and no attempt of it has started"
    if not job.ended and kind is LOG:
        message += "; follow=1 waits for one"
    return Refusal(HTTPStatus.CONFLICT, "not_started", message)
