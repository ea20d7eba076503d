"""Receives a form: the loop that connects socket, parser and disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from shared.clock import yield_to_loop
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import Data
from shared.files.names import BundleError, shown
from shared.files.staged_file import ReserveSpace
from shared.multipart.headers import BadHeader, boundary_of, quotes_whole_names
from shared.multipart.parser import FilePart, FormLimits, FormParser, FormRefused
from shared.multipart.sinks import BundleSink, Naming, Sink, Step

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


_MOST_DELIMITERS: Final = 32
"""In one chunk."""
_PIECE: Final = 8 << 10

OnField = Callable[[str, str, dict[str, str]], None]
"""Called when a text field is complete, with its name, its value, and all fields so far."""
OnFirstFile = Callable[[dict[str, str]], Sink | None]
"""Called when the first file begins, with the fields so far; may choose where the files go."""


@dataclass
class Received:
    """A form that was received completely; its bundle is in its summary, or at ``staging``,
    fsynced.
    """

    fields: dict[str, str]
    bundle: BundleSummary


async def receive(
    chunks: AsyncIterable[bytes],
    content_type: str,
    content_length: int | None,
    *,
    staging: Path,
    limits: FormLimits,
    user_agent: str = "",
    naming: Naming = "filename",
    archives: bool = True,
    on_field: OnField | None = None,
    on_first_file: OnFirstFile | None = None,
    may_have_no_file: bool = False,
    reserve: ReserveSpace | None = None,
    threads: Threads | None = None,
) -> Received:
    """Stream a ``multipart/form-data`` body into a sealed bundle.

    Holds about two megabytes, however large the body, and 64 KiB of a small one. On any exception,
    cancellation included, nothing is left on the disk, and no thread still works on it.

    Args:
        chunks: the body.
        content_type: header of the request.
        content_length: header of the request; None: chunked.
        staging: path of the file to write; the name is not durable yet.
        user_agent: header of the request; aiohttp quotes names in a way of its own.
        naming, archives: see :class:`~shared.multipart.sinks.BundleSink`.
        on_field: may raise to refuse early.
        on_first_file: may raise to refuse early, or return a sink to use instead of a bundle's;
            None: a bundle's.
        may_have_no_file: such a form goes to the sink, too, which may add files of its own.
        reserve: called before so many more bytes are written, in a thread; may raise OSError.
        threads: where blocking work is done.

    Raises:
        FormRefused: also when the sender is gone before the form is complete.
        OSError: such as ENOSPC.
        BaseException: what the callbacks and ``chunks`` raise.
    """
    try:
        boundary = boundary_of(content_type)
    except BadHeader as problem:
        status = 415 if problem.code == "not_multipart" else 400
        raise FormRefused(status, problem.code, problem.message) from None
    if content_length is not None and content_length > limits.max_bytes + limits.max_overhead:
        message = f"the files are larger than the limit of {limits.max_bytes} bytes"
        raise FormRefused(413, "too_large", message)
    default = BundleSink(staging, limits, naming, archives=archives, reserve=reserve)
    receiver = _Receiver(default, on_field, on_first_file, threads or Threads())
    quoted_whole = quotes_whole_names(user_agent)
    parser = FormParser(boundary, limits, receiver, quoted_whole=quoted_whole)
    try:
        await _feed(chunks, content_length, parser, receiver)
        if may_have_no_file:
            receiver.open()
        return Received(receiver.fields, await receiver.finish())
    except BaseException as problem:
        if receiver.writer is not None:
            await receiver.writer.abort()
        if isinstance(problem, BundleError):
            raise FormRefused.of_bundle(problem) from None
        raise


async def _feed(
    chunks: AsyncIterable[bytes],
    content_length: int | None,
    parser: FormParser,
    receiver: _Receiver,
) -> None:
    received = 0
    try:
        async for chunk in chunks:
            received += len(chunk)
            if content_length is not None and received > content_length:
                raise _wrong_length(f"more than the {content_length} bytes")
            if parser.feed_content(chunk):
                pass
            elif parser.delimiters(chunk) <= _MOST_DELIMITERS:
                parser.feed(chunk)
            else:
                await _feed_in_pieces(chunk, parser, receiver.threads)
            if receiver.writer is not None:
                await receiver.writer.drain()
            del chunk  # not to be held while the next one is waited for
    except ConnectionError:
        parser.close()  # says where the body ends
        raise
    if content_length is not None and received != content_length:
        raise _wrong_length(f"{received} of the {content_length} bytes")
    parser.close()


async def _feed_in_pieces(chunk: bytes, parser: FormParser, threads: Threads) -> None:
    """Feed a chunk of many small parts a little at a time. Only one such
    form is parsed at a time, and other tasks run in between.
    """
    for at in range(0, len(chunk), _PIECE):
        async with threads.parsing or nullcontext():
            parser.feed(chunk[at : at + _PIECE])
            await yield_to_loop()


def _wrong_length(what: str) -> FormRefused:
    message = f"the body's length is not as declared: {what} of the Content-Length header came"
    return FormRefused(400, "wrong_length", message)


class _Receiver:
    """Collects the fields and passes the files on."""

    def __init__(
        self,
        default: Sink,
        on_field: OnField | None,
        on_first_file: OnFirstFile | None,
        threads: Threads,
    ) -> None:
        self._default, self._on_field, self._on_first_file = default, on_field, on_first_file
        self.threads = threads
        self.fields: dict[str, str] = {}
        self.writer: BatchWriter | None = None

    def field(self, name: str, value: str) -> None:
        if name in self.fields:
            message = f"the text field {shown(name)} is there twice"
            raise FormRefused(400, "duplicate_field", message, name)
        self.fields[name] = value
        if self._on_field is not None:
            self._on_field(name, value, self.fields)

    def open(self) -> BatchWriter:
        """Choose where the files go."""
        if self.writer is None:
            chosen = None if self._on_first_file is None else self._on_first_file(self.fields)
            self.writer = BatchWriter(chosen or self._default, self.threads)
        return self.writer

    def file_begins(self, part: FilePart) -> None:
        self.open().put(part)

    def file_data(self, data: bytes | memoryview) -> None:
        if self.writer is not None:
            self.writer.put(data)

    def file_ends(self) -> None:
        if self.writer is not None:
            self.writer.put(None)

    async def finish(self) -> BundleSummary:
        if self.writer is None:
            raise FormRefused(400, "no_file", "the form has no file; it needs at least a run.sh")
        return await self.writer.finish(self.fields)
