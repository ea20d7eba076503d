"""Which files of an attempt go into its result."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from shared.files.globs import Globs
from shared.files.names import shown
from shared.files.opened import closing_fd

ALWAYS: Final = "children/"
"""Children that the job leaves: their server makes jobs of them."""
_MAX_NAMED: Final = 20
_CHUNK: Final = 1 << 18


class Part(Enum):
    """What becomes of a file or folder."""

    PACKED = auto()
    REFERRED = auto()
    """It is as it was given: its name is in use, and it is not packed."""
    LEFT_OUT = auto()


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was given."""

    fingerprint: tuple[int, int, int, int]
    sha256: str
    is_listed: bool


class Given:
    """The files that an attempt was given, as they were before it began: its result refers to those
    that are as they were.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._began = 0

    def add(self, path: str, sha256: str, status: os.stat_result, *, listed: bool = True) -> None:
        """A file was written.

        Args:
            listed: the result's list has it, since its server can take it from the bundle.
        """
        self._files[path] = _File(_fingerprint(status), sha256, listed)

    def begin(self, folder: int) -> None:
        """The attempt may write from now on.

        Args:
            folder: descriptor of its directory.
        """
        try:  # the clock of its file system may be a coarse one
            os.utime(folder)
            self._began = os.fstat(folder).st_ctime_ns
        except PermissionError:
            self._began = 0

    def sha256(self, path: str) -> str | None:
        """Of a file that goes on the list."""
        file = self._files[path]
        return file.sha256 if file.is_listed else None

    def has(self, path: str, status: os.stat_result) -> bool | None:
        """Whether the file is as it was given; None: if its content is, since it was written so
        late that a change may have left the same times.
        """
        file = self._files.get(path)
        if file is None or file.fingerprint != _fingerprint(status):
            return False
        return True if file.fingerprint[-1] < self._began else None

    def has_content(self, path: str, fd: int) -> bool:
        """Whether the file, which is open, has the content that it was given with."""
        return _digest(fd) == self._files[path].sha256


def _fingerprint(status: os.stat_result) -> tuple[int, int, int, int]:
    """``ctime`` is the last: the file system sets it whenever the file changes, and no job can. A
    mode can change without it, within one tick of its clock.
    """
    return status.st_ino, status.st_size, status.st_mode, status.st_ctime_ns


def _digest(fd: int) -> str:
    sha256 = hashlib.sha256()
    while data := os.read(fd, _CHUNK):
        sha256.update(data)
    return sha256.hexdigest()


@dataclass(slots=True)
class Selection:
    """What to keep of one attempt.

    Args:
        outputs: patterns; none: everything.
        given: files that are not packed where they are as they were.
    """

    outputs: Sequence[str] = ()
    given: Given = field(default_factory=Given)
    _globs: Globs | None = field(init=False, default=None)
    _unused: set[str] = field(init=False)
    _compared: dict[str, bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._globs = Globs(self.outputs) if self.outputs else None
        self._unused = set(self.outputs)

    def part(self, path: str, status: os.stat_result | None, open_file: Callable[[], int]) -> Part:
        """What becomes of a file. Raises OSError if it has to be read, and cannot be.

        Args:
            status: None: it is an empty folder.
        """
        if path.startswith(ALWAYS):
            return Part.PACKED
        if self._globs is not None:
            found = self._globs.matching(path)
            if found is None:
                return Part.LEFT_OUT
            self._unused.discard(found)
        if status is not None and self._is_as_given(path, status, open_file):
            return Part.REFERRED
        return Part.PACKED

    def _is_as_given(self, path: str, status: os.stat_result, open_file: Callable[[], int]) -> bool:
        found = self.given.has(path, status)
        if found is None:
            if path not in self._compared:
                with closing_fd(open_file()) as fd:
                    self._compared[path] = self.given.has_content(path, fd)
            found = self._compared[path]
        return found

    def warnings(self) -> tuple[str, ...]:
        """About patterns that chose nothing, which may be misspelt."""
        unused = [text for text in self.outputs if text in self._unused]
        if not unused:
            return ()
        named = ", ".join(shown(text) for text in unused[:_MAX_NAMED])
        return (f"outputs: no file is chosen by {named}",)
