"""Packs what an attempt left into a ZIP that is safe to open anywhere.

Everything below the directory is hostile: it is read by descriptor, after the death of whatever
wrote it, within limits that are counted first. What cannot be packed is skipped and listed.
Blocking functions, for a worker thread; memory does not grow with the size of files.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from isal import isal_zlib
from stream_zip import ZIP_32, ZIP_64, stream_zip

from client_agent.results import Collected, Contents, own_names
from client_agent.walk import Bounds, Entry, Walk
from shared.wire import Limits

_CHUNK: Final = 1 << 18
_LEVEL: Final = 1
"""isal's: 0–3; 1 is its default trade of speed and size."""
_ZIP_32_BYTES: Final = 0xF000_0000
_ZIP_32_ENTRIES: Final = 0xFF00
"""Up to here no field of a ZIP without the 64-bit extension can overflow, deflate's worst growth
included. Every desktop opens those; some cannot open streamed ZIP64."""
_EARLIEST: Final = datetime(1980, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC)
"""What the date field of a ZIP can say."""

Extras = Mapping[str, Path | bytes]
"""Our own files: usual name -> a file outside the directory, or its bytes."""
RECEIPT: Final = "ferryman.json"


def collect(
    fd: int,
    dest: Path,
    limits: Limits,
    extras: Extras,
    receipt: Callable[[Contents], bytes],
    bounds: Bounds | None = None,
) -> Collected:
    """Pack the directory ``fd``, our extras and the receipt.

    The directory may be that of a running attempt (a snapshot): what changes while it is read is
    packed up to the size first seen, or listed.

    Args:
        dest: the ZIP, outside the directory; must not exist. Durable on return, gone on an error.
        receipt: made last, from what is in the ZIP by then; stored as ``ferryman.json``.
        bounds: on the number of entries and the length of paths.

    Raises:
        ResultsLimit: too much; nothing was read. See :func:`collect_extras`.
        OSError: ``dest`` cannot be written.
    """
    walk = Walk(fd, bounds or Bounds())
    census = walk.count(limits.results)
    names = own_names([*extras, RECEIPT], census.top)
    contents = Contents(names=names)
    packer = _Packer(contents, walk, extras, receipt, limits.results)
    # unsafe names and special files are no entries, so this is an upper bound
    entries = census.entries + len(names)
    size = census.bytes + _extra_bytes(extras)
    return _write(dest, packer, small=size < _ZIP_32_BYTES and entries < _ZIP_32_ENTRIES)


def collect_extras(dest: Path, extras: Extras, receipt: Callable[[Contents], bytes]) -> Collected:
    """Pack our own files only: where the job's are too much, or must not be touched.

    Raises:
        OSError: ``dest`` cannot be written.
    """
    contents = Contents(names=own_names([*extras, RECEIPT], ()))
    small = _extra_bytes(extras) < _ZIP_32_BYTES
    return _write(dest, _Packer(contents, None, extras, receipt, 0), small=small)


def _write(dest: Path, packer: _Packer, *, small: bool) -> Collected:
    digest, size = hashlib.sha256(), 0
    out = os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        chunks = stream_zip(
            packer.members(ZIP_32 if small else ZIP_64),
            chunk_size=_CHUNK,
            get_compressobj=_deflater,
            # their field is signed and ends in 2038
            extended_timestamps=False,
        )
        pending: list[bytes] = []
        held = 0
        for chunk in chunks:
            pending.append(chunk)
            held += len(chunk)
            if held >= _CHUNK:
                size += _flush(out, pending, digest)
                held = 0
        size += _flush(out, pending, digest)
        os.fsync(out)
    except BaseException:
        os.close(out)
        with suppress(FileNotFoundError):
            dest.unlink()
        raise
    os.close(out)
    contents = packer.contents
    return Collected(
        names=contents.names,
        files=contents.files,
        bytes=contents.bytes,
        skipped=contents.skipped,
        skipped_more=contents.skipped_more,
        path=dest,
        size=size,
        sha256=digest.hexdigest(),
    )


def _deflater() -> Any:
    return isal_zlib.compressobj(level=_LEVEL, wbits=-15)


def _flush(out: int, pending: list[bytes], digest: Any) -> int:
    data = b"".join(pending)
    pending.clear()
    digest.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
    return len(data)


class _Packer:
    """Tells stream-zip what to pack, and takes stock."""

    def __init__(
        self,
        contents: Contents,
        walk: Walk | None,
        extras: Extras,
        receipt: Callable[[Contents], bytes],
        most: int,
    ) -> None:
        self.contents = contents
        self._walk, self._extras, self._receipt = walk, extras, receipt
        self._room = most
        """Bytes that may still be packed: a snapshot's directory may have grown since it was
        counted."""

    def members(self, method: object) -> Iterator[tuple[Any, ...]]:
        if self._walk is not None:
            for entry in self._walk.entries(self.contents.skip, self.contents.names.values()):
                if entry.is_folder:
                    yield f"{entry.path}/", _when(entry.modified), stat.S_IFDIR | 0o755, method, ()
                    continue
                if entry.size > self._room:
                    self.contents.skip(entry.shown, "the results limit was reached meanwhile")
                    continue
                fd = self._open(entry)
                if fd is None:
                    continue
                self._room -= entry.size
                self.contents.files += 1
                mode = stat.S_IFREG | (0o755 if entry.executable else 0o644)
                try:
                    yield entry.path, _when(entry.modified), mode, method, self._read(fd, entry)
                finally:
                    os.close(fd)
        for name, source in self._extras.items():
            yield from self._own(self.contents.names[name], source, method)
        data = self._receipt(self.contents)
        yield from self._own(self.contents.names[RECEIPT], data, method)

    def _open(self, entry: Entry) -> int | None:
        try:
            return entry.open()
        except OSError as problem:
            self.contents.skip(entry.shown, problem.strerror or "it cannot be read")
            return None

    def _read(self, fd: int, entry: Entry) -> Iterator[bytes]:
        """Exactly as many bytes as were declared, or fewer and a line in the list."""
        missing = entry.size
        while missing:
            try:
                data = os.read(fd, min(missing, _CHUNK))
            except OSError as problem:
                self.contents.skip(entry.shown, f"cut short: {problem.strerror}")
                return
            if not data:
                self.contents.skip(entry.shown, f"cut short: {missing} bytes were gone")
                return
            missing -= len(data)
            self.contents.bytes += len(data)
            yield data

    def _own(self, name: str, source: Path | bytes, method: object) -> Iterator[tuple[Any, ...]]:
        mode = stat.S_IFREG | 0o644
        if isinstance(source, bytes):
            yield name, _EARLIEST, mode, method, (source,)
            return
        try:
            fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            self.contents.skip(name, problem.strerror or "it cannot be read")
            return
        try:
            found = os.fstat(fd)
            yield name, _when(found.st_mtime), mode, method, _own_bytes(fd, found.st_size)
        finally:
            os.close(fd)


def _own_bytes(fd: int, size: int) -> Iterator[bytes]:
    """A log may grow while it is read: up to what it was."""
    while size and (data := os.read(fd, min(size, _CHUNK))):
        size -= len(data)
        yield data


def _extra_bytes(extras: Extras) -> int:
    total = 0
    for source in extras.values():
        if isinstance(source, bytes):
            total += len(source)
        else:
            with suppress(OSError):
                total += source.stat().st_size
    return total


def _when(seconds: float) -> datetime:
    try:
        return min(max(datetime.fromtimestamp(seconds, UTC), _EARLIEST), _LATEST)
    except (OverflowError, ValueError, OSError):
        return _EARLIEST if seconds < 0 else _LATEST
