"""The files of an attempt that runs, one by one, as they are now. Blocking.

The job changes them at the same time, and may put links in the way: each component of a path is
opened by itself, no link is followed, and only regular files are read.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.collect.contents import own_names
from client_agent.collect.walk import Bounds, Walk
from client_agent.storage import open_beneath
from client_agent.storage.open_beneath import raise_if_shortage
from shared.files.names import UnsafeName, fold, safe_path
from shared.files.opened import closing_fd
from shared.wire import RunningFile, RunningFiles

_CHUNK: Final = 1 << 18
_LONGEST_LOG: Final = len("stdout.ferryman.1234567890.log")


class NoSuchFile(Exception):
    """No file can be read there now; the text says why."""


@dataclass(frozen=True, slots=True)
class FileId:
    """Which file was opened: another one may have its name a moment later."""

    place: Path | tuple[str, ...]
    """A log, or the names on the disk from the directory on: so they are looked for once."""
    device: int
    inode: int
    size: int
    """Bytes when it was opened."""


class RunningTree:
    """The directory of an attempt, and its logs.

    Args:
        fd: the directory; the caller closes it.
        logs: usual name in a result -> where the log is.
    """

    def __init__(self, fd: int, logs: Mapping[str, Path]) -> None:
        self._fd, self._logs = fd, logs

    def list(self, after: str, limit: int) -> RunningFiles:
        """The files behind ``after`` (empty: all), folder by folder, and the logs at their end."""
        own = self._own_names()
        found: list[RunningFile] = []
        if after not in own:
            last = _components(after) if after else []
            entries = Walk(self._fd, Bounds(), may_chmod=False).entries(_ignore, own)
            for entry in entries:
                if entry.is_folder or _components(entry.path) <= last:
                    continue
                if len(found) == limit:
                    entries.close()  # type: ignore[attr-defined]
                    return RunningFiles(files=found, more=True)
                modified = max(0.0, entry.modified)
                found.append(RunningFile(path=entry.path, size=entry.size, modified=modified))
        names = list(own)
        for name in names[names.index(after) + 1 :] if after in own else names:
            if len(found) == limit:
                return RunningFiles(files=found, more=True)
            status = own[name].stat()
            found.append(RunningFile(path=name, size=status.st_size, modified=status.st_mtime))
        return RunningFiles(files=found, more=False)

    def find(self, path: str) -> FileId:
        """Which file has the path now. Raises NoSuchFile, or OSError in a shortage."""
        place = self._place(path)
        with closing_fd(self._open(place)) as fd:
            status = os.fstat(fd)
            return FileId(place, status.st_dev, status.st_ino, status.st_size)

    def read(self, file: FileId, at: int, count: int) -> bytes:
        """Some of its bytes; none: it is another file now, or has become shorter."""
        with closing_fd(self._open(file.place)) as fd:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != (file.device, file.inode):
                return b""
            return os.pread(fd, min(count, _CHUNK), at)

    def _place(self, path: str) -> Path | tuple[str, ...]:
        """Where the file is that is listed under the path. Raises as :meth:`find`."""
        own = self._own_names()
        if path in own:
            return own[path]
        try:
            parts = safe_path(path).split("/")
        except UnsafeName as problem:
            raise NoSuchFile(problem.why) from None
        with ExitStack() as stack, _missing():
            parent, names = self._fd, list[str]()
            for part in parts[:-1]:
                names.append(_name_on_disk(parent, part))
                folder = open_beneath.open_directory(parent, names[-1], may_chmod=False)
                parent = stack.enter_context(closing_fd(folder))
            return (*names, _name_on_disk(parent, parts[-1]))

    def _open(self, place: Path | tuple[str, ...]) -> int:
        if isinstance(place, Path):
            return os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with ExitStack() as stack, _missing():
            parent = self._fd
            for name in place[:-1]:
                folder = open_beneath.open_directory(parent, name, may_chmod=False)
                parent = stack.enter_context(closing_fd(folder))
            status = os.stat(place[-1], dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise NoSuchFile("it is not a regular file; links are not followed")
            return open_beneath.open_file(parent, place[-1], status, may_chmod=False)

    def _own_names(self) -> dict[str, Path]:
        """Name in the result of each log -> where it is."""
        names = own_names(
            self._logs, {fold(name) for name in _names(self._fd) if _may_be_log(name)}
        )
        return {names[usual]: path for usual, path in self._logs.items()}


def _names(folder: int) -> Iterator[str]:
    """Those of its entries, as many as a result may have: a job can make millions."""
    with os.scandir(folder) as listing:
        for entry in itertools.islice(listing, Bounds().entries):
            yield entry.name


def _may_be_log(name: str) -> bool:
    """Whether its folded form may be one that a log has in a result. It costs little to say no."""
    return len(name) <= _LONGEST_LOG and fold(name[-1]) == "g" and fold(name[0])[0] == "s"


@contextmanager
def _missing() -> Iterator[None]:
    """Raises NoSuchFile for an OSError that is no shortage."""
    try:
        yield
    except OSError as problem:
        raise_if_shortage(problem)
        raise NoSuchFile(_why(problem)) from None


def _why(problem: OSError) -> str:
    if problem.errno in (errno.ELOOP, errno.EXDEV):
        return "links and mounts are not followed"
    if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return "there is none now"
    return problem.strerror or "it cannot be read"


def _components(path: str) -> list[bytes]:
    return [os.fsencode(part) for part in path.split("/")]


def _ignore(path: str, why: str) -> None:
    """What cannot be packed is not listed."""


def _name_on_disk(parent: int, name: str) -> str:
    """The name of an entry that is listed as ``name``: a job may have stored it decomposed."""
    if name.isascii() or _exists(parent, name):
        return name
    same = (one for one in _names(parent) if unicodedata.normalize("NFC", one) == name)
    return next(same, name)


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    return True
