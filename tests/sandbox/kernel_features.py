"""Which limits this machine's kernel can enforce, found out without the code under test."""

import fcntl
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal

from tests.kit import installed

_FILES: Final = {
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max", "pids.max"),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
}
"""Controller -> its limit in version 2 and in version 1."""
_LOOP_CTL_GET_FREE: Final = 0x4C82
_CAP_SYS_ADMIN: Final = 21


def offers(who: Literal["root", "user"], limit: str) -> bool:
    """Whether the kernel can enforce a limit for an agent that runs as ``who``.

    Args:
        limit: "memory", "pids", "cpu" or "disk".
    """
    if os.geteuid() == 0 and who == "user":
        return False  # nothing was delegated to the uid that the test makes up
    return _images() if limit == "disk" else _cgroup(limit)


@cache
def _cgroup(controller: str) -> bool:
    """Make a group in each hierarchy that has the controller, and look for its limit."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mount = Path(before.split(" ")[4])
        if kind == "cgroup2" and controller in (mount / "cgroup.controllers").read_text().split():
            file = _FILES[controller][0]
        elif kind == "cgroup" and controller in options.split(","):
            file = _FILES[controller][1]
        else:
            continue
        own = _own(kind, controller)
        probe = mount / own / f"probe-{os.getpid()}"
        with suppress(OSError):
            probe.mkdir()
            try:
                # in version 2 a group that holds processes gives no controllers away: what a
                # service was delegated is in the group itself
                if (probe / file).exists() or (probe.parent / file).exists():
                    return True
            finally:
                probe.rmdir()
    return False


def _own(kind: str, controller: str) -> str:
    """Our path in the hierarchy, without its first slash."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") or (kind == "cgroup2" and not controllers):
            return path.lstrip("/")
    return ""


@cache
def _images() -> bool:
    status = Path("/proc/self/status").read_text()
    may_mount = int(status.partition("CapEff:\t")[2].split()[0], 16) >> _CAP_SYS_ADMIN & 1
    has_ext4 = "ext4" in Path("/proc/filesystems").read_text()
    if not (may_mount and has_ext4 and installed.found("mkfs.ext4")):
        return False
    try:
        with Path("/dev/loop-control").open("rb+", buffering=0) as control:
            device = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
        Path(f"/dev/loop{device}").open("rb+", buffering=0).close()
    except OSError:
        return False
    return True
