"""Passes a form from the event loop to a worker thread, in batches, with bounded memory.

One batch is written while the next one fills. A full batch waits for the one before, and nothing
more is read from the socket meanwhile. A form that fits in one batch costs one hop to a thread. An
upload that waits for its sender holds no thread and little memory: batches grow with what was
received, so only uploads of many megabytes have large ones. A form so small that its bundle stays
in memory needs no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import Data
from shared.multipart.parser import FilePart
from shared.multipart.sinks import BundleSink, Sink, Step

BATCH: Final = 1 << 20
"""Bytes of the largest batch."""
FIRST_BATCH: Final = 64 << 10
_GROWTH: Final = 16
"""Until then a batch has at most the 16th part of what was received."""
_STEP_BYTES: Final = 128
"""Memory of a step beside its data: a body may come in pieces of one byte."""


_R = TypeVar("_R", None, BundleSummary)


@asynccontextmanager
async def _at_once(_: dict[str, str]) -> AsyncIterator[Executor | None]:
    yield None


@dataclass(frozen=True, slots=True)
class Threads:
    """Where a form's blocking work is done; None: in the loop's own threads."""

    receiving: Executor | None = None
    """Bytes to the disk."""
    expanding: Callable[[dict[str, str]], AbstractAsyncContextManager[Executor | None]] = _at_once
    """Gets the form's fields; entered when this archive may be expanded."""
    parsing: asyncio.Lock | None = None
    """Shared by forms that take long to parse for their size: one at a time."""


class BatchWriter:
    """Runs a sink's methods in a worker thread, in order.

    After an exception only ``abort`` may be called.

    Raises:
        BaseException: whatever the sink raises, from ``drain`` or ``finish``, later than its cause.
    """

    def __init__(self, sink: Sink, threads: Threads) -> None:
        self._sink, self._threads = sink, threads
        self._steps: list[Step] = []
        self._size = self._written = 0
        self._running: asyncio.Future[None] | asyncio.Future[BundleSummary] | None = None
        self._started = self._expands = False

    def put(self, step: Step) -> None:
        """Add a step; does not wait."""
        self._steps.append(step)
        if isinstance(step, FilePart):
            self._expands = self._expands or self._sink.expands(step)
        self._size += _STEP_BYTES
        if isinstance(step, bytes | bytearray | memoryview):
            self._size += len(step)

    async def drain(self) -> None:
        """Start to write the batch, if it is full. Waits until the one before is written."""
        if self._size < min(BATCH, max(FIRST_BATCH, self._written // _GROWTH)):
            return
        if self._running is not None:
            await asyncio.shield(self._running)
        self._run(self._apply)

    def _run(self, apply: Callable[[list[Step]], _R]) -> asyncio.Future[_R]:
        steps, self._steps = self._steps, []
        self._written += self._size
        self._size = 0
        self._started = True
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads.receiving, apply, steps)
        self._running = running
        return running

    async def finish(self, fields: dict[str, str]) -> BundleSummary:
        """Write the rest and finish the sink.

        Args:
            fields: of the form, for :attr:`Threads.expanding`.
        """
        if self._running is not None:
            await asyncio.shield(self._running)
        if not self._expands:
            if self._fits_in_memory():
                self._started = True
                return self._apply_and_finish(self._steps)
            return await asyncio.shield(self._run(self._apply_and_finish))
        await asyncio.shield(self._run(self._apply))
        # A cancelled wait for its turn ends at once; an expansion that has begun is waited for.
        async with self._threads.expanding(fields) as executor:
            last = asyncio.get_running_loop().run_in_executor(executor, self._sink.finish)
            self._running = last
            return await asyncio.shield(last)

    def _fits_in_memory(self) -> bool:
        sink = self._sink
        return (
            not self._started and isinstance(sink, BundleSink) and sink.fits_in_memory(self._steps)
        )

    async def abort(self) -> None:
        """Abort the sink once the thread is done. A cancellation has to wait for that."""
        cancelled = False
        if self._running is not None:
            cancelled = await _until_done(self._running)
        self._steps.clear()
        if self._started:
            loop = asyncio.get_running_loop()
            undo = loop.run_in_executor(self._threads.receiving, self._sink.abort)
            cancelled |= await _until_done(undo)
        if cancelled:
            raise asyncio.CancelledError

    def _apply(self, steps: list[Step]) -> None:
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
        # In one piece: each call that hashes or writes releases the interpreter's lock, and then
        # waits to get it back from a loop that is parsing.
        if data:
            self._sink.write(data[0] if len(data) == 1 else b"".join(data))
            data.clear()

    def _apply_and_finish(self, steps: list[Step]) -> BundleSummary:
        self._apply(steps)
        return self._sink.finish()


async def _until_done(future: asyncio.Future[None] | asyncio.Future[BundleSummary]) -> bool:
    """Wait for the future, even if this task is cancelled; returns whether it was."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    if not future.cancelled():
        future.exception()  # otherwise asyncio would log that it was never retrieved
    return cancelled
