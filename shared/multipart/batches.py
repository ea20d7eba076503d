"""From the event loop to a worker thread, in batches, with bounded memory.

One batch is written while the next one fills; a batch that is full waits for the one before, and
nothing more is read from the socket meanwhile. A form that fits one batch costs one hop to a
thread, and an upload that waits for its sender holds no thread and little memory: batches grow with
what has come, so that only uploads that have brought megabytes hold one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from shared.files.bundles.format import Sealed
from shared.files.bundles.writer import Data
from shared.multipart.parser import FilePart
from shared.multipart.sinks import Sink

BATCH: Final = 1 << 20
"""Bytes handed to the thread at once, when much has come."""
FIRST_BATCH: Final = 64 << 10
_GROWTH: Final = 16
"""A batch is at most this part of what has come."""
_STEP_BYTES: Final = 128
"""What a step costs in memory beside its data: a body may come in pieces of one byte."""

_Step: TypeAlias = FilePart | Data | None
"""A file begins; some content of it; it ends."""


_R = TypeVar("_R", None, Sealed)


@asynccontextmanager
async def _at_once(_: dict[str, str]) -> AsyncIterator[Executor | None]:
    yield None


@dataclass(frozen=True, slots=True)
class Threads:
    """Where a form's blocking work is done; None: in the loop's own threads."""

    receiving: Executor | None = None
    """Bytes to the disk."""
    expanding: Callable[[dict[str, str]], AbstractAsyncContextManager[Executor | None]] = _at_once
    """Gets the form's fields; entered when it is the turn of this archive to be expanded."""
    parsing: asyncio.Lock | None = None
    """Shared by forms that take long to parse for their size: one at a time."""


class Pump:
    """Runs a sink's methods in a worker thread, in order.

    After an exception only ``abort`` may be called.

    Raises:
        BaseException: whatever the sink raises, from ``drain`` or ``finish``, later than its cause.
    """

    def __init__(self, sink: Sink, threads: Threads) -> None:
        self._sink, self._threads = sink, threads
        self._steps: list[_Step] = []
        self._size = self._handed_over = 0
        self._running: asyncio.Future[None] | asyncio.Future[Sealed] | None = None
        self._touched = self._expands = False

    def put(self, step: _Step) -> None:
        """Add a step; does not wait."""
        self._steps.append(step)
        if isinstance(step, FilePart):
            self._expands = self._expands or self._sink.expands(step)
        self._size += _STEP_BYTES
        if isinstance(step, bytes | bytearray | memoryview):
            self._size += len(step)

    async def drain(self) -> None:
        """Hand over what has come, if it is worth it; wait while the thread is behind."""
        if self._size < min(BATCH, max(FIRST_BATCH, self._handed_over // _GROWTH)):
            return
        if self._running is not None:
            await asyncio.shield(self._running)
        self._run(self._apply)

    def _run(self, apply: Callable[[list[_Step]], _R]) -> asyncio.Future[_R]:
        steps, self._steps = self._steps, []
        self._handed_over += self._size
        self._size = 0
        self._touched = True
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads.receiving, apply, steps)
        self._running = running
        return running

    async def finish(self, fields: dict[str, str]) -> Sealed:
        """Write the rest and finish the sink.

        Args:
            fields: of the form, which may say whose turn it is to expand an archive.
        """
        if self._running is not None:
            await asyncio.shield(self._running)
        if not self._expands:
            return await asyncio.shield(self._run(self._apply_and_finish))
        await asyncio.shield(self._run(self._apply))
        # A wait for its turn that is cancelled ends at once; what has begun is waited for.
        async with self._threads.expanding(fields) as executor:
            last = asyncio.get_running_loop().run_in_executor(executor, self._sink.finish)
            self._running = last
            return await asyncio.shield(last)

    async def abort(self) -> None:
        """Once the thread is done, and not before, abort the sink; cancellation has to wait."""
        cancelled = False
        if self._running is not None:
            cancelled = await _until_done(self._running)
        self._steps.clear()
        if self._touched:
            loop = asyncio.get_running_loop()
            undo = loop.run_in_executor(self._threads.receiving, self._sink.abort)
            cancelled |= await _until_done(undo)
        if cancelled:
            raise asyncio.CancelledError

    def _apply(self, steps: list[_Step]) -> None:
        data: list[Data] = []
        for step in steps:
            if isinstance(step, bytes | bytearray | memoryview):
                data.append(step)
                continue
            self._write(data)
            if step is None:
                self._sink.end()
            else:
                self._sink.begin(step)
        self._write(data)

    def _write(self, data: list[Data]) -> None:
        # In one piece: hashing and writing give the interpreter's lock back once per call, and
        # each time wait to get it again from a loop that is parsing.
        if data:
            self._sink.write(data[0] if len(data) == 1 else b"".join(data))
            data.clear()

    def _apply_and_finish(self, steps: list[_Step]) -> Sealed:
        self._apply(steps)
        return self._sink.finish()


async def _until_done(future: asyncio.Future[None] | asyncio.Future[Sealed]) -> bool:
    """Wait for the future, however it ends, and even if this task is cancelled; whether it was."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    if not future.cancelled():
        future.exception()  # seen: asyncio must not complain that nobody looked
    return cancelled
