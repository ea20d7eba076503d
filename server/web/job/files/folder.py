"""One folder out of a flat list of files, a page of it at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from server.http.stored_files import modified_at
from shared.files.archives.zip_index import ListedFile

ROWS: Final = 200
"""On a page."""


@dataclass(slots=True)
class Folder:
    """A folder in a folder.

    Attributes:
        path: of all that is in it, up to its last slash.
        whole: whether all of its files were counted.
    """

    name: str
    path: str
    files: int = 0
    size: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class File:
    """A file.

    Attributes:
        name: below the folder that is shown.
    """

    name: str
    path: str
    size: int
    modified: datetime | None


@dataclass(frozen=True, slots=True)
class FolderPage:
    """A page of a folder.

    Attributes:
        folders, files: by name.
        count, size: of all files in it and below it; None: not counted.
        after: the next page begins behind it; None: there is none.
        running: they may change.
    """

    folders: list[Folder] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    count: int | None = None
    size: int | None = None
    after: str | None = None
    running: bool = False


def prefix_of(folder: str) -> str:
    """What the paths of all files in a folder begin with; ``""``: the root."""
    return folder if not folder or folder.endswith("/") else f"{folder}/"


def folder_of(prefix: str) -> str:
    """What :func:`prefix_of` makes the prefix of, as short as possible."""
    short = prefix[:-1]
    return short if short and not short.endswith("/") else prefix


def folder_page(
    listed: Iterable[ListedFile], prefix: str, name: str, after: str, most: int = ROWS
) -> FolderPage:
    """Go through all files once; memory is in proportion to the folders and one page.

    Args:
        prefix: of the folder.
        name: only files below it whose path has this text somewhere, whatever its case.
        after: as a page before gave it; empty: the first page.
    """
    start, wanted = len(prefix), name.casefold()
    folders: dict[str, Folder] = {}
    count = size = 0

    def own() -> Iterator[ListedFile]:
        """Those that may be on the page; all are counted."""
        nonlocal count, size
        for one in listed:
            if not one.path.startswith(prefix):
                continue
            rest = one.path[start:]
            if wanted and wanted not in rest.casefold():
                continue
            count += 1
            size += one.size
            if not wanted and "/" in rest:
                inner = rest.partition("/")[0]
                if (folder := folders.get(inner)) is None:
                    folder = folders[inner] = Folder(inner, f"{prefix}{inner}/")
                folder.files += 1
                folder.size += one.size
            elif not after or after.endswith("/") or rest > after:
                yield one

    files = heapq.nsmallest(most + 1, own())  # one more than fits: does a page follow?
    names: Iterable[str] = ()
    if not after:
        names = folders
    elif after.endswith("/"):
        names = (one for one in folders if one > after[:-1])
    shown = [folders[one] for one in heapq.nsmallest(most + 1, names)]
    more = len(shown) + len(files) > most
    shown, files = shown[:most], files[: max(0, most - len(shown))]
    last = (files[-1].path[start:] if files else f"{shown[-1].name}/") if more else None
    return FolderPage(shown, [_file(one, start) for one in files], count, size, last)


def _file(one: ListedFile, start: int) -> File:
    return File(one.path[start:], one.path, one.size, modified_at(one.modified))
