"""The root of the sandboxes: one folder prepared beforehand, so that a start needs few mounts.

It has copies of the host's files below ``/etc`` that programs need, the generated ones, links to
``/usr`` and the mount points. It is mounted read-only on ``/``, and made again when a file of the
host changed. bwrap reads the list of all mounts again for each of its mounts: with ten mounts fewer
a start takes 1.4 ms of CPU less, and more on a host with hundreds of mounts.

A root agent makes it in a tmpfs of its own mount namespace, which ends with the agent. Any other
agent makes it on its disk: its jobs have the same uid, but they see the tree only read-only.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.sandbox.kernel import mounts
from client_agent.sandbox.kernel.work_folders import WorkFolders
from client_agent.storage.remove_tree import remove_tree
from shared.clock import Clock

JOB: Final = "/job"
UID: Final = 1000
"""Uid of the job, as it sees itself."""
PASSWD: Final = f"job:x:{UID}:{UID}:job:{JOB}:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP: Final = f"job:x:{UID}:\nnogroup:x:65534:\n"
HOSTS: Final = "127.0.0.1 localhost sandbox\n::1 localhost\n"
GENERATED: Final = {"passwd": PASSWD, "group": GROUP, "hosts": HOSTS}

COPIED: Final = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/localtime",
    "/etc/nsswitch.conf",
)
COPIED_WITH_NETWORK: Final = "/etc/resolv.conf"
USR: Final = "/usr"
MERGED_USR: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
MOUNT_POINTS: Final = ("proc", "dev", "tmp", "job")
LINKS: Final = {"var/tmp": "../tmp"}
CHECK_S: Final = 2.0
"""A change of a copied file is noticed so much later at most."""
_SIZE: Final = "64m"

Signature = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(slots=True, eq=False)
class RootTree:
    """One prepared root."""

    path: Path
    folders: tuple[str, ...]
    """Folders of the host that belong on the same places in it."""
    mounted: bool
    """It is a tmpfs, and :attr:`folders` are mounted in it."""
    signature: Signature
    users: int = 0
    """Workspaces whose sandbox shows it. A tree without users that is not current is removed when
    the next one is made."""

    @property
    def files(self) -> list[str]:
        """What was copied and generated, as the job sees it."""
        names = (*COPIED, COPIED_WITH_NETWORK, *(f"/etc/{name}" for name in GENERATED))
        return [name for name in names if (self.path / name[1:]).exists()]


class RootTrees:
    """The trees of one agent."""

    def __init__(self, folders: WorkFolders, clock: Clock, copied: Sequence[str] = COPIED) -> None:
        self._folders, self._clock, self._copied = folders, clock, copied
        self._current: dict[bool, RootTree] = {}
        self._checked_at: dict[bool, float] = {}
        self._outdated: list[RootTree] = []
        self._serial = 0

    def current(self, *, network: bool) -> RootTree | None:
        """The tree that is as new as its sources; None: :meth:`make` must make it.

        Args:
            network: with what a job needs that uses the host's network.
        """
        tree, now = self._current.get(network), self._clock.monotonic()
        if tree is not None and now >= self._checked_at[network] + CHECK_S:
            if self._signature(network=network) != tree.signature:
                return None
            self._checked_at[network] = now
        return tree

    def is_current(self, tree: RootTree) -> bool:
        """Whether that tree is as new as its sources."""
        return any(tree is self.current(network=network) for network in list(self._current))

    def make(self, *, network: bool) -> RootTree:
        """Make a tree, unless another call made it meanwhile. Blocking; raises OSError."""
        if (tree := self.current(network=network)) is not None:
            return tree
        checked_at = self._clock.monotonic()
        signature = self._signature(network=network)  # first: a change while copying is noticed
        self._serial += 1
        path = self._folders.make_root_folder(f"root.{self._serial}")
        mounted = self._folders.has_mounts
        try:
            if mounted:
                flags = mounts.NOSUID | mounts.NODEV
                mounts.mount("root", path, "tmpfs", flags, f"mode=0755,size={_SIZE}")
            folders = self._fill(path, network=network)
            if mounted:
                for folder in folders:
                    mounts.mount(folder, path / folder[1:], flags=mounts.BIND | mounts.REC)
                    mounts.make_read_only(path / folder[1:])
                mounts.make_read_only(path)
        except BaseException:
            _remove(path, mounted=mounted)
            raise
        tree = RootTree(path, folders, mounted, signature)
        if (old := self._current.get(network)) is not None:
            self._outdated.append(old)
        self._current[network], self._checked_at[network] = tree, checked_at
        self._remove_unused()
        return tree

    def close(self) -> None:
        """Remove all trees. Blocking."""
        for tree in (*self._current.values(), *self._outdated):
            _remove(tree.path, mounted=tree.mounted)
        self._current.clear()
        self._outdated.clear()

    def _remove_unused(self) -> None:
        for tree in [tree for tree in self._outdated if tree.users == 0]:
            self._outdated.remove(tree)
            _remove(tree.path, mounted=tree.mounted)

    def _sources(self, *, network: bool) -> list[Path]:
        more = [COPIED_WITH_NETWORK] if network else []
        return [Path(name) for name in (*self._copied, *more)]

    def _signature(self, *, network: bool) -> Signature:
        """Changes if one of the files changes, or a folder between the root and ``/usr``."""
        found = [(name, _status(name)) for name in (USR, *MERGED_USR)]
        for source in map(str, self._sources(network=network)):
            found.append((source, _status(source, follow=True)))
            found += [(path, _status(path)) for path in _below(source)]
        return tuple(found)

    def _fill(self, root: Path, *, network: bool) -> tuple[str, ...]:
        """Make everything but mounts; the folders of the host that belong in it."""
        folders = [USR]
        for name in MERGED_USR:
            path = Path(name)
            if path.is_symlink():
                (root / name[1:]).symlink_to(path.readlink())
            elif path.is_dir():
                folders.append(name)
        for name in (*MOUNT_POINTS, *(folder[1:] for folder in folders), "etc"):
            _make_folder(root / name)
        for name, target in LINKS.items():
            _make_folder((root / name).parent)
            (root / name).symlink_to(target)
        for source in self._sources(network=network):
            place = root / str(source)[1:]
            _make_folder(place.parent)
            _copy(source, place, follow=True)
        for name, text in GENERATED.items():
            file = root / "etc" / name
            file.write_text(text)
            file.chmod(0o444)
        return tuple(folders)


def _make_folder(folder: Path) -> None:
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir()
            path.chmod(0o755)  # whatever the agent's umask is


def _copy(source: Path, place: Path, *, follow: bool = False) -> None:
    """Copy what the job may read: what is gone or closed is left out."""
    with suppress(FileNotFoundError, PermissionError):
        status = source.stat(follow_symlinks=follow)
        mode = stat.S_IMODE(status.st_mode) & 0o755
        if stat.S_ISLNK(status.st_mode):
            place.symlink_to(source.readlink())
        elif stat.S_ISDIR(status.st_mode):
            place.mkdir()
            for path in source.iterdir():
                _copy(path, place / path.name)
            place.chmod(mode)
        elif stat.S_ISREG(status.st_mode):
            shutil.copyfile(source, place)
            place.chmod(mode)


def _below(folder: str) -> Iterator[str]:
    """Paths as text: each of hundreds of files is looked at every few seconds."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            yield entry.path
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)


def _status(path: str, *, follow: bool = False) -> tuple[int, ...]:
    try:
        found = os.stat(path, follow_symlinks=follow)  # noqa: PTH116  # text is faster
    except OSError:
        return ()
    return (
        *(found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid),
        *(found.st_size, found.st_mtime_ns, found.st_ctime_ns),
    )


def _remove(path: Path, *, mounted: bool) -> None:
    if mounted:  # never file by file: the host's /usr is mounted in it
        with suppress(FileNotFoundError):
            with suppress(OSError):
                mounts.unmount(path, detach=True)
            path.rmdir()
    else:
        remove_tree(path)
