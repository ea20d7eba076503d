"""Receives a form: the loop that connects socket, parser and disk."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.clock import yield_to_loop
from shared.files.bundles.format import BundleSummary
from shared.files.errors import BundleError
from shared.files.names import shown
from shared.files.staged_file import ReserveSpace
from shared.multipart.batches import BatchWriter, Threads
from shared.multipart.headers import BadHeader, boundary_of, quotes_whole_names
from shared.multipart.parser import FilePart, FormLimits, FormParser, FormRefused
from shared.multipart.sinks import BundleSink, Naming, Sink

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
        on_first_file: may raise to refuse early, or return a sink to use instead of a bundle's,
            such as :class:`~shared.multipart.sinks.RawSink`; None: a bundle's.
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
