"""The children in a result: a job that ended well and left some waits for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from server.domain import batch
from server.domain.jobs import Bundle, FileKind, Job, Result
from server.stages.stage import Stage
from server.storage.contents import Contents
from server.storage.folder import PendingFiles
from server.storage.scratch import ScratchFile
from shared.files.bundles.expand import expand_folder
from shared.files.bundles.format import ENTRY, BundleSummary
from shared.files.bundles.reader import MAX_FILES, BundleReader
from shared.files.bundles.writer import BundleWriter
from shared.files.names import BundleError, shown
from shared.files.opened import to_end

FOLDER: Final = "children/"
"""Of a result: what is below it are the children's folders."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROOT_SCRIPT: Final = b"#!/bin/sh\necho 'this bundle holds the children of a job' >&2\nexit 64\n"


async def children_of(
    contents: Contents, result: Result, to: ScratchFile, *, most: int, max_bytes: int
) -> tuple[BundleSummary, int]:
    """Write the sealed bundle of all children of a result; it, and how many they are. The files of
    a child are in the bundle's folder of its name.

    Args:
        to: where it is written, with space reserved; ready to be stored.
        most: children that are allowed.
        max_bytes: of all files together.

    Raises:
        BundleError: a sentence that says what is wrong with the folders.
        OSError: the result is gone, or the disk is full.
    """
    async with contents.local_copy(FileKind.RESULT, result) as path:
        return await to_end(partial(_write, path, result, to, most, max_bytes))


def _write(
    path: Path, result: Result, to: ScratchFile, most: int, max_bytes: int
) -> tuple[BundleSummary, int]:
    writer = BundleWriter(to.path, max_files=MAX_FILES, max_bytes=max_bytes, reserve=to.reserve)
    try:
        expand_folder(path, FOLDER, writer, max_files=MAX_FILES, max_bytes=max_bytes)
        count = _count(writer.paths, most)
        writer.add(ENTRY)
        writer.write(_ROOT_SCRIPT)
        writer.end()
        return writer.finish(), count
    except BaseException:
        writer.abort()
        raise


def _count(paths: Iterable[str], most: int) -> int:
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
    return len(folders)


def child_names(bundle: Path) -> tuple[str, ...]:
    """Sorted names of the children whose sealed bundle it is. Blocking. Raises BundleError,
    OSError: it cannot be read.
    """
    with BundleReader(bundle) as reader:
        folders = {entry.path.partition("/")[0] for entry in reader.entries if "/" in entry.path}
    return tuple(sorted(folders))


@dataclass(frozen=True, slots=True)
class Left:
    """Children that an attempt has left.

    Attributes:
        bundle: of all, as it is stored; None: they cannot be run, or will not.
        problem: why they cannot be run; empty: they can, or nobody looked.
    """

    count: int = 0
    bundle: Bundle | None = None
    problem: str = ""


class LeftChildren(Stage):
    """Takes the children out of a result that was just stored."""

    async def of(self, job: Job, result: Result, pending: PendingFiles) -> Left:
        """Store their bundle, unless it is known that they will not be run. Raises OSError."""
        if not batch.may_fan_out(job) or job.cancel_requested_at is not None:
            return Left()
        contents, most = self.core.contents, self._service(job.service).max_children
        async with self.core.scratch.file() as content:
            try:
                own, count = await children_of(
                    contents, result, content, most=most, max_bytes=job.limits.disk
                )
            except BundleError as problem:
                return Left(problem=str(problem))
            file, few = await contents.keep(pending, content, own.size)
        return Left(count, Bundle(file, own.size, own.digest, own.own_modes, few))
