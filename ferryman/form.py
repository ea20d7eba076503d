"""The body of an upload: a multipart form of known length, made in pieces with flat memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from pathlib import Path
from typing import IO, Final, TypeAlias
from urllib.parse import quote

from ferryman.bundle import BundleFile, Files, close_copies, gather
from ferryman.errors import BadBundle, FileChanged

BATCH: Final = 1 << 20
"""Bytes read in one go; also one hop to a thread."""

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class FormBody:
    """``multipart/form-data`` (RFC 7578): text fields first, so that a refusal can come early.

    Args:
        fields: names and values.
        parts: files; each file name is the path in the bundle.
        boundary: for tests; must not occur in any file.
    """

    def __init__(
        self,
        fields: Iterable[tuple[str, str]],
        parts: Sequence[BundleFile],
        boundary: str | None = None,
    ) -> None:
        self._boundary = boundary or f"ferryman-{secrets.token_hex(16)}"
        opening = b"--" + self._boundary.encode()
        self._text = b"".join(
            opening + _disposition(name) + b"\r\n\r\n" + value.encode() + b"\r\n"
            for name, value in fields
        )
        self._parts = [
            (
                opening
                + _disposition(part.field, part.name)
                + b"\r\nContent-Type: application/octet-stream\r\n\r\n",
                part,
            )
            for part in parts
        ]
        self._end = opening + b"--\r\n"
        self.content_type = f"multipart/form-data; boundary={self._boundary}"
        self.size = (
            len(self._text)
            + sum(len(head) + part.size + 2 for head, part in self._parts)
            + len(self._end)
        )
        """Bytes of the body: the Content-Length."""

    def pieces(self) -> Iterator[bytes]:
        """The body, in pieces of at most :data:`BATCH` bytes.

        Raises:
            FileChanged: a file is not what it was when its size was read.
            BadBundle: a file cannot be read any more.
        """
        yield self._text
        for head, part in self._parts:
            yield head
            yield from _content(part)
            yield b"\r\n"
        yield self._end

    def batches(self) -> Generator[bytes, None, None]:
        """:meth:`pieces`, small ones joined."""
        waiting: list[bytes] = []
        size = 0
        for piece in self.pieces():
            if size + len(piece) > BATCH:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(piece)
            size += len(piece)
        yield b"".join(waiting)

    async def stream(self, on_progress: ProgressCallback | None = None) -> AsyncIterator[bytes]:
        """:meth:`batches`, read in threads."""
        batches = self.batches()
        sent = 0
        try:
            while batch := await asyncio.to_thread(next, batches, b""):
                yield batch
                sent += len(batch)
                if on_progress is not None:
                    on_progress(sent, self.size)
        finally:
            # A thread may still be inside after a cancellation; it closes the file when it is done.
            with contextlib.suppress(ValueError):
                batches.close()


@contextlib.asynccontextmanager
async def form_of(fields: Iterable[tuple[str, str]], files: Files) -> AsyncIterator[FormBody]:
    """The form of an upload.

    Raises:
        BadBundle
    """
    parts = await asyncio.to_thread(gather, files)
    try:
        yield FormBody(fields, parts)
    finally:
        close_copies(parts)


def _disposition(field: str, filename: str | None = None) -> bytes:
    text = f'\r\nContent-Disposition: form-data; name="{_quoted(field)}"'
    if filename is not None and set('%"\\').isdisjoint(filename):
        text += f'; filename="{_quoted(filename)}"'
    elif filename is not None:
        # In a plain file name, these could be meant as they are, or as the sign for another one.
        text += f"; filename*=UTF-8''{quote(filename)}"
    return text.encode()


def _quoted(text: str) -> str:
    """As browsers do it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _content(part: BundleFile) -> Iterator[bytes]:
    if isinstance(part.source, bytes):
        yield from (part.source[at : at + BATCH] for at in range(0, part.size, BATCH))
        return
    if not isinstance(part.source, Path):
        try:
            part.source.seek(part.start)
            yield from _pieces(part.source, part.size, Path(part.name))
        except (OSError, ValueError) as problem:  # ValueError: it is closed
            raise BadBundle(f"{part.name} cannot be read: {problem}", part.name) from problem
        return
    path = part.source
    try:
        with path.open("rb", buffering=0) as file:
            _check_same(part, path, file.fileno())
            yield from _pieces(file, part.size, path)
            _check_same(part, path, file.fileno())
    except OSError as problem:
        raise BadBundle(f"{path}: {problem.strerror}", path) from problem


def _pieces(file: IO[bytes], size: int, path: Path) -> Iterator[bytes]:
    left = size
    while left:
        piece = file.read(min(left, BATCH))
        if not piece:
            raise FileChanged(path)
        left -= len(piece)
        yield piece


def _check_same(part: BundleFile, path: Path, fd: int) -> None:
    info = os.fstat(fd)
    now = (info.st_dev, info.st_ino, info.st_mtime_ns)
    if info.st_size != part.size or now != part.identity:
        raise FileChanged(path)
