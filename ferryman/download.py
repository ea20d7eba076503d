"""A result on its way to a file: resumed where it broke off, checked, and there only when whole."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeAlias

import aiohttp

from ferryman.errors import BadDownload, FerrymanError, NotUnderstood
from ferryman.form import BATCH, Told
from ferryman.transport import Transport

_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")
_RANGE: Final = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")

Refuse: TypeAlias = Callable[[aiohttp.ClientResponse], None]


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that has arrived whole."""

    path: Path
    size: int
    """Bytes."""
    sha256: str
    """Hex."""
    checked: bool
    """Whether the server had said the SHA-256 beforehand."""


class Download:
    """One file being fetched.

    Args:
        refuse: called with each answer before its body is read; raises where it is no file.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        target: Path,
        *,
        query: Mapping[str, str] | None = None,
        refuse: Refuse,
        told: Told | None = None,
    ) -> None:
        self._transport, self._path, self._query = transport, path, query
        self._target, self._refuse, self._told = target, refuse, told
        # Beside the target, so that the final rename stays on one file system.
        self._half = target.parent / f".{target.name[:200]}.{secrets.token_hex(4)}.part"
        self._have = 0
        self._sum = hashlib.sha256()
        self._etag: str | None = None
        self._expected: str | None = None

    async def run(self) -> Downloaded:
        """Fetch it.

        Raises:
            BadDownload: damaged on the way, twice.
            Unreachable, NotUnderstood, Refused, and what ``refuse`` raises
            OSError: the file cannot be written.
        """
        file = self._create()
        try:
            try:
                await self._fetch(file)
            except BadDownload:
                await self._restart(file)
                await self._fetch(file)
            await asyncio.to_thread(self._seal, file)
        except BaseException:
            file.close()
            self._half.unlink(missing_ok=True)
            raise
        return Downloaded(
            self._target, self._have, self._sum.hexdigest(), self._expected is not None
        )

    def _create(self) -> IO[bytes]:
        # Not in a thread: whoever is cancelled while one makes the file could not remove it.
        return self._half.open("xb")

    async def _fetch(self, file: IO[bytes]) -> None:
        while True:
            before = self._have
            try:
                await self._transport.persist(lambda: self._once(file))
            except FerrymanError:
                # Each byte gained is a reason to go on; patience is for a server that gives none.
                if self._have <= before or self._etag is None:
                    raise
            else:
                break
        got = self._sum.hexdigest()
        if self._expected not in {None, got}:
            raise BadDownload(str(self._target), str(self._expected), got)

    async def _once(self, file: IO[bytes]) -> None:
        headers = {}
        if self._have and self._etag:
            headers = {"Range": f"bytes={self._have}-", "If-Range": self._etag}
        elif self._have:
            await self._restart(file)
        async with self._transport.answer(
            "GET", self._path, query=self._query, headers=headers
        ) as answer:
            self._refuse_unless_file(answer)
            if answer.status == 206:
                found = _RANGE.match(answer.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != self._have:
                    raise NotUnderstood(str(answer.url), "it sent another range than asked for")
            elif self._have:
                await self._restart(file)
            self._etag = _strong(answer.headers.get("ETag"))
            self._expected = _sha256(answer.headers.get("Repr-Digest")) or self._expected
            await self._take(answer, file)

    def _refuse_unless_file(self, answer: aiohttp.ClientResponse) -> None:
        self._refuse(answer)
        if answer.content_type != "application/zip":
            raise NotUnderstood(str(answer.url), f"expected a ZIP, got {answer.content_type}")

    async def _take(self, answer: aiohttp.ClientResponse, file: IO[bytes]) -> None:
        whole = None if answer.content_length is None else self._have + answer.content_length
        waiting = bytearray()
        try:
            async for piece in answer.content.iter_chunked(BATCH):
                waiting += piece
                if len(waiting) >= BATCH:
                    await self._write(file, bytes(waiting), whole)
                    waiting.clear()
        finally:
            if waiting:  # what came before a break is worth keeping
                await self._write(file, bytes(waiting), whole)

    async def _write(self, file: IO[bytes], piece: bytes, whole: int | None) -> None:
        def work() -> None:
            file.write(piece)
            self._sum.update(piece)

        await asyncio.to_thread(work)
        self._have += len(piece)
        if self._told is not None:
            self._told(self._have, whole or self._have)

    async def _restart(self, file: IO[bytes]) -> None:
        file.seek(0)
        await asyncio.to_thread(file.truncate, 0)
        self._have, self._sum = 0, hashlib.sha256()
        self._etag = self._expected = None

    def _seal(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._half.replace(self._target)


def place(to: str | Path, name: str) -> Path:
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


def _strong(etag: str | None) -> str | None:
    """Only a strong ETag promises the same bytes."""
    return etag if etag and etag.startswith('"') else None


def _sha256(header: str | None) -> str | None:
    """Hex, from ``Repr-Digest`` (RFC 9530); None where it has no SHA-256."""
    found = _DIGEST.search(header or "")
    try:
        return base64.b64decode(found[1], validate=True).hex() if found else None
    except binascii.Error:
        return None
