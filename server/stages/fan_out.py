"""The bundle of the children that a result brings.

A job that left folders ``children/NAME`` in its result has a child for each of them. All of them
share one sealed bundle: what is below ``children/``, with names, checksums and sizes checked as in
an uploaded archive, because a result is no more to be trusted than an upload. Such a bundle has a
``run.sh`` at its root, too, which no child runs: so it is a bundle like any other for every
program that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from server.domain.files import FileKind
from server.domain.jobs import Result
from server.ports import ScratchFile, Storage
from shared.files.bundles.expand import expand_folder
from shared.files.bundles.format import ENTRY, BundleSummary
from shared.files.bundles.reader import MAX_FILES, BundleReader
from shared.files.bundles.writer import BundleWriter
from shared.files.errors import BundleError
from shared.files.names import shown
from shared.files.opened import to_end

FOLDER: Final = "children/"
"""Of a result: what is below it are the children's folders."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROOT_SCRIPT: Final = b"#!/bin/sh\necho 'this bundle holds the children of a job' >&2\nexit 64\n"


@dataclass(frozen=True, slots=True)
class Children:
    """The children that a result brings."""

    bundle: BundleSummary
    names: tuple[str, ...]
    """Sorted; the files of a child are in the bundle's folder of its name."""


async def children_of(
    storage: Storage, result: Result, to: ScratchFile, *, most: int, max_bytes: int
) -> Children:
    """Write the sealed bundle of all children of a result.

    Args:
        to: where it is written, with space reserved; ready to be stored.
        most: children that are allowed.
        max_bytes: of all files together.

    Raises:
        BundleError: a sentence that says what is wrong with the folders.
        OSError: the result is gone, or the disk is full.
    """
    async with storage.local_copy(FileKind.RESULT, result.file) as path:
        return await to_end(partial(_write, path, result, to, most, max_bytes))


def _write(path: Path, result: Result, to: ScratchFile, most: int, max_bytes: int) -> Children:
    writer = BundleWriter(to.path, max_files=MAX_FILES, max_bytes=max_bytes, reserve=to.reserve)
    try:
        expand_folder(
            path,
            FOLDER,
            writer,
            section=(result.offset, result.size),
            max_files=MAX_FILES,
            max_bytes=max_bytes,
        )
        names = _names(writer.paths, most)
        writer.add(ENTRY)
        writer.write(_ROOT_SCRIPT)
        writer.end()
        return Children(writer.finish(), names)
    except BaseException:
        writer.abort()
        raise


def _names(paths: Iterable[str], most: int) -> tuple[str, ...]:
    folders, runnable = set[str](), set[str]()
    for path in paths:
        name, slash, rest = path.partition("/")
        if not slash:
            raise BundleError("not_in_a_child", "it is in no child's folder", FOLDER + path)
        if not _NAME.fullmatch(name) or name == ENTRY:
            what = f"the name of a child is 1 to 64 of A-Z a-z 0-9 . _ -, not {shown(name)}"
            raise BundleError("bad_child_name", what, FOLDER + path)
        folders.add(name)
        if rest == ENTRY:
            runnable.add(name)
        if len(folders) > most:
            message = f"there are more than {most} folders in children/, which are too many"
            raise BundleError("too_many_children", message)
    if missing := sorted(folders - runnable):
        message = f"it has no {ENTRY}, which every child needs"
        raise BundleError("no_run_sh", message, FOLDER + missing[0])
    if not folders:
        raise BundleError("no_children", f"there is no {FOLDER}NAME/{ENTRY}")
    return tuple(sorted(folders))


def child_names(bundle: Path) -> tuple[str, ...]:
    """Sorted names of the children whose sealed bundle it is. Blocking.

    Raises:
        BundleError, OSError: it cannot be read.
    """
    with BundleReader(bundle) as reader:
        folders = {entry.path.partition("/")[0] for entry in reader.entries if "/" in entry.path}
    return tuple(sorted(folders))
