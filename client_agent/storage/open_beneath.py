"""Opens files of a job safely: relative to an open directory, one path component at a time.

If a whole path were opened, a job could replace one of its folders by a symlink at the same time.
An open descriptor cannot be replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Callable
from typing import Final

from shared.files.opened import closing_fd

SHORTAGE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The agent has too few descriptors or too little memory. It should try again later."""
DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def raise_if_shortage(problem: OSError) -> None:
    """Raise the error if the agent is short of something. Then the file must not be skipped."""
    if problem.errno in SHORTAGE_ERRNOS:
        raise problem


_OPENAT2: Final = 437
"""The number of the system call on all machines, since Linux 5.6."""
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
"""NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH."""
_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Non-blocking, because the file may have been replaced by a FIFO."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


class FileReplaced(OSError):
    """The file was replaced after its status was read."""


def _openat2_works() -> bool:
    if platform.system() != "Linux":
        return False
    how = _OpenHow(_PATH, 0, _RESOLVE)
    fd = _libc.syscall(_OPENAT2, -100, b".", ctypes.byref(how), ctypes.sizeof(how))
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


HAS_OPENAT2: bool = _openat2_works()
"""Old kernels and old container filters refuse openat2. Opening single components without following
symlinks is as safe."""


def open_component(parent: int, name: str, flags: int) -> int:
    """Open ``name``, a single component, in the directory ``parent``.

    Never follows a symlink and never leaves the file system of ``parent``.

    Raises:
        OSError: ELOOP for a symlink, EXDEV for a mount point.
    """
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"not a single component: {name!r}")
    if HAS_OPENAT2:
        how = _OpenHow(flags, 0, _RESOLVE)
        raw = os.fsencode(name)
        fd = _libc.syscall(_OPENAT2, parent, raw, ctypes.byref(how), ctypes.sizeof(how))
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
        return int(fd)
    fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
    if os.fstat(fd).st_dev != os.fstat(parent).st_dev:
        os.close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return fd


def open_directory(parent: int, name: str, *, may_chmod: bool = True) -> int:
    """Open a directory for listing, whatever its mode, if this process owns it. Raises OSError.

    Args:
        may_chmod: its mode may be changed for this.
    """
    try:
        return open_component(parent, name, _DIRECTORY)
    except PermissionError:
        if not may_chmod:
            raise
        _grant_owner_access(parent, name, stat.S_ISDIR, 0o700)
        return open_component(parent, name, _DIRECTORY)


def open_file(parent: int, name: str, expected: os.stat_result, *, may_chmod: bool = True) -> int:
    """Open the regular file that ``expected`` describes for reading, whatever its mode, if this
    process owns it.

    Args:
        may_chmod: its mode may be changed for this.

    Raises:
        FileReplaced: there is another file now, or something else.
        OSError
    """
    try:
        fd = open_component(parent, name, _FILE)
    except PermissionError:
        if not may_chmod:
            raise
        _grant_owner_access(parent, name, stat.S_ISREG, 0o600)
        fd = open_component(parent, name, _FILE)
    actual = os.fstat(fd)
    if not stat.S_ISREG(actual.st_mode) or (actual.st_ino, actual.st_dev) != (
        expected.st_ino,
        expected.st_dev,
    ):
        os.close(fd)
        raise FileReplaced(errno.ESTALE, "it was replaced while it was collected", name)
    return fd


def _grant_owner_access(parent: int, name: str, kind: Callable[[int], bool], mode: int) -> None:
    """Give the owner access. An O_PATH descriptor needs no permission for the file itself."""
    with closing_fd(open_component(parent, name, _PATH)) as fd:
        if not kind(os.fstat(fd).st_mode):
            raise FileReplaced(errno.ESTALE, "it was replaced while it was collected", name)
        os.chmod(f"/proc/self/fd/{fd}", mode)  # noqa: PTH101  # a descriptor, not a path
