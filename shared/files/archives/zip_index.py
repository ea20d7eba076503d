"""Finds entries of a sealed ZIP without reading its whole table of contents into memory.

Unlike :func:`shared.files.archives.zip_directory.read_entries` it checks only the entries that it
is asked for: what is read of one entry never depends on another.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from shared.files.archives.zip_directory import (
    Archive,
    Content,
    Listed,
    ZipEntry,
    find_directory,
    locate,
    read_listed,
)
from shared.files.names import BundleError

_WINDOW: Final = 1 << 20
_LONGEST: Final = 46 + 3 * 0xFFFF
"""Bytes of the longest entry of a central directory."""
_NAME_AT: Final = 46
"""Where the name stands in such an entry."""
_MAX_TRIES: Final = 20_000
_MAX_SIMILAR: Final = 3

_BRIEF: Final = struct.Struct("<4s8x2H8xL3H")
"""Of such an entry: signature, time and date, unpacked size, lengths of name, extras, comment."""
_FULL32: Final = 0xFFFFFFFF


class ListedFile(NamedTuple):
    """A file as a list shows it.

    Attributes:
        modified: DOS date and time, the date in the upper 16 bits.
        is_input: it is as it was sent.
    """

    path: str
    size: int
    modified: int
    is_input: bool = False


def spellings(path: str) -> set[str]:
    """What a file may be called that somebody asks for by this path."""
    return {path, unicodedata.normalize("NFC", path)}


class ZipIndex:
    """The table of contents of a ZIP. Its methods block.

    Args:
        content: of a file that is open; its position is neither used nor moved.

    Attributes:
        count: files and folders, as the archive says.
        length: bytes of the table of contents: where positions in it end.
        weight: bytes of memory that a list of their names takes, about.

    Raises:
        BundleError: it is no ZIP, or cut short.
    """

    def __init__(self, content: Content) -> None:
        self._archive = Archive(content)
        self.count, self._first, self.length = find_directory(self._archive)
        self.weight = 40 * self.count + self.length

    def files(self, at: int = 0) -> Iterator[tuple[Listed, int]]:
        """The files from a position of the table of contents on, as they are listed, and for each
        the position behind it.

        Raises:
            BundleError: damaged; or no entry begins at the position.
        """
        window, base = b"", at
        while at < self.length:
            if at - base + _LONGEST > len(window) and base + len(window) < self.length:
                base = at
                count = min(_WINDOW, self.length - at)
                window = self._archive.read(self._first + at, count)
            one, behind = read_listed(window, at - base)
            at = base + behind
            if not one.name.endswith("/"):
                yield one, at

    def scan(self) -> Iterator[ListedFile]:
        """All files, with only what a list shows of them: several times as fast.

        Raises:
            BundleError: as :meth:`files`.
        """
        window, base, at = b"", 0, 0
        while at < self.length:
            if at - base + _LONGEST > len(window) and base + len(window) < self.length:
                base, count = at, min(_WINDOW, self.length - at)
                window = self._archive.read(self._first + at, count)
            here = at - base
            name_at = here + _NAME_AT
            if len(window) < name_at:
                raise BundleError("damaged", "the archive's table of contents is damaged")
            magic, time, date, size, name, extra, comment = _BRIEF.unpack_from(window, here)
            raw = window[name_at : name_at + name]
            at += _NAME_AT + name + extra + comment
            if magic != b"PK\1\2" or at > base + len(window):
                raise BundleError("damaged", "the archive's table of contents is damaged")
            if size != _FULL32 and raw.isascii():
                file = ListedFile(raw.decode(), size, date << 16 | time)
            else:
                one, _ = read_listed(window, here)
                file = ListedFile(one.name, one.size, one.modified)
            if not file.path.endswith("/"):
                yield file

    def find(self, path: str) -> tuple[ZipEntry | None, list[str]]:
        """The file with this path, and if there is none, some with the same name elsewhere.

        Raises:
            BundleError: the file is damaged, encrypted, or compressed in a way that is not read.
        """
        if (entry := self.search(path)) is not None:
            return entry, []
        wanted = spellings(path)
        ending = "/" + path.rpartition("/")[2]
        similar: list[str] = []
        for one, _ in self.files():
            if one.name in wanted:
                return self.located(one), []
            if len(similar) < _MAX_SIMILAR and f"/{one.name}".endswith(ending):
                similar.append(one.name)
        return None, similar

    def search(self, path: str) -> ZipEntry | None:
        """The file that is listed under this very path; None: it may be listed in another way.

        Raises:
            BundleError: as :meth:`find`.
        """
        for name in spellings(path):
            if (found := self._search(name.encode())) is not None:
                return self.located(found)
        return None

    def _search(self, raw: bytes) -> Listed | None:
        """The file that is listed under this very name, without reading those before it; None:
        there is none, or the name stands in too many others.
        """
        tries = 0
        for base in range(0, self.length, _WINDOW):
            count = min(_WINDOW + _LONGEST, self.length - base)
            window = self._archive.read(self._first + base, count)
            at = window.find(raw)
            while 0 <= at < _WINDOW + _NAME_AT:
                start, tries = at - _NAME_AT, tries + 1
                if tries > _MAX_TRIES:
                    return None
                if start >= 0 and window.startswith(b"PK\1\2", start):
                    one, _ = read_listed(window, start)
                    if one.raw == raw and not raw.endswith(b"/"):
                        return one
                at = window.find(raw, at + 1)
        return None

    def last(self) -> Listed:
        """What is listed last. Raises BundleError: nothing is."""
        count = min(self.length, _LONGEST)
        window = self._archive.read(self._first + self.length - count, count)
        if (at := window.rfind(b"PK\1\2")) >= 0:
            one, behind = read_listed(window, at)
            if behind == count:
                return one
        raise BundleError("damaged", "the archive's table of contents is damaged")

    def located(self, one: Listed) -> ZipEntry:
        """It, checked. Raises BundleError."""
        entry, _ = locate(self._archive, one, one.header, self._first)
        return entry
