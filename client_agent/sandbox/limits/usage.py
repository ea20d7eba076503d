"""What a running attempt uses, read from ``/proc`` and its directory, for soft limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from client_agent.sandbox.kernel.pidfd import descendants, stat_fields
from client_agent.storage import open_beneath
from shared.files.opened import closing_fd

MAX_DEPTH: Final = 400
"""Levels of folders that are walked; each needs a descriptor. Results may be much less deep."""
_INODE_BYTES: Final = 1024
"""Bytes of kernel memory for one file in memory and its name."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What the processes of a sandbox use."""

    cpu_s: float
    """With that of children that were waited for."""
    memory: int
    """Bytes of memory without that of mapped files. What a fork shares with its parent counts
    twice, so this may be too much; see :func:`exact_memory`."""


def process_usage(init: int) -> ProcessUsage:
    """Sum over the processes of a sandbox. Takes little time."""
    ticks = kib = 0
    for pid in (init, *descendants(init)):
        fields = stat_fields(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
            kib += sum(_kib(Path(f"/proc/{pid}/status"), b"RssAnon:", b"RssShmem:"))
    return ProcessUsage(ticks / _TICKS_PER_S, kib * 1024)


def exact_memory(init: int, file_bytes: int) -> int:
    """Bytes of memory of the processes of a sandbox; shared memory counts once. Takes longer.

    Args:
        file_bytes: bytes of open files in memory, mapped or not.
    """
    own = shared = 0
    for pid in (init, *descendants(init)):
        mapped = _kib(Path(f"/proc/{pid}/smaps_rollup"), b"Pss_Anon:", b"Pss_Shmem:")
        own += mapped[0]
        shared += mapped[1]
    return own * 1024 + max(shared * 1024, file_bytes)


def tmpfs_memory(init: int, mount_points: Sequence[str]) -> int:
    """Bytes of memory that file systems in memory use, with the kernel's memory for each file.

    Args:
        mount_points: of these file systems, as the job sees them.
    """
    total = 0
    for mount_point in mount_points:
        with suppress(OSError):  # it is gone
            fs = os.statvfs(f"/proc/{init}/root{mount_point}")
            total += (fs.f_blocks - fs.f_bfree) * fs.f_frsize
            total += (fs.f_files - fs.f_ffree) * _INODE_BYTES
    return total


@cache
def memfd_device() -> int:
    """The device of files of memfd_create(2), for :func:`deleted_file_bytes`."""
    with closing_fd(os.memfd_create("probe", os.MFD_CLOEXEC)) as fd:
        return os.fstat(fd).st_dev


def _kib(file: Path, *keys: bytes) -> list[int]:
    """The numbers after these keys; 0 for those that are missing."""
    try:
        lines = [line.split() for line in file.read_bytes().splitlines()]
    except OSError:
        lines = []  # it is gone
    values = {words[0]: int(words[1]) for words in lines if words and words[0] in keys}
    return [values.get(key, 0) for key in keys]


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """What a directory contains."""

    bytes: int
    """On disk, not apparent."""
    entries: int
    too_deep: bool


def directory_usage(
    fd: int, max_entries: int, cancelled: Callable[[], bool] = lambda: False
) -> DirectoryUsage:
    """Walk a directory that changes at the same time. Blocking.

    Args:
        max_entries: stop once there are more.
        cancelled: called from time to time; True: stop, and return what was counted so far.
    """
    total = entries = 0
    seen: set[int] = set()  # an inode with several names counts once
    stack = [(os.dup(fd), os.scandir(fd))]
    try:
        while stack:
            parent, listing = stack[-1]
            entry = next(listing, None)
            if entry is None:
                listing.close()
                os.close(parent)
                stack.pop()
                continue
            entries += 1
            if entries > max_entries or (entries % 256 == 0 and cancelled()):
                return DirectoryUsage(total, entries, too_deep=False)
            try:
                status = os.stat(entry.name, dir_fd=parent, follow_symlinks=False)
            except OSError:
                continue
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                if status.st_ino in seen:
                    continue
                seen.add(status.st_ino)
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                if len(stack) >= MAX_DEPTH:
                    return DirectoryUsage(total, entries, too_deep=True)
                with suppress(OSError):
                    below = open_beneath.open_directory(parent, entry.name)
                    stack.append((below, os.scandir(below)))
    finally:
        for parent, listing in stack:
            listing.close()
            os.close(parent)
    return DirectoryUsage(total, entries, too_deep=False)


def deleted_file_bytes(init: int, device: int) -> int:
    """Bytes of files on ``device`` that are deleted but held open by the processes below
    ``init``."""
    total = 0
    seen: set[int] = set()
    for pid in descendants(init):
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # numbers
                with suppress(OSError):
                    status = Path(f"/proc/{pid}/fd/{name}").stat()
                    deleted = status.st_nlink == 0 and stat.S_ISREG(status.st_mode)
                    if deleted and status.st_dev == device and status.st_ino not in seen:
                        seen.add(status.st_ino)
                        total += status.st_blocks * 512
    return total
