"""The bodies of requests that bring an agent bundles, sent chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from server.ports import FileStream
from shared.files.bundles.reader import BundleReader

_CHUNK: Final = 1 << 20
_SMALL: Final = 256 << 10
_MULTIPART: Final = "multipart/form-data; boundary="


class Form:
    """A body with bundles.

    Attributes:
        bundles: how many.
        size: bytes of the whole body.
        taken: chunks that the connection has taken.
        sent: it has taken the last chunk; before that no agent can have accepted the form.
    """

    def __init__(
        self, content_type: str, size: int, source: AsyncIterator[bytes], bundles: int = 1
    ) -> None:
        self.content_type, self.bundles = content_type, bundles
        self.size, self.taken, self.sent = size, 0, False
        self._source = source

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.size <= _SMALL:
            body = b"".join([chunk async for chunk in self._source])
            self.sent = True
            yield body
            return
        chunk = await anext(self._source, None)
        while chunk is not None:
            following = await anext(self._source, None)
            self.sent = following is None
            self.taken += 1
            yield chunk
            chunk = following


def zipped(order: str, bundle: FileStream, boundary: str, inputs: FileStream | None = None) -> Form:
    """For a Ferryman agent: the order, then the bundle as it is, then the inputs."""
    head = _head(boundary, "order") + order.encode() + b"\r\n"
    head += _head(boundary, "bundle", "bundle.zip")
    between = b"" if inputs is None else b"\r\n" + _head(boundary, "inputs", "inputs.zip")
    tail = f"\r\n--{boundary}--\r\n".encode()

    async def source() -> AsyncIterator[bytes]:
        yield head
        async for chunk in bundle:
            yield chunk
        if inputs is not None:
            yield between
            async for chunk in inputs:
                yield chunk
        yield tail

    size = len(head) + bundle.size + len(between) + (0 if inputs is None else inputs.size)
    return Form(_MULTIPART + boundary, size + len(tail), source())


def together(line: str, bundles: Sequence[bytes]) -> Form:
    """For a Ferryman agent: a line, then small bundles one after the other."""
    head = line.encode() + b"\n"

    async def source() -> AsyncIterator[bytes]:
        yield head
        for bundle in bundles:
            yield bundle

    size = len(head) + sum(map(len, bundles))
    return Form("application/octet-stream", size, source(), len(bundles))


def plain(bundle: Path, boundary: str) -> Form:
    """For a job-orchestrator client: a part for each file, its relative path as the part's name.

    Blocks: for a thread.
    """
    with BundleReader(bundle) as reader:
        heads = [
            (entry, _head(boundary, entry.path, PurePosixPath(entry.path).name))
            for entry in reader.entries
        ]
    tail = f"--{boundary}--\r\n".encode()
    size = sum(len(head) + entry.size + 2 for entry, head in heads) + len(tail)

    def source() -> Iterator[bytes]:
        with BundleReader(bundle) as reader:
            for entry, head in heads:
                yield head
                yield from reader.content(entry.path, _CHUNK)
                yield b"\r\n"
        yield tail

    return Form(_MULTIPART + boundary, size, _from_thread(source()))


async def _from_thread(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await asyncio.to_thread(next, source, None)) is not None:
        yield chunk


def _head(boundary: str, name: str, filename: str | None = None) -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'
    if filename is not None:
        head += f'; filename="{_quoted(filename)}"\r\nContent-Type: application/octet-stream'
    return f"{head}\r\n\r\n".encode()


def _quoted(text: str) -> str:
    """As browsers do it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
