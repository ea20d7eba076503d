"""Which files of an attempt go into its result."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from client_agent.storage import open_beneath
from client_agent.storage.open_beneath import raise_if_shortage
from shared.files.globs import Globs
from shared.files.names import shown
from shared.files.opened import closing_fd

ALWAYS: Final = "children/"
"""Children that the job leaves: their server makes jobs of them."""
_MAX_NAMED: Final = 20

Known = frozenset[int]
"""The files that an attempt was given, each by path, inode, size and times."""
NOTHING: Final[Known] = frozenset()


@dataclass(slots=True)
class Selection:
    """What to keep of one attempt.

    Args:
        outputs: patterns; none: everything.
        given: files that are left out where they are as they were.
    """

    outputs: Sequence[str] = ()
    given: Known = NOTHING
    _globs: Globs | None = field(init=False, default=None)
    _unused: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._globs = Globs(self.outputs) if self.outputs else None
        self._unused = set(self.outputs)

    @property
    def is_everything(self) -> bool:
        return self._globs is None and not self.given

    def keeps(self, path: str, status: os.stat_result | None) -> bool:
        """Whether the file is to be kept.

        Args:
            status: None: it is an empty folder.
        """
        if path.startswith(ALWAYS):
            return True
        if status is not None and self.given and fingerprint(path, status) in self.given:
            return False
        if status is None and self.given and _folder(path) in self.given:
            return False
        if self._globs is None:
            return True
        found = self._globs.matching(path)
        if found is None:
            return False
        self._unused.discard(found)
        return True

    def warnings(self) -> tuple[str, ...]:
        """About patterns that chose nothing, which may be misspelt."""
        unused = [text for text in self.outputs if text in self._unused]
        if not unused:
            return ()
        named = ", ".join(shown(text) for text in unused[:_MAX_NAMED])
        return (f"outputs: no new file is chosen by {named}",)


def known_files(fd: int) -> Known:
    """What is in a directory now. Blocking. Raises OSError."""
    found = set[int]()
    _add(fd, "", found)
    return frozenset(found)


def _add(fd: int, above: str, found: set[int]) -> None:
    with os.scandir(fd) as listing:
        entries = list(listing)
    for entry in entries:
        path = above + entry.name
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            found.add(fingerprint(path, status))
        elif stat.S_ISDIR(status.st_mode):
            found.add(_folder(path))
            with closing_fd(_opened(fd, entry.name)) as below:
                _add(below, f"{path}/", found)


def _opened(parent: int, name: str) -> int:
    try:
        return open_beneath.open_directory(parent, name)
    except OSError as problem:
        raise_if_shortage(problem)
        raise


def fingerprint(path: str, status: os.stat_result) -> int:
    """Of a file as it is. Whoever writes to it, or puts another one in its place, changes it: the
    kernel sets ``ctime``, which no job can.
    """
    what = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hash((path, *what))


def _folder(path: str) -> int:
    return hash((path, "folder"))
