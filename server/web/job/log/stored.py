"""The log of an attempt that has ended, read from any place of it.

What is compressed can be unpacked from its beginning only. So the state of the unpacker is kept
for every so many bytes, and reading goes on from the last one before the place.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

from server.domain.attempts import Attempt
from server.domain.files import FileKind
from server.domain.jobs import Job
from server.http.context import Context
from server.http.problems import Refusal
from server.http.results import missing_result
from server.http.stored_log import Receipt, nothing_left
from server.web.job.log.index import States
from server.web.job.log.window import Read
from shared.files.archives.zip_content import read_content, read_range
from shared.files.archives.zip_directory import STORED, ZipEntry
from shared.files.archives.zip_index import ZipIndex
from shared.files.descriptors import closing_fd
from shared.files.errors import BundleError

_RECEIPT: Final = "ferryman.json"
_MAX_RECEIPT: Final = 1 << 20
_CHUNK: Final = 1 << 18
_PACKED: Final = 1 << 16
_STATES: Final = 32
"""Of one log, about 40 KiB each."""
_BETWEEN: Final = 1 << 20
"""Bytes between two of them, at least."""


class Unpacker:
    """Unpacks one log. Its method blocks.

    Args:
        states: places that were reached -> bytes read to get there, and the state. Other unpackers
            of the same log add to it, too.
    """

    def __init__(self, path: Path, entry: ZipEntry, states: States) -> None:
        self._path, self._entry, self._states = path, entry, states
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
            if entry.method == STORED:
                yield from read_range(fd, entry.offset + start, stop - start, _CHUNK, entry.name)
            else:
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
                piece = engine.decompress(data, _CHUNK)
                taken += len(data) - len(engine.unconsumed_tail)
                data = engine.unconsumed_tail
                yield piece[max(0, start - at) : stop - at]
                at += len(piece)
                if at - last >= self._between and len(self._states) <= _STATES:
                    last = at
                    self._states.setdefault(at, (taken, engine.copy()))
                if at >= stop:
                    return
                # A full piece may mean that more waits inside, although all input is taken.
                if engine.eof or not (data or len(piece) == _CHUNK):
                    break
        raise EOFError("it is shorter than it says")


@asynccontextmanager
async def stored_log(
    context: Context, job: Job, attempt: Attempt, stream: str, states: States
) -> AsyncIterator[tuple[int, Read]]:
    """The size of a log, and its bytes from one position to another.

    Args:
        states: see :class:`Unpacker`.

    Raises:
        Refusal: why there is none.
    """
    if attempt.result is None:
        raise nothing_left(job, attempt)
    async with context.storage.local_copy(FileKind.RESULT, attempt.result.file) as path:
        try:
            async with context.unpacking:
                entry = await asyncio.to_thread(_find, path, attempt.result.section, stream)
        except FileNotFoundError:
            raise await missing_result(context, job, attempt.number) from None
        except (BundleError, LookupError, ValueError) as problem:
            why = f"the result of the attempt has no such log: {problem}"
            raise Refusal(HTTPStatus.CONFLICT, "no_log", why) from problem
        unpacker = Unpacker(path, entry, states)

        async def read(start: int, stop: int) -> AsyncGenerator[bytes, None]:
            pieces = unpacker.read(start, stop)
            while True:
                async with context.unpacking:
                    piece = await asyncio.to_thread(next, pieces, None)
                if piece is None:
                    return
                if piece:
                    yield piece

        yield entry.size, read


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
