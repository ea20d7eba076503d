"""Downloads a file: resumed after a break, checked, visible under its name only when complete."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import aiohttp

from ferryman.answer_errors import no_result
from ferryman.errors import (
    BadDownload,
    FerrymanError,
    NotReady,
    NotUnderstood,
    Refused,
)
from ferryman.form import BATCH, ProgressCallback
from ferryman.transport import Transport

_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")
_RANGE: Final = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that was downloaded completely."""

    path: Path
    size: int
    """Bytes."""
    sha256: str
    """Hex."""
    checked: bool
    """Whether the server sent a SHA-256, which was compared."""


class Download:
    """One download of a ZIP."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        target: Path,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        self._transport, self._path = transport, path
        self._target, self._on_progress = target, on_progress
        # Beside the target, so that the final rename stays on one file system.
        self._partial = target.parent / f".{target.name[:200]}.{secrets.token_hex(4)}.part"
        self._received = 0
        self._hash = hashlib.sha256()
        self._etag: str | None = None
        self._expected: str | None = None

    async def run(self) -> Downloaded:
        """Fetch it.

        Raises:
            BadDownload: damaged in transfer, twice.
            NotReady, NoResult, Unreachable, NotUnderstood, Refused
            OSError: the file cannot be written.
        """
        file = self._create()
        try:
            try:
                await self._fetch(file)
            except BadDownload:
                await self._restart(file)
                await self._fetch(file)
            await asyncio.to_thread(self._finish, file)
        except BaseException as problem:
            file.close()
            self._partial.unlink(missing_ok=True)
            if isinstance(problem, Refused):
                raise no_result(problem) from None
            raise
        return Downloaded(
            self._target, self._received, self._hash.hexdigest(), self._expected is not None
        )

    def _create(self) -> IO[bytes]:
        # Not in a thread: whoever is cancelled while one makes the file could not remove it.
        return self._partial.open("xb")

    async def _fetch(self, file: IO[bytes]) -> None:
        while True:
            before = self._received
            try:
                await self._transport.retry(lambda: self._fetch_once(file))
            except FerrymanError:
                # As long as bytes come, go on; retry_for limits only the tries that bring none.
                if self._received <= before or self._etag is None:
                    raise
            else:
                break
        got = self._hash.hexdigest()
        if self._expected not in {None, got}:
            raise BadDownload(str(self._target), str(self._expected), got)

    async def _fetch_once(self, file: IO[bytes]) -> None:
        headers = {}
        if self._received and self._etag:
            headers = {"Range": f"bytes={self._received}-", "If-Range": self._etag}
        elif self._received:
            await self._restart(file)
        async with self._transport.answer("GET", self._path, headers=headers) as answer:
            _check_is_file(answer)
            if answer.status == 206:
                sent_range = _RANGE.match(answer.headers.get("Content-Range", ""))
                if sent_range is None or int(sent_range[1]) != self._received:
                    raise NotUnderstood(str(answer.url), "it sent another range than asked for")
            elif self._received:
                await self._restart(file)
            self._etag = _strong_etag(answer.headers.get("ETag"))
            self._expected = _sha256(answer.headers.get("Repr-Digest")) or self._expected
            await self._read_body(answer, file)

    async def _read_body(self, answer: aiohttp.ClientResponse, file: IO[bytes]) -> None:
        size = None if answer.content_length is None else self._received + answer.content_length
        buffer = bytearray()
        try:
            async for piece in answer.content.iter_chunked(BATCH):
                buffer += piece
                if len(buffer) >= BATCH:
                    await self._write(file, bytes(buffer), size)
                    buffer.clear()
        finally:
            if buffer:  # keep what came before a break
                await self._write(file, bytes(buffer), size)

    async def _write(self, file: IO[bytes], piece: bytes, size: int | None) -> None:
        def work() -> None:
            file.write(piece)
            self._hash.update(piece)

        await asyncio.to_thread(work)
        self._received += len(piece)
        if self._on_progress is not None:
            self._on_progress(self._received, size or self._received)

    async def _restart(self, file: IO[bytes]) -> None:
        file.seek(0)
        await asyncio.to_thread(file.truncate, 0)
        self._received, self._hash = 0, hashlib.sha256()
        self._etag = self._expected = None

    def _finish(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._partial.replace(self._target)


def target_path(to: str | Path, name: str) -> Path:
    """The file that a download to ``to`` writes; makes the folders it needs.

    Raises:
        OSError: a folder cannot be made.
    """
    path = Path(to)
    if str(to).endswith(("/", os.sep)) or path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _strong_etag(etag: str | None) -> str | None:
    """Only a strong ETag promises the same bytes."""
    return etag if etag and etag.startswith('"') else None


def _sha256(header: str | None) -> str | None:
    """Hex, from ``Repr-Digest`` (RFC 9530); None where it has no SHA-256."""
    match = _DIGEST.search(header or "")
    try:
        return base64.b64decode(match[1], validate=True).hex() if match else None
    except binascii.Error:
        return None


def _check_is_file(answer: aiohttp.ClientResponse) -> None:
    if answer.status == 202 or answer.content_type == "application/json":
        raise NotReady(202, "not_ready", "the job has not ended, so there is no result yet")
    if answer.content_type != "application/zip":
        raise NotUnderstood(str(answer.url), f"expected a ZIP, got {answer.content_type}")
