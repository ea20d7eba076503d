"""Packs the files of an attempt into a ZIP that is safe to open anywhere.

The job's directory may contain anything. It is read by descriptor, after all of the job's processes
are dead, and after its size was compared with the limits. What cannot be packed is skipped and
listed. The functions block. They need no more memory for larger files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from client_agent.collect.contents import Contents, own_names
from client_agent.collect.selection import Part, Selection
from client_agent.collect.walk import Bounds, Entry, Walk
from client_agent.collect.zip_writer import ZipWriter
from client_agent.storage.open_beneath import raise_if_shortage
from shared.clock import SECOND, Micros
from shared.files.archives.inputs_list import list_line
from shared.files.opened import closing_fd
from shared.wire import Limits

_CHUNK: Final = 1 << 18
_EARLIEST: Final = datetime(1980, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC)
"""The dates that a ZIP can store."""

Extras = Mapping[str, Path | bytes]
"""Files of the agent: usual name -> a file outside the directory, or its content."""
CheckSpace = Callable[[int], None]
RECEIPT: Final = "ferryman.json"
LIST: Final = "inputs.sha256"


def collect(
    fd: int,
    dest: Path,
    limits: Limits,
    extras: Extras,
    receipt: Callable[[Contents], bytes],
    bounds: Bounds | None = None,
    check_space: CheckSpace | None = None,
    at: Micros = 0,
    selection: Selection | None = None,
) -> Contents:
    """Pack the directory ``fd``, the agent's files and the receipt, and at the end the list of
    files that are as they were given, if there are any: their server has them.

    The attempt may be running (a snapshot). Then files that change at the same time are packed up
    to the size that they had before, or skipped. Files that cannot be read are skipped, too.

    Args:
        dest: the ZIP, outside the directory; must not exist. It is removed after an error.
        receipt: makes ``ferryman.json``, after everything else but the list is in the ZIP.
        bounds: limits of the number of entries and the length of paths.
        check_space: given for a snapshot. It is called with the expected size before anything is
            written, and with 0 now and then. What it raises ends the packing.
        selection: what to keep; None: everything.

    Raises:
        ResultsLimitExceeded: nothing was read. See :func:`collect_extras`.
        OSError: ``dest`` cannot be written, or the agent is short of descriptors.
    """
    selection = selection or Selection()
    walk = Walk(fd, bounds or Bounds(), may_chmod=check_space is None, selection=selection)
    count = walk.count(limits.results)
    if check_space is not None:
        check_space(count.bytes)
    names = own_names([*extras, RECEIPT, LIST], count.top)
    contents = Contents(names, dest)
    packer = _Packer(contents, walk, extras, receipt, limits.results, at, selection)
    return packer.write() if check_space is None else packer.write(check_space)


def collect_extras(
    dest: Path, extras: Extras, receipt: Callable[[Contents], bytes], at: Micros = 0
) -> Contents:
    """Pack the agent's files only, if the job's are too large or must not be read. Raises OSError
    if ``dest`` cannot be written."""
    contents = Contents(own_names([*extras, RECEIPT], ()), dest)
    return _Packer(contents, None, extras, receipt, 0, at, Selection()).write()


class _Packer:
    """Adds everything to a ZIP, and notes its contents."""

    def __init__(
        self,
        contents: Contents,
        walk: Walk | None,
        extras: Extras,
        receipt: Callable[[Contents], bytes],
        max_bytes: int,
        at: Micros,
        selection: Selection,
    ) -> None:
        self.contents, self._at, self._given = contents, at, selection.given
        self._walk, self._extras, self._receipt = walk, extras, receipt
        self._bytes_left = max_bytes
        """Bytes that may still be packed, because a snapshot's directory may have grown after it
        was counted."""

    def write(self, check_space: CheckSpace = lambda size: None) -> Contents:
        contents = self.contents
        with ZipWriter(contents.path, lambda: check_space(0)) as out:
            self._add_all(out)
            contents.size, contents.sha256 = out.finish(), out.sha256()
        return contents

    def _add_all(self, out: ZipWriter) -> None:
        if self._walk is not None:
            contents = self.contents
            own = contents.names.values()
            for entry in self._walk.entries(contents.skip, own, contents.not_portable.add):
                self._add_entry(out, entry)
        for name, source in self._extras.items():
            self._add_own_file(out, self.contents.names[name], source)
        self._add_own_file(out, self.contents.names[RECEIPT], self._receipt(self.contents))
        if self.contents.inputs:  # last, where no file of the job can be
            self._add_own_file(out, self.contents.names[LIST], bytes(self.contents.lines))

    def _add_entry(self, out: ZipWriter, entry: Entry) -> None:
        if entry.part is Part.REFERRED:
            if (sha256 := self._given.sha256(entry.path)) is not None:
                self.contents.inputs += 1
                self.contents.lines += list_line(sha256, entry.path)
            return
        when = _zip_time(entry.modified)
        if entry.is_folder:
            out.add_folder(entry.path, when)
        elif entry.size > self._bytes_left:
            self.contents.skip(entry.shown, "the results limit was reached meanwhile")
        elif (fd := self._open(entry.open, entry.shown)) is not None:
            with closing_fd(fd):
                self._bytes_left -= entry.size
                self.contents.files += 1
                self.contents.children += _is_child(entry.path)
                pieces = self._read(fd, entry)
                out.add_file(entry.path, when, pieces, entry.size, executable=entry.executable)

    def _open(self, open_file: Callable[[], int], shown: str) -> int | None:
        """A descriptor of a file; None: it cannot be opened, and is listed as skipped."""
        try:
            return open_file()
        except OSError as problem:
            raise_if_shortage(problem)
            self.contents.skip(shown, problem.strerror or "it cannot be read")
            return None

    def _read(self, fd: int, entry: Entry) -> Iterator[bytes]:
        """As many bytes as were announced. If there are fewer, the file is listed as skipped."""
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

    def _add_own_file(self, out: ZipWriter, name: str, source: Path | bytes) -> None:
        if isinstance(source, bytes):
            out.add_file(name, _zip_time(self._at / SECOND), (source,), len(source))
            return
        fd = self._open(lambda: os.open(source, os.O_RDONLY | os.O_CLOEXEC), name)
        if fd is None:
            return
        with closing_fd(fd):
            status = os.fstat(fd)
            pieces = _read_up_to(fd, status.st_size)
            out.add_file(name, _zip_time(status.st_mtime), pieces, status.st_size)


def _is_child(path: str) -> bool:
    """Whether it is the script of a child that the job wants to have run."""
    return path.startswith("children/") and path.endswith("/run.sh") and len(path.split("/")) == 3


def _read_up_to(fd: int, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes. A log may grow while it is read."""
    while size and (data := os.read(fd, min(size, _CHUNK))):
        size -= len(data)
        yield data


def _zip_time(seconds: float) -> datetime:
    try:
        return min(max(datetime.fromtimestamp(seconds, UTC), _EARLIEST), _LATEST)
    except (OverflowError, ValueError, OSError):
        return _EARLIEST if seconds < 0 else _LATEST
