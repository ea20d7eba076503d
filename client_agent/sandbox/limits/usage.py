"""What a running attempt uses, looked up in ``/proc`` and its directory: for hosts without hard
limits."""

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

MAX_DEPTH: Final = 400
"""Levels that are walked, each with a descriptor. A result may be much less deep."""
_INODE_BYTES: Final = 1024
"""Bytes of the kernel's memory for a file in memory and its name."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Of the processes below one init."""

    cpu_s: float
    """Including children that were waited for."""
    memory: int
    """Bytes of memory that no file backs. What a fork shares with its parent counts for both, so
    this may be too much; see :func:`exact_memory`."""


def process_usage(init: int) -> ProcessUsage:
    """Sum over the processes in a sandbox; a snapshot, cheap."""
    ticks = kib = 0
    for pid in (init, *descendants(init)):
        fields = stat_fields(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
            kib += sum(_kib(Path(f"/proc/{pid}/status"), b"RssAnon:", b"RssShmem:"))
    return ProcessUsage(ticks / _TICKS_PER_S, kib * 1024)


def exact_memory(init: int, held: int) -> int:
    """Bytes of memory used by the processes in a sandbox; what is shared counts once. Not
    cheap.

    Args:
        held: bytes of files in memory that are open, mapped or not.
    """
    own = shared = 0
    for pid in (init, *descendants(init)):
        mapped = _kib(Path(f"/proc/{pid}/smaps_rollup"), b"Pss_Anon:", b"Pss_Shmem:")
        own += mapped[0]
        shared += mapped[1]
    return own * 1024 + max(shared * 1024, held)


def tmpfs_memory(init: int, mount_points: Sequence[str]) -> int:
    """Bytes of memory that the file systems in memory of a sandbox use, with what the kernel keeps
    for each of their files.

    Args:
        mount_points: where they are mounted inside.
    """
    total = 0
    for mount_point in mount_points:
        with suppress(OSError):  # gone meanwhile
            found = os.statvfs(f"/proc/{init}/root{mount_point}")
            total += (found.f_blocks - found.f_bfree) * found.f_frsize
            total += (found.f_files - found.f_ffree) * _INODE_BYTES
    return total


@cache
def memfd_device() -> int:
    """The device on which files of memfd_create(2) lie, for :func:`deleted_file_bytes`."""
    fd = os.memfd_create("probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _kib(file: Path, *keys: bytes) -> list[int]:
    """The numbers behind these words; 0 where there are none."""
    try:
        lines = [line.split() for line in file.read_bytes().splitlines()]
    except OSError:
        lines = []  # gone meanwhile
    found = {words[0]: int(words[1]) for words in lines if words and words[0] in keys}
    return [found.get(key, 0) for key in keys]


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """In a directory of a running job."""

    bytes: int
    """On disk, not apparent."""
    entries: int
    too_deep: bool


def directory_usage(
    fd: int, max_entries: int, cancelled: Callable[[], bool] = lambda: False
) -> DirectoryUsage:
    """Walk a directory that changes meanwhile. Blocking.

    Args:
        max_entries: stop once there are more.
        cancelled: asked now and then; True: stop with what was found.
    """
    total = entries = 0
    seen: set[int] = set()  # inodes with several names count once: disk, not archive
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
                found = os.stat(entry.name, dir_fd=parent, follow_symlinks=False)
            except OSError:
                continue
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if found.st_ino in seen:
                    continue
                seen.add(found.st_ino)
            total += found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode):
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
                    found = Path(f"/proc/{pid}/fd/{name}").stat()
                    held = found.st_nlink == 0 and stat.S_ISREG(found.st_mode)
                    if held and found.st_dev == device and found.st_ino not in seen:
                        seen.add(found.st_ino)
                        total += found.st_blocks * 512
    return total
