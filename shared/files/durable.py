"""Durable writes: whole files, which survive a power cut."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from pathlib import Path
from typing import Final

from shared.files.opened import closing_fd

WRITEBACK_BYTES: Final = 8 << 20
"""Whoever writes a large file calls :func:`start_writeback` each time this much was written."""
_SYNC_FILE_RANGE_WRITE: Final = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def fsync_file(path: Path) -> None:
    """Put the content of ``path`` on the disk."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Let the disk begin with these bytes now, without waiting for it; only a hint.

    Otherwise the kernel collects gigabytes. The fsync at the end then waits for all of them, and so
    does every other fsync on that disk meanwhile, such as a commit of the database.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, length, _SYNC_FILE_RANGE_WRITE)


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of it, however little the kernel takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_folder(path: Path) -> None:
    """Put the names in the folder ``path`` on the disk: creations, renames, removals."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def replace(tmp: Path, final: Path, *, synced: bool = False) -> None:
    """Give the finished file ``tmp`` its final name. Once this returns, it survives a power cut.

    Args:
        tmp: on the same file system as ``final``.
        synced: the content was fsynced already, as by
            :class:`~shared.files.bundles.writer.BundleWriter`.

    Raises:
        OSError: ``final`` does not exist then, unless it did before and the rename did not happen.
    """
    if not synced:
        fsync_file(tmp)
    tmp.replace(final)
    try:
        fsync_folder(final.parent)
    except OSError:
        remove_quietly(final)
        raise


def store(tmp: Path, content: bytes, final: Path) -> None:
    """Make the file ``final`` with this content. Once this returns, it survives a power cut.

    It gets its name before it is synced: both are on the disk by one commit of the file system's
    journal. A power cut before the end may leave the name with less than the content.

    Args:
        tmp: on the same file system; not there before, nor after.

    Raises:
        OSError: ``final`` does not exist then.
    """
    fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with closing_fd(fd):
        write_all(fd, content)
        tmp.rename(final)
        try:
            os.fsync(fd)
            fsync_folder(final.parent)
        except OSError:
            remove_quietly(final)
            raise


def remove_quietly(path: Path) -> None:
    """Remove a file if that is possible; if not, a later sweep removes it."""
    with contextlib.suppress(OSError):
        path.unlink()


class FolderInUse(Exception):
    """Another process uses it."""


class FileLock:
    """Holds a lock file until closed or the process ends, however it ends.

    Args:
        path: of the lock file; made if missing, and left behind.
        what: is held by it, for the message.
        choose: what else could be used, for the message.

    Raises:
        FolderInUse: another process holds it; its pid is in the text.
        OSError: the lock file cannot be written.
    """

    def __init__(self, path: Path, what: Path, choose: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise FolderInUse(
                f"{what} is in use by another process (pid {holder}): "
                f"stop that one, or choose another {choose}"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._fd)


class FolderLock(FileLock):
    """Holds a data folder. Raises as :class:`FileLock`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lock", folder, "data folder")
