"""Lock files: only one process works with a data folder or a database."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
