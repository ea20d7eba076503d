"""Mounting without a helper process: a fork costs more than the mount."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

NOSUID: Final = 2
NODEV: Final = 4
NOATIME: Final = 1024
BIND: Final = 4096
PRIVATE: Final = 1 << 18
_DETACH: Final = 2
_NOFOLLOW: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2).

    Raises:
        OSError
    """
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


def unmount(target: Path, *, detach: bool = False) -> None:
    """umount2(2); a symlink is not followed.

    Args:
        detach: take it out of sight now, free it when nobody uses it any more.

    Raises:
        OSError
    """
    flags = _NOFOLLOW | (_DETACH if detach else 0)
    if _libc.umount2(os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def mounted_below(top: Path) -> list[Path]:
    """Mount points at or below ``top``, the latest first: the order in which to unmount them."""
    found: list[Path] = []
    prefix = os.fsencode(top)
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        place = _unescape(line.split(b" ")[4])
        if place == prefix or place.startswith(prefix + b"/"):
            found.append(Path(os.fsdecode(place)))
    return found[::-1]


def _unescape(field: bytes) -> bytes:
    parts = field.split(b"\\")
    return parts[0] + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts[1:])
