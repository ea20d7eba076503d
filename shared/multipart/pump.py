"""From the event loop to a worker thread, in batches, with bounded memory.

One batch is written while the next one fills; a batch that is full waits for the one before, and
nothing more is read from the socket meanwhile. A form that fits one batch costs one hop to a
thread, and an upload that waits for its sender holds no thread.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from shared.files.sealed import Sealed
from shared.files.writer import Data
from shared.multipart.form import FilePart
from shared.multipart.sinks import Sink

BATCH: Final = 1 << 20
"""Bytes handed to the thread at once."""
_STEP_BYTES: Final = 128
"""What a step costs in memory beside its data: a body may come in pieces of one byte."""

_Step: TypeAlias = FilePart | Data | None
"""A file begins; some content of it; it ends."""


class Pump:
    """Runs a sink's methods in a worker thread, in order.

    After an exception only ``abort`` may be called.

    Raises:
        BaseException: whatever the sink raises, from ``drain`` or ``finish``, later than its cause.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._steps: list[_Step] = []
        self._size = 0
        self._running: asyncio.Future[None] | asyncio.Future[Sealed] | None = None
        self._touched = False

    def put(self, step: _Step) -> None:
        """Add a step; does not wait."""
        self._steps.append(step)
        self._size += _STEP_BYTES
        if isinstance(step, bytes | bytearray | memoryview):
            self._size += len(step)

    async def drain(self) -> None:
        """Hand over what has come, if it is worth it; wait while the thread is behind."""
        if self._size < BATCH:
            return
        if self._running is not None:
            await asyncio.shield(self._running)
        steps, self._steps, self._size = self._steps, [], 0
        self._touched = True
        self._running = asyncio.get_running_loop().run_in_executor(None, self._apply, steps)

    async def finish(self) -> Sealed:
        """Write the rest and finish the sink."""
        if self._running is not None:
            await asyncio.shield(self._running)
        self._touched = True
        loop = asyncio.get_running_loop()
        last = loop.run_in_executor(None, self._apply_and_finish, self._steps)
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
            cancelled |= await _until_done(loop.run_in_executor(None, self._sink.abort))
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
