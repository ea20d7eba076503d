"""The list that a result ends with where it does not hold all files that its attempt left: those of
its bundle that are there as they were sent. Each line is as ``sha256sum`` writes it, with the path
below the folder of the attempt.

It is the last entry of the ZIP: a job can leave a file of any name, but none that comes last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from shared.files.archives.zip_reader import Content, ZipEntry, read_content
from shared.files.names import BundleError, find_root

_LINE: Final = re.compile(rb"[0-9a-f]{64}  ([^\n]+)\n")
_CHUNK: Final = 1 << 20


def list_line(sha256: str, path: str) -> bytes:
    return f"{sha256}  {path}\n".encode()


def read_list(fd: Content, entry: ZipEntry, count: int, bundle_size: int) -> frozenset[str]:
    """The paths in the list.

    Args:
        entry: the last one of the result.
        count: lines that it has to have.
        bundle_size: bytes of the bundle. It has two headers for each file, which take more than a
            line does: a longer list is none of it, and is not unpacked.

    Raises:
        BundleError: it is none, or damaged.
    """
    if entry.is_folder or entry.size > bundle_size:
        raise _damaged(entry)
    text = b"".join(read_content(fd, entry, _CHUNK))
    lines = [line[1] for line in _LINE.finditer(text)]
    try:
        paths = frozenset(line.decode() for line in lines)
    except UnicodeDecodeError:
        raise _damaged(entry) from None
    length = len(lines) * (64 + 2 + 1) + sum(map(len, lines))
    if (length, len(lines), len(paths)) != (len(text), count, count):
        raise _damaged(entry)
    return paths


def folder_of(names: Iterable[str], folder: str) -> str:
    """What a bundle's files lose of their names in the folder of an attempt.

    Args:
        names: of the bundle's files.
        folder: that of a child, ending in "/"; empty: the bundle's root.
    """
    return (find_root(names) or "") + folder


def not_there(path: str) -> BundleError:
    """The list names a file that the bundle does not have."""
    return BundleError("unknown_input", "its result refers to it, but the bundle has none", path)


def _damaged(entry: ZipEntry) -> BundleError:
    return BundleError("damaged", "the list of inputs in the result is damaged", entry.name)
