"""Stored files from one data folder to another: linked where that can be done, else copied."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from server.domain.jobs import FileKind
from server.storage.folder import stored_path
from server.store.stored_rows import StoredFile
from shared.files import durable
from shared.files.bundles.reader import BundleReader
from shared.files.names import BundleError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def open_section(path: Path, start: int, size: int) -> io.BufferedReader:
    """Open ``size`` bytes of the file from ``start``; fewer where the file ends before. Blocking.
    Raises OSError.
    """
    return io.BufferedReader(_Section(path, start, size))


class _Section(io.RawIOBase):
    def __init__(self, path: Path, start: int, size: int) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        there = os.fstat(self._file.fileno()).st_size
        self._start, self._size, self._at = start, max(0, min(size, there - start)), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        before = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if before + offset < 0:
            raise ValueError(f"{offset} is before the beginning of the section")
        self._at = before + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        data = os.pread(self._file.fileno(), count, self._start + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


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
            elif file.kind is FileKind.RESULT and trouble_of(there, file, digests=digests):
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
        if trouble_of(there, file, digests=digests):
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


@dataclass(frozen=True, slots=True)
class FileTrouble:
    """What is wrong with a stored file.

    Attributes:
        kind: for programs.
    """

    kind: str
    text: str


def trouble_of(path: Path, file: StoredFile, *, digests: bool) -> FileTrouble | None:
    """Compare a stored file with its row; None: it is as it should be."""
    try:
        size = path.stat().st_size
        if size < file.offset + file.size or (file.kind is FileKind.BUNDLE and size != file.size):
            wanted = file.offset + file.size
            return FileTrouble("wrong_size", f"it has {size} bytes, not {wanted}")
        if not digests:
            return None
        if file.kind is FileKind.RESULT:
            same = _digest(path, file) == file.digest
        else:
            with BundleReader(path, max_files=1_000_000) as reader:
                same = reader.summary().digest == file.digest
    except FileNotFoundError:
        return FileTrouble("missing_file", "it is not there")
    except BundleError as problem:
        return FileTrouble("damaged_bundle", f"it is no bundle: {problem}")
    except OSError as problem:
        return unreadable(problem)
    return None if same else FileTrouble("wrong_digest", "its digest is not that of its row")


def unreadable(problem: OSError) -> FileTrouble:
    """It may be whole all the same."""
    return FileTrouble("unreadable_file", f"it cannot be read: {problem.strerror or problem}")


def _digest(path: Path, file: StoredFile) -> str:
    with open_section(path, file.offset, file.size) as content:
        digest = hashlib.sha256()
        while data := content.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()
