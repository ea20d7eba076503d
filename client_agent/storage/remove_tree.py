"""Deletes any tree that a job can make: thousands of levels, mode 000, a million names.

A directory that is not empty is moved to the top, beside the one that is being deleted. So there is
no recursion, at most two directories are open at a time, any depth works (``shutil.rmtree`` fails
at 5,000 levels), and each directory is moved at most once.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from shared.files.opened import closing_fd

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Delete the directory ``path`` with everything in it. It is no error if it does not exist.
    Raises OSError if something cannot be deleted (a mount point, a damaged disk).

    Nothing else may write to it at the same time. Symlinks are deleted, never followed.
    """
    try:
        parent = os.open(path.parent, _DIRECTORY)
    except FileNotFoundError:
        return
    with closing_fd(parent):
        _remove(parent, path.name)


def empty_folder(fd: int) -> None:
    """Delete everything in an open directory, as :func:`remove_tree` does."""
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if is_folder:
            _remove(fd, name)
        else:
            os.unlink(name, dir_fd=fd)


def _remove(parent: int, name: str) -> None:
    serial = 0
    pending = [name]
    while pending:
        current = pending.pop()
        try:
            _make_writable(parent, current)
            fd = os.open(current, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            continue
        with closing_fd(fd):
            emptied = False
            while not emptied:  # a directory that changes while it is listed may hide entries
                emptied = True
                with os.scandir(fd) as entries:
                    for entry in entries:
                        emptied = False
                        if not entry.is_dir(follow_symlinks=False):
                            os.unlink(entry.name, dir_fd=fd)
                            continue
                        with contextlib.suppress(OSError):
                            os.rmdir(entry.name, dir_fd=fd)
                            continue
                        _make_writable(fd, entry.name)  # moving changes its own ".."
                        serial += 1
                        moved = f"{name}.removing.{serial}"
                        while _exists(parent, moved):
                            serial += 1
                            moved = f"{name}.removing.{serial}"
                        os.rename(entry.name, moved, src_dir_fd=fd, dst_dir_fd=parent)
                        pending.append(moved)
        os.rmdir(current, dir_fd=parent)


def _make_writable(parent: int, name: str) -> None:
    with closing_fd(os.open(name, _PATH, dir_fd=parent)) as fd:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
