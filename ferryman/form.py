"""A multipart form whose length is known before it is sent, made in pieces: memory stays flat."""

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
from typing import Final, TypeAlias, TypedDict

from ferryman.bundle import Part
from ferryman.errors import BadArgument, BadBundle, FileChanged

BATCH: Final = 1 << 20
"""Bytes read in one go; also one hop to a thread."""

Told: TypeAlias = Callable[[int, int], None]
"""Is told of progress: bytes done, bytes in all."""


class Form:
    """``multipart/form-data`` (RFC 7578): text fields first, so that a refusal can come early.

    Args:
        fields: names and values.
        parts: files; each file name is the path in the bundle.
        boundary: for tests; must not occur in any file.
    """

    def __init__(
        self, fields: Iterable[tuple[str, str]], parts: Sequence[Part], boundary: str | None = None
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

    async def stream(self, told: Told | None = None) -> AsyncIterator[bytes]:
        """:meth:`batches`, read in threads."""
        batches = self.batches()
        sent = 0
        try:
            while batch := await asyncio.to_thread(next, batches, b""):
                yield batch
                sent += len(batch)
                if told is not None:
                    told(sent, self.size)
        finally:
            # A thread may still be inside after a cancellation; it closes the file when it is done.
            with contextlib.suppress(ValueError):
                batches.close()


class Asked(TypedDict, total=False):
    """Limits that an upload asks for; None: the service's."""

    memory: str | int | None
    disk: str | int | None
    cpus: str | float | None
    pids: str | int | None


LIMITS: Final = frozenset({"timeout", *Asked.__annotations__})


def fields_of(
    service: str,
    user: str | None,
    name: str | None,
    tags: str | Iterable[str],
    timeout: str | float | None,
    limits: Asked,
) -> list[tuple[str, str]]:
    """The text fields of an upload. What their values may be is the server's to say.

    Raises:
        BadArgument
    """
    if not user:
        raise BadArgument("whose job is it? give user=…, here or to the client")
    fields = [("user_id", user), ("service", service)]
    if name:
        fields.append(("name", name))
    marked = [tags] if isinstance(tags, str) else list(tags)
    if any("," in tag for tag in marked):
        raise BadArgument("a tag cannot have a comma")
    if marked:
        fields.append(("tags", ",".join(marked)))
    if timeout is not None:
        fields.append(("timeout", timeout if isinstance(timeout, str) else f"{_plain(timeout)}s"))
    for limit, value in limits.items():
        if value is not None:
            assert isinstance(value, str | int | float), "as Asked says"
            fields.append((limit, value if isinstance(value, str) else _plain(value)))
    return fields


def _plain(number: float) -> str:
    """Without an exponent, which no duration or size has."""
    return str(number) if isinstance(number, int) else f"{number:f}".rstrip("0").rstrip(".")


def _disposition(field: str, filename: str | None = None) -> bytes:
    text = f'\r\nContent-Disposition: form-data; name="{_quoted(field)}"'
    if filename is not None:
        text += f'; filename="{_quoted(filename)}"'
    return text.encode()


def _quoted(text: str) -> str:
    """As browsers do it; a bundle's names have none of the others that could end the header."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _content(part: Part) -> Iterator[bytes]:
    if isinstance(part.source, bytes):
        yield from (part.source[at : at + BATCH] for at in range(0, part.size, BATCH))
        return
    path = part.source
    try:
        with path.open("rb", buffering=0) as file:
            left = part.size
            _check_same(part, path, file.fileno())
            while left:
                piece = file.read(min(left, BATCH))
                if not piece:
                    raise FileChanged(path)
                left -= len(piece)
                yield piece
            _check_same(part, path, file.fileno())
    except OSError as problem:
        raise BadBundle(f"{path}: {problem.strerror}", path) from problem


def _check_same(part: Part, path: Path, fd: int) -> None:
    info = os.fstat(fd)
    now = (info.st_dev, info.st_ino, info.st_mtime_ns)
    if info.st_size != part.size or now != part.seen:
        raise FileChanged(path)
