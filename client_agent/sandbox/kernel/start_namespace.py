"""A mount namespace with few mounts, in which a root agent spawns its chains.

bwrap copies the mounts of the namespace that it is started in, reads the list of them for each of
its own mounts, and unmounts them. On a host with hundreds of mounts that takes longer than the
rest of the start. Here it finds its programs, ``/proc``, the device nodes, the cgroups and what the
agent mounts, and nothing else.

The namespace has no process between two starts: it is kept by a descriptor, and ends with the
agent.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.kernel import mounts
from shared.files.opened import closing_fd

log: structlog.stdlib.BoundLogger = structlog.get_logger()

NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")
PROGRAMS: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_WHOLE: Final = ("etc", "proc")
_EMPTY: Final = ("tmp", "dev", "run")
_OLD_ROOT: Final = "old-root"


class StartNamespace:
    """Used on one thread, which is in a mount namespace of the agent's own. Raises OSError if it
    cannot be made, or the chain's programs do not run in it.

    Args:
        mount_root: the agent's mounts, of which those that are made later appear in it, too.
        folders: more folders to show, each with the mount that it lies on.
        programs: commands that must run in it.
    """

    def __init__(
        self, mount_root: Path, folders: Iterable[Path], programs: Sequence[Sequence[str]]
    ) -> None:
        mounts.share(mount_root)
        # on a thread of its own, because it changes its namespace for good
        with ThreadPoolExecutor(1) as thread:
            self._fd = thread.submit(_make, mount_root, folders, programs).result()
        self._own = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self.entered():  # takes CAP_SYS_CHROOT, too
                pass
        except OSError:
            self.close()
            raise

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Spawn in it. Nothing else may be done on this thread meanwhile."""
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with closing_fd(folder):
            mounts.enter(self._fd)
            try:
                yield
            finally:
                try:
                    mounts.enter(self._own)
                    os.fchdir(folder)
                except OSError:  # this thread would not see the agent's files any more
                    log.critical("sandbox.namespace_lost")
                    os.abort()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._own)


def _make(mount_root: Path, folders: Iterable[Path], programs: Sequence[Sequence[str]]) -> int:
    """Make the namespace on a thread of its own; a descriptor of it."""
    mounts.leave_namespace()
    sources = {name: Path("/", name) for name in (*PROGRAMS, *_WHOLE)}
    shown = {folder: _open(folder) for folder in {mount_root, *map(_mount_of, folders)}}
    nodes = _open(Path("/dev"))
    opened = {name: _open(path) for name, path in sources.items() if _is_folder(path)}
    try:
        # Over /run, whatever is there: its parent is not shared, as pivot_root(2) demands.
        root = mount_root.parent
        mounts.mount("start", root, "tmpfs", mounts.NOSUID, "mode=0755,size=1m")
        for name in _EMPTY:
            _folder(root / name)
        for name, path in sources.items():
            if path.is_symlink():
                (root / name).symlink_to(path.readlink())
        for name, fd in opened.items():
            _bind(fd, root / name, mounts.REC if name in (*PROGRAMS, "proc") else 0)
        for folder, fd in shown.items():
            _bind(fd, root / str(folder)[1:], mounts.REC)
        _make_devices(root / "dev", nodes)
        _folder(root / _OLD_ROOT)
        mounts.change_root(root, root / _OLD_ROOT)
        os.chdir("/")
        # otherwise the agent's own mounts, which are shared, would be unmounted everywhere
        mounts.keep_from_others(Path("/", _OLD_ROOT))
        mounts.unmount(Path("/", _OLD_ROOT), detach=True)
        Path("/", _OLD_ROOT).rmdir()
    finally:
        for fd in (*shown.values(), *opened.values(), nodes):
            os.close(fd)
    for command in programs:
        subprocess.run(command, check=True, capture_output=True, timeout=10, env={}, cwd="/")
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def make_nodes(folder: Path, host: int) -> None:
    """Make device nodes like those of the host. Raises OSError.

    Args:
        host: descriptor of the host's ``/dev``.
    """
    for name in NODES:
        number = os.stat(name, dir_fd=host).st_rdev
        os.mknod(folder / name, stat.S_IFCHR | 0o666, number)
        (folder / name).chmod(0o666)


def _make_devices(dev: Path, host: int) -> None:
    """Device nodes like the host's; where none may be made, the host's own folder."""
    try:
        make_nodes(dev, host)
        _folder(dev / "pts")
    except OSError:
        _bind(host, dev, mounts.REC)


def _mount_of(folder: Path) -> Path:
    """The mount that a folder lies on: the folder itself may be removed and made again."""
    while not folder.is_mount():
        folder = folder.parent
    return folder


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _open(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _bind(fd: int, place: Path, recursive: int) -> None:
    _folder(place)
    mounts.mount(f"/proc/self/fd/{fd}", place, flags=mounts.BIND | recursive)


def _folder(folder: Path) -> None:
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir()
            path.chmod(0o755)
