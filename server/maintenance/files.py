"""Stored files from one data folder to another: linked where that can be done, else copied."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from server.domain.jobs import FileKind
from server.storage.contents import memory_file
from server.storage.folder import stored_path
from server.store import bundles, stored_rows
from server.store.stored_rows import StoredFile
from shared.files import durable
from shared.files.bundles.reader import BundleReader
from shared.files.names import BundleError
from shared.sql import Tx

FileTrouble: TypeAlias = tuple[str, str]
"""What is wrong with a stored file: a word for programs, and a text."""


@dataclass(slots=True)
class Brought:
    """What was brought over.

    Attributes:
        missing: not there any more.
        damaged: there, but not what the row says.
    """

    files: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    missing: list[StoredFile] = field(default_factory=list)
    damaged: list[StoredFile] = field(default_factory=list)


def bring(source: Path, target: Path, tx: Tx, *, digests: bool = False) -> Brought:
    """Link or copy the files below ``target``, durable, mode 0600.

    Args:
        tx: of a copy, which has what is no file.
        digests: compare them with their rows, too, not only their sizes.

    Raises:
        OSError: one cannot be written.
    """
    brought = Brought()
    for kind in FileKind:
        (target / kind).mkdir(mode=0o700)
    seen = dict[Path, list[StoredFile] | None]()
    for file in stored_rows.stored_files(tx):
        there = stored_path(target, file.kind, file.name)
        if there in seen:  # jobs may share a bundle
            if (same := seen[there]) is not None:
                same.append(file)
            continue
        seen[there] = None
        try:
            with readable(source, tx, file) as path:
                if path.is_relative_to(source):
                    there.parent.mkdir(mode=0o700, exist_ok=True)
                    _link_or_copy(path, there)
                    path = there
                if trouble_of(path, file, digests=digests):
                    brought.damaged.append(file)
        except FileNotFoundError:
            seen[there] = brought.missing
            brought.missing.append(file)
            continue
        brought.files[file.kind] += 1
        brought.bytes[file.kind] += file.size
    for folder, _, _ in os.walk(target):
        durable.fsync_folder(Path(folder))
    return brought


@contextmanager
def readable(folder: Path, tx: Tx, file: StoredFile) -> Iterator[Path]:
    """Where it can be read: its bytes in memory where they are a row, else below the folder."""
    if (row := bundles.content(tx, file.name)) is None:
        yield stored_path(folder, file.kind, file.name)
    else:
        with memory_file(row) as path:
            yield path


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        # A stored file is never changed, only removed: a link of it is as good as a copy.
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        durable.fsync_file(target)
    target.chmod(0o600)


def trouble_of(path: Path, file: StoredFile, *, digests: bool) -> FileTrouble | None:
    """Compare a stored file with its row; None: it is as it should be."""
    try:
        size = path.stat().st_size
        if size != file.size:
            return "wrong_size", f"it has {size} bytes, not {file.size}"
        if not digests:
            return None
        if file.kind is FileKind.RESULT:
            with path.open("rb") as content:
                same = hashlib.file_digest(content, "sha256").hexdigest() == file.digest
        else:
            with BundleReader(path, max_files=1_000_000) as reader:
                same = reader.summary().digest == file.digest
    except FileNotFoundError:
        return "missing_file", "it is not there"
    except BundleError as problem:
        return "damaged_bundle", f"it is no bundle: {problem}"
    except OSError as problem:
        return unreadable(problem)
    return None if same else ("wrong_digest", "its digest is not that of its row")


def unreadable(problem: OSError) -> FileTrouble:
    """It may be whole all the same."""
    return "unreadable_file", f"it cannot be read: {problem.strerror or problem}"
