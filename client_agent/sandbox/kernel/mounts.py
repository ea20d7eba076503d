"""Mounts, made without a helper process, because a fork takes longer than the mount."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

NOSUID: Final = 2
NODEV: Final = 4
BIND: Final = 4096
REC: Final = 1 << 14
NOEXEC: Final = 8
_RDONLY: Final = 1
_REMOUNT: Final = 32
READ_ONLY: Final = _REMOUNT | _RDONLY
"""Makes a mounted file system read-only, wherever it is mounted."""
_NEWNS: Final = 0x20000
_FS: Final = 0x200
_SLAVE: Final = 1 << 19
_SHARED: Final = 1 << 20
_DETACH: Final = 2
_NOFOLLOW: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def make_read_only(target: Path) -> None:
    """Make a mount read-only here; other mounts of the same files stay as they are."""
    mount("none", target, flags=_REMOUNT | BIND | _RDONLY | NOSUID | NODEV)


def share(target: Path) -> None:
    """Let the mounts below appear in namespaces that are copied from this one later."""
    mount("none", target, flags=_SHARED)


def keep_from_others(target: Path) -> None:
    """Let what is mounted and unmounted below stay in this namespace."""
    mount("none", target, flags=_SLAVE | REC)


def leave_namespace() -> None:
    """Move the calling thread to a copy of its mount namespace. Raises OSError."""
    _check(_libc.unshare(_NEWNS), "a mount namespace")


def enter(namespace: int) -> None:
    """Move the calling thread to a mount namespace; its folder becomes the root. Raises OSError."""
    # threads that this one started share its folder and root, and then it may not change them
    _check(_libc.unshare(_FS), "unshare")
    _check(_libc.setns(namespace, _NEWNS), "setns")


def change_root(root: Path, old: Path) -> None:
    """pivot_root(2). Raises OSError."""
    _check(_libc.pivot_root(os.fsencode(root), os.fsencode(old)), str(root))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unmount(target: Path, *, detach: bool = False) -> None:
    """umount2(2); a symlink is not followed. Raises OSError.

    Args:
        detach: unmount it lazily: it disappears now, and is freed when nothing uses it any more.
    """
    flags = _NOFOLLOW | (_DETACH if detach else 0)
    if _libc.umount2(os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def enter_private_namespace(mount_root: Path) -> None:
    """Move the calling thread, and threads that it starts later, to a mount namespace of their own.
    Raises OSError if that is not permitted.

    It ends with the process, so a killed agent leaves no mount and no loop device. Later mounts of
    the host appear in it, but its own mounts do not appear on the host. A small tmpfs for mount
    points is mounted on ``mount_root``, which stays on the host as an empty folder.
    """
    if _namespace() in _private_namespaces:
        return
    mount_root.mkdir(
        exist_ok=True
    )  # never removed: that would detach what other agents mount there
    if _libc.unshare(_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "a mount namespace")
    mount("none", Path("/"), flags=_SLAVE | REC)
    mount("ferryman", mount_root, "tmpfs", NOSUID | NODEV, "mode=0711,size=4m")
    _private_namespaces.add(_namespace())


def _namespace() -> tuple[int, int]:
    """The mount namespace of this thread, and the pid, because a fork starts in its parent's."""
    return os.getpid(), Path("/proc/thread-self/ns/mnt").stat().st_ino


_private_namespaces: set[tuple[int, int]] = set()
