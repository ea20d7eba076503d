"""Answers a request with a file: ranges, validators, digest, file name.

aiohttp's FileResponse makes an ETag of its own, sends a part although If-Range says that the file
has changed, uses a thread three times for a small file, and hides from the connection whether its
peer still reads.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

import structlog
from aiohttp import ETag, hdrs, web

from shared.files.opened import opened
from shared.http.kernel_copy import copy_by_kernel, in_thread
from shared.http.refusals import Denied


@dataclass(frozen=True, slots=True)
class Part:
    """What to send: the bytes from ``start`` up to, not including, ``stop``."""

    status: int
    start: int
    stop: int
    headers: Mapping[str, str]
    """Those that say which part it is."""


def requested_part(
    request: web.Request, size: int, etag: str | None, headers: Mapping[str, str]
) -> Part | web.Response:
    """The part that is asked for, or the whole answer where no content is to be sent.

    Args:
        etag: of the content, without quotes; None: it changes, so that no condition on it holds.
        headers: of an answer that it has not changed.

    Raises:
        Denied: it is another one than the request is about, or has nothing in the range.
    """
    if etag is not None and _matches(request.if_none_match, etag):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    if request.if_match is not None and (etag is None or not _matches(request.if_match, etag)):
        message = "the content is another one than If-Match names"
        raise Denied(HTTPStatus.PRECONDITION_FAILED, "precondition_failed", message)
    wanted = _range(request, size, etag)
    if wanted is None:
        return Part(HTTPStatus.OK, 0, size, {})
    start, stop = wanted
    if start >= stop:
        raise Denied(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            "invalid_range",
            f"it has {size} bytes, none of them in that range",
            {hdrs.CONTENT_RANGE: f"bytes */{size}"},
        )
    where: dict[str, str] = {hdrs.CONTENT_RANGE: f"bytes {start}-{stop - 1}/{size}"}
    return Part(HTTPStatus.PARTIAL_CONTENT, start, stop, where)


def _matches(wanted: tuple[ETag, ...] | None, etag: str) -> bool:
    return wanted is not None and any(tag.value in (etag, "*") for tag in wanted)


def _range(request: web.Request, size: int, etag: str | None) -> tuple[int, int] | None:
    """Start and stop; an empty range cannot be satisfied; None: send everything."""
    if_range = request.headers.get(hdrs.IF_RANGE)
    if request.method not in ("GET", "HEAD") or (
        if_range is not None and (etag is None or if_range.strip() != f'"{etag}"')
    ):
        return None
    if re.fullmatch(r"bytes=-0+", request.headers.get(hdrs.RANGE, "").strip()):
        return size, size  # the last 0 bytes; aiohttp would send all
    try:
        wanted = request.http_range
    except ValueError:
        return None  # several ranges or nonsense: RFC 9110 lets us ignore the header
    if wanted.start is None and wanted.stop is None:
        return None
    start, stop, _ = wanted.indices(size)
    return (start, stop) if size else (0, 0)


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_CHUNK: Final = 1 << 17
"""Memory for each answer, however slowly it is read; asyncio keeps a copy of what is not read."""
_SMALL: Final = 64 << 10


def zip_headers(filename: str, sha256: str | None, etag: str | None) -> dict[str, str]:
    """Of a ZIP that is to be saved under this name; its digest and its ETag, where it has them."""
    headers = {
        "Content-Type": "application/zip",
        "Content-Disposition": f'attachment; filename="{filename}"; '
        f"filename*=UTF-8''{quote(filename)}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache" if etag else "no-store",
    }
    if sha256 is not None:
        digest = base64.b64encode(bytes.fromhex(sha256)).decode()
        headers["Repr-Digest"] = f"sha-256=:{digest}:"
    if etag is not None:
        headers |= {"ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
    return headers


async def send_file(
    request: web.Request,
    source: Path | bytes,
    filename: str,
    sha256: str | None = None,
    etag: str | None = None,
) -> web.StreamResponse:
    """Send the file, or the range of it that was asked for.

    Args:
        source: where it is, or its bytes.
        sha256: hex digest of what is sent whole; None: a snapshot, neither cached nor resumed.
        etag: of what is sent whole; None: its digest.

    Raises:
        OSError: it cannot be read.
        Denied: it is another one than the request is about, or has nothing in the range.
    """
    etag = etag or sha256
    content: bytes | None
    if isinstance(source, bytes):
        size, content = len(source), source
    else:
        size, content = await in_thread(_size_and_content, source)
    headers = zip_headers(filename, sha256, etag)
    part = Part(HTTPStatus.OK, 0, size, {})
    if etag is not None:
        found = requested_part(request, size, etag, headers)
        if isinstance(found, web.Response):
            return found
        part = found
    headers |= part.headers
    start, stop, status = part.start, part.stop, part.status
    if content is not None and request.method != "HEAD":
        return web.Response(status=status, body=content[start:stop], headers=headers)
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = stop - start
    writer = await response.prepare(request)
    if request.method == "HEAD" or writer is None:
        return response
    assert isinstance(source, Path), "bytes have been sent"
    async with opened(lambda: source.open("rb", 0)) as file:
        writer.send_headers()
        try:
            at = await copy_by_kernel(request, file.fileno(), start, stop)
            writer.output_size += at - start
            while at < stop:
                chunk = await in_thread(_read, file.fileno(), min(_CHUNK, stop - at), at)
                await response.write(chunk)
                at += len(chunk)
        except EOFError:
            if request.transport is not None:
                request.transport.abort()  # its peer would wait for the rest
            log.exception("answer.too_short", path=request.path[:200])
            raise ConnectionResetError("the file is shorter than announced") from None
    await response.write_eof()
    return response


async def send_bytes(
    request: web.Request, body: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send bytes that are in memory, without a copy for each answer."""
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(body), _SMALL):
            await response.write(body[start : start + _SMALL])
    await response.write_eof()
    return response


async def send_chunks(
    request: web.Request,
    part: Part,
    headers: Mapping[str, str],
    chunks: Callable[[int, int], AsyncGenerator[bytes, None]],
) -> web.StreamResponse:
    """Send a part of what is read in chunks; memory is in proportion to one of them.

    Args:
        chunks: gives the bytes from one place up to another, at least.

    Raises:
        EOFError: it ends too early.
        Exception: what ``chunks`` raises; where it is the first chunk, the answer has not begun.
    """
    response = web.StreamResponse(status=part.status, headers={**headers, **part.headers})
    response.content_length = left = part.stop - part.start
    if request.method == "HEAD" or not left:
        await response.prepare(request)
        return response
    async with aclosing(chunks(part.start, part.stop)) as some:
        chunk = await anext(some, b"")  # before the answer begins: it can still be refused
        await response.prepare(request)
        while chunk and left:
            chunk = chunk[:left]
            left -= len(chunk)
            following = await anext(some, b"")  # before the last one is sent: it may be damaged
            await response.write(chunk)
            chunk = following
    if left:
        raise EOFError("it ends too early")
    await response.write_eof()
    return response


def _size_and_content(path: Path) -> tuple[int, bytes | None]:
    """Size, and the content of a small file: a second hop to a thread would take longer."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return size, os.pread(file.fileno(), size, 0) if size <= _SMALL else None


def _read(file: int, count: int, at: int) -> bytes:
    """Blocking."""
    if chunk := os.pread(file, count, at):
        return chunk
    raise EOFError("the file ends before")
