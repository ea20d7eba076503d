"""Downloads: resumed after a break, checked, visible under their name only when complete."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import io
import os
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import BinaryIO, Final, Protocol

import aiohttp

from ferryman.errors import (
    BadArgument,
    BadDownload,
    FerrymanError,
    NotReady,
    NotUnderstood,
    Refused,
)
from ferryman.transport import AnyPath, Transport, no_result
from ferryman.upload import BATCH, ProgressCallback


def unpack(file: BinaryIO, folder: Path) -> None:
    """Write the files of a ZIP into a folder; files of the same names are replaced.

    Raises:
        NotUnderstood: it is no ZIP that can be read, or has a name that leads elsewhere.
        OSError: something cannot be written.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            targets = [(entry, _target(folder, entry.filename)) for entry in archive.infolist()]
            for entry, target in targets:
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    _write(archive, entry, target)
    except (zipfile.BadZipFile, NotImplementedError) as problem:
        raise NotUnderstood("the server", f"its ZIP cannot be read: {problem}") from problem


def leads_elsewhere(name: str, here: type[PurePath] = PurePath) -> bool:
    """Whether a file of this name would not be in the folder that the name is added to.

    Args:
        here: how this system reads names. On Windows, ``C:x`` is a file of another drive, ``a:b``
            a hidden part of ``a``, and blanks and dots at the end of a component are left out.
    """
    windows = isinstance(here(), PureWindowsPath)
    for part in name.removesuffix("/").split("/"):
        if part in ("", ".", "..") or here(part).parts != (part,):
            return True
        if windows and (":" in part or not part.strip(" .")):
            return True
    return False


def _target(folder: Path, name: str) -> Path:
    if leads_elsewhere(name):
        raise NotUnderstood("the server", f"its ZIP has the name {name!r}, which leads elsewhere")
    return folder.joinpath(*name.removesuffix("/").split("/"))


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with archive.open(entry) as source, partial.open("xb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
            if entry.external_attr >> 16 & 0o100 and os.name == "posix":
                mode = os.fstat(out.fileno()).st_mode
                os.fchmod(out.fileno(), mode | (mode & 0o444) >> 2)  # whoever may read may run it
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


STDOUT: Final = Path("-")
"""The path of a file object, which may have none."""


class Sink(Protocol):
    """Takes the bytes of a download. Called from a thread, except for :meth:`open`."""

    path: Path

    def open(self) -> None: ...

    def write(self, piece: bytes) -> None: ...

    def restart(self) -> None:
        """Forget what was written.

        Raises:
            OSError: that cannot be done.
        """
        ...

    def damage(self) -> str:
        """What is wrong with the ZIP that was written; empty: nothing, or it cannot be read."""
        ...

    def finish(self) -> None:
        """All is written."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind, as far as that is possible."""
        ...


class FileSink:
    """A file under its name only when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Beside the target, so that the final rename stays on one file system.
        self._partial = path.parent / f".{path.name[:200]}.{secrets.token_hex(4)}.part"
        self._file: BinaryIO | None = None

    def open(self) -> None:
        self._file = self._partial.open("xb")

    def write(self, piece: bytes) -> None:
        self._opened().write(piece)

    def restart(self) -> None:
        self._opened().seek(0)
        self._opened().truncate(0)

    def damage(self) -> str:
        self._opened().flush()
        with self._partial.open("rb") as file:
            return _damage(file)

    def finish(self) -> None:
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._partial.replace(self.path)

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        assert self._file is not None
        return self._file


class ObjectSink:
    """A file that is open for writing bytes; it stays open."""

    path = STDOUT

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start: int | None = None

    def open(self) -> None:
        if self._file.seekable():
            self._start = self._file.tell()

    def write(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:  # a raw file may take less
            left = left[self._file.write(left) :]

    def restart(self) -> None:
        if self._start is None:
            raise io.UnsupportedOperation("what was written to a pipe cannot be taken back")
        self._file.seek(self._start)
        self._file.truncate()

    def damage(self) -> str:
        if self._start or not (self._file.seekable() and self._file.readable()):
            return ""
        end = self._file.tell()
        try:
            return _damage(self._file)
        finally:
            self._file.seek(end)

    def finish(self) -> None:
        self._file.flush()

    def abandon(self) -> None:
        if self._start is not None and not self._file.closed:
            self.restart()


def _damage(file: BinaryIO) -> str:
    """Of a ZIP, as its own checksums say. Blocking."""
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as problem:
        return f"its ZIP cannot be read: {problem}"
    return "" if bad is None else f"{bad!r} in its ZIP has another checksum"


_ZIP: Final = "application/zip"
_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")
_RANGE: Final = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that was downloaded completely."""

    path: Path
    """Of a file object: ``-``."""
    size: int
    """Bytes."""
    sha256: str
    """Hex."""
    checked: bool
    """Whether the server sent a SHA-256, which was compared; else the checksums in a ZIP were."""


class Download:
    """One download.

    Args:
        path: of the route.
        media: what the answer must be; None: anything.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        sink: Sink,
        *,
        query: Mapping[str, str] | None = None,
        media: str | None = _ZIP,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        self._transport, self._path, self._query = transport, path, query
        self._sink, self._media, self._on_progress = sink, media, on_progress
        self._received = 0
        self._hash = hashlib.sha256()
        self._etag: str | None = None
        self._expected: str | None = None

    async def run(self) -> Downloaded:
        """Fetch it.

        Raises:
            BadDownload: damaged in transfer, twice.
            NotReady, NoResult, Unreachable, NotUnderstood, Refused
            OSError: it cannot be written.
        """
        # Not in a thread: whoever is cancelled while one makes the file could not remove it.
        self._sink.open()
        try:
            try:
                await self._fetch()
            except BadDownload as problem:
                await self._restart_after(problem)
                await self._fetch()
            await asyncio.to_thread(self._sink.finish)
        except BaseException as problem:
            self._sink.abandon()
            if isinstance(problem, Refused):
                raise no_result(problem) from None
            raise
        return Downloaded(
            self._sink.path, self._received, self._hash.hexdigest(), self._expected is not None
        )

    async def _fetch(self) -> None:
        while True:
            before = self._received
            try:
                await self._transport.retry(self._fetch_once)
            except FerrymanError:
                # As long as bytes come, go on; retry_for limits only the tries that bring none.
                if self._received <= before or self._etag is None:
                    raise
            else:
                break
        got = self._hash.hexdigest()
        if self._expected not in {None, got}:
            raise BadDownload(str(self._sink.path), self._expected, got)
        unsure = self._expected is None and self._media == _ZIP
        if unsure and (why := await asyncio.to_thread(self._sink.damage)):
            raise BadDownload(str(self._sink.path), None, got, why)

    async def _fetch_once(self) -> None:
        headers = {}
        if self._received and self._etag:
            headers = {"Range": f"bytes={self._received}-", "If-Range": self._etag}
        elif self._received:
            await self._restart()
        async with self._transport.answer(
            "GET", self._path, query=self._query, headers=headers
        ) as answer:
            _check_is_file(answer, self._media)
            if answer.status == 206:
                sent_range = _RANGE.match(answer.headers.get("Content-Range", ""))
                if sent_range is None or int(sent_range[1]) != self._received:
                    raise NotUnderstood(str(answer.url), "it sent another range than asked for")
            elif self._received:
                await self._restart()
            self._etag = _strong_etag(answer.headers.get("ETag"))
            self._expected = _sha256(answer.headers.get("Repr-Digest")) or self._expected
            await self._read_body(answer)

    async def _read_body(self, answer: aiohttp.ClientResponse) -> None:
        size = None if answer.content_length is None else self._received + answer.content_length
        buffer = bytearray()
        try:
            async for piece in answer.content.iter_chunked(BATCH):
                buffer += piece
                if len(buffer) >= BATCH:
                    await self._write(bytes(buffer), size)
                    buffer.clear()
        finally:
            if buffer:  # keep what came before a break
                await self._write(bytes(buffer), size)

    async def _write(self, piece: bytes, size: int | None) -> None:
        def work() -> None:
            self._sink.write(piece)
            self._hash.update(piece)

        await asyncio.to_thread(work)
        self._received += len(piece)
        if self._on_progress is not None:
            self._on_progress(self._received, size or self._received)

    async def _restart(self) -> None:
        await asyncio.to_thread(self._sink.restart)
        self._received, self._hash = 0, hashlib.sha256()
        self._etag = self._expected = None

    async def _restart_after(self, problem: BadDownload) -> None:
        try:
            await self._restart()
        except OSError:
            raise problem from None


async def sink_for(to: AnyPath | BinaryIO, name: str) -> Sink:
    """Where a download to ``to`` goes; ``name`` is that of a file in a folder.

    Raises:
        OSError: a folder cannot be made.
        BadArgument: a file that is open as text.
    """
    if isinstance(to, str | os.PathLike):
        return FileSink(await asyncio.to_thread(target_path, to, name))
    given: object = to
    if isinstance(given, io.TextIOBase) or not callable(getattr(given, "write", None)):
        raise BadArgument("a download goes to a path, or to a file opened with “wb”")
    return ObjectSink(to)


def target_path(to: AnyPath, name: str) -> Path:
    """The file that a download to ``to`` writes; makes the folders it needs.

    Raises:
        OSError: a folder cannot be made.
        BadArgument: the name is one that this system reads as a file elsewhere.
    """
    path = Path(to)
    if os.fspath(to).endswith(("/", os.sep)) or path.is_dir():
        if name and leads_elsewhere(name):
            raise BadArgument(f"{name!r} leads elsewhere on this system: name the file to write")
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


def _check_is_file(answer: aiohttp.ClientResponse, media: str | None) -> None:
    if answer.status == 202 or (media and answer.content_type == "application/json"):
        raise NotReady(202, "not_ready", "the job has not ended, so there is no result yet")
    if media not in {None, answer.content_type}:
        raise NotUnderstood(str(answer.url), f"expected {media}, got {answer.content_type}")
