"""Stored files from one data folder to another: linked where that can be done, else copied."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from server.domain.files import FileKind
from server.storage.folder import stored_path
from server.store.copies import StoredFile
from shared.files import durable
from shared.files.bundles.reader import BundleReader
from shared.files.errors import BundleError
from shared.files.section import open_section

_CHUNK: Final = 1 << 20


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


def bring(
    source: Path, target: Path, files: Iterable[StoredFile], *, digests: bool = False
) -> Brought:
    """Link or copy the files below ``target``, durable, mode 0600.

    Args:
        digests: compare them with their rows, too, not only their sizes.

    Raises:
        OSError: one cannot be written.
    """
    brought = Brought()
    for kind in FileKind:
        (target / kind).mkdir(mode=0o700)
    seen = dict[Path, list[StoredFile] | None]()
    for file in files:
        there = stored_path(target, file.kind, file.name)
        if there in seen:  # jobs may share a bundle, or a file of results
            if (same := seen[there]) is not None:
                same.append(file)
            elif file.kind is FileKind.RESULT and not _sound(there, file, digests=digests):
                brought.damaged.append(file)
            continue
        seen[there] = None
        there.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            _link_or_copy(stored_path(source, file.kind, file.name), there)
        except FileNotFoundError:
            seen[there] = brought.missing
            brought.missing.append(file)
            continue
        if not _sound(there, file, digests=digests):
            brought.damaged.append(file)
        brought.files[file.kind] += 1
        brought.bytes[file.kind] += file.size
    for folder, _, _ in os.walk(target):
        durable.fsync_folder(Path(folder))
    return brought


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


def _sound(path: Path, file: StoredFile, *, digests: bool) -> bool:
    if path.stat().st_size < file.offset + file.size:
        return False
    if file.kind is FileKind.RESULT:
        return not digests or _digest(path, file) == file.digest
    if path.stat().st_size != file.size:
        return False
    if not digests:
        return True
    try:
        with BundleReader(path, max_files=1_000_000) as reader:
            return reader.summary().digest == file.digest
    except BundleError:
        return False


def _digest(path: Path, file: StoredFile) -> str:
    with open_section(path, file.offset, file.size) as content:
        digest = hashlib.sha256()
        while data := content.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()
