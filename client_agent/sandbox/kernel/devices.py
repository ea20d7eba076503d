"""Folders that are mounted on ``/dev`` in sandboxes, made beforehand by a root agent.

Each has the nodes that bwrap's ``--dev`` would bind one by one, and pseudo-terminals of its own. A
start takes 2 ms of CPU less with one: bwrap reads the list of all mounts for each of its own. One
sandbox has it at a time, and another gets it only if no terminal is left in it.

It belongs to root, and its file system is read-only, so that a job can neither write to it nor keep
anything there.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.kernel import mounts
from client_agent.sandbox.kernel.start_namespace import make_nodes
from client_agent.sandbox.kernel.work_folders import WorkFolders
from shared.files.opened import closing_fd

log: structlog.stdlib.BoundLogger = structlog.get_logger()

LINKS: Final = {
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "fd": "/proc/self/fd",
    "core": "/proc/kcore",
    "ptmx": "pts/ptmx",
}
_PTS: Final = "pts"
_SHM: Final = "shm"
_EMPTY_PTS: Final = ["ptmx"]
_TERMINALS: Final = 128
"""Of one sandbox, of the thousands that the kernel has for all of the host."""
_IMPOSSIBLE: Final = frozenset(
    {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP}
)
"""Such as in a container that may make no nodes. Other errors pass, such as too many open files."""


class DeviceFolders:
    """Those of one agent. They end with its mount namespace."""

    def __init__(self, folders: WorkFolders) -> None:
        self._folders = folders
        self._idle: list[Path] = []
        self._serial = 0
        self._possible = True

    def take(self) -> Path | None:
        """One that nobody has; None: none can be made here, or none now."""
        if self._idle:
            return self._idle.pop()
        if not self._possible or not self._folders.has_mounts:
            return None
        try:
            return self._make()
        except OSError as problem:
            if problem.errno in _IMPOSSIBLE:
                log.info("sandbox.no_devices", error=str(problem))
                self._possible = False
            return None

    def give_back(self, folder: Path) -> None:
        """All processes that had it are dead."""
        try:
            as_new = os.listdir(folder / _PTS) == _EMPTY_PTS  # noqa: PTH208  # names
        except OSError:
            as_new = False
        if as_new:
            self._idle.append(folder)
        else:
            _remove(folder)

    def close(self) -> None:
        """Remove the idle ones."""
        while self._idle:
            _remove(self._idle.pop())

    def _make(self) -> Path:
        self._serial += 1
        folder = self._folders.base / f"dev.{self._serial}"
        folder.mkdir()
        flags, options = mounts.NOSUID | mounts.NOEXEC, "mode=0755,size=64k"
        try:
            mounts.mount("dev", folder, "tmpfs", flags, options)
            with closing_fd(os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as host:
                make_nodes(folder, host)
            for name, target in LINKS.items():
                (folder / name).symlink_to(target)
            for name in (_PTS, _SHM):
                (folder / name).mkdir()
                (folder / name).chmod(0o755)
            # The whole file system: of a single mount, each namespace has a flag of its own.
            mounts.mount("dev", folder, "tmpfs", mounts.READ_ONLY | flags, options)
            terminals = f"newinstance,ptmxmode=0666,mode=620,max={_TERMINALS}"
            mounts.mount("devpts", folder / _PTS, "devpts", flags, terminals)
            with (folder / "null").open("rb"):  # a mount above may refuse device nodes
                pass
        except BaseException:
            _remove(folder)
            raise
        return folder


def _remove(folder: Path) -> None:
    with suppress(OSError):
        mounts.unmount(folder, detach=True)
    with suppress(OSError):
        folder.rmdir()
