"""The logs of attempts that have ended, read out of their stored results from any place.

What is compressed can be unpacked from its beginning only. So the state of the unpacker can be kept
for every so many bytes, and reading goes on from the last one before the place.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from server.domain.jobs import Attempt, FileKind, Job
from server.http.context import Context
from server.http.problems import Refusal
from server.http.results import cleaned, missing_result
from shared.files.archives.zip_content import read_content, read_range
from shared.files.archives.zip_directory import STORED, ZipEntry
from shared.files.archives.zip_index import ZipIndex
from shared.files.descriptors import closing_fd
from shared.files.errors import BundleError
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
                at = entry.offset + start
                yield from read_range(fd, at, stop - start, self._chunk, entry.name)
            elif stop > start:
                yield from self._inflate(fd, start, stop)

    def _inflate(self, fd: int, start: int, stop: int) -> Iterator[bytes]:
        entry = self._entry
        places = sorted(self._states)
        near = bisect_right(places, start) - 1
        at = places[near] if near >= 0 else 0
        taken, state = self._states[at] if near >= 0 else (0, zlib.decompressobj(-zlib.MAX_WBITS))
        engine, last = state.copy(), at
        for packed in read_range(fd, entry.offset + taken, entry.packed - taken, _PACKED):
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
        while (piece := await self._context.reads.run(next, pieces, None)) is not None:
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
    async with context.storage.local_copy(FileKind.RESULT, attempt.result.file) as path:
        try:
            entry = await context.reads.run(_find, path, attempt.result.section, stream)
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


def _find(path: Path, section: tuple[int, int], stream: str) -> ZipEntry:
    """Where the log is in a result. Blocking."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        index = ZipIndex(fd, *section)
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
