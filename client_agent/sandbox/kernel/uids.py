"""The uids of a root agent's jobs, which no account and no other agent of this host has."""

from __future__ import annotations

import fcntl
import os
import pwd
import struct
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import SandboxBroken

LOCK_FILE: Final = Path("/run/ferryman-uids.lock")
"""An agent holds a lock on byte n while its jobs may run as uid n. The kernel releases the lock
when the agent ends."""


class UidBlock:
    """A block of uids, held until it is closed or the process ends.

    If jobs of two agents had the same uid, they would count against the same process limit. Without
    a sandbox they could also signal each other's processes and read each other's keyrings.

    Args:
        first, count: the range to choose from.
        block_size: how many consecutive uids.
        uid_map: of this process's user namespace. In a container not every uid exists.

    Raises:
        SandboxBroken: no such block is free.

    Attributes:
        first: the lowest of the block.
    """

    def __init__(
        self,
        first: int,
        count: int,
        block_size: int,
        lock_file: Path = LOCK_FILE,
        uid_map: Path = Path("/proc/self/uid_map"),
    ) -> None:
        try:
            self._fd = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxBroken(
                f"an agent that is root notes the uids of its jobs in {lock_file}, which cannot be "
                f"written: {error.strerror}"
            ) from error
        lines = map(str.split, uid_map.read_text().splitlines())
        mapped = [range(int(inside), int(inside) + int(size)) for inside, _, size in lines]
        for start in range(first, first + count - block_size + 1, block_size):
            last = start + block_size - 1
            # accounts come last, because that may query a directory service
            if any(start in uids and last in uids for uids in mapped) and self._lock(
                start, block_size
            ):
                if not any(map(_is_account, range(start, last + 1))):
                    self.first = start
                    return
                self._lock(start, block_size, fcntl.F_UNLCK)
        os.close(self._fd)
        raise SandboxBroken(
            f"the jobs of this agent need {block_size} uids of their own, and from {first} to "
            f"{first + count - 1} there are none that this host or container has, and that no "
            "account and no other agent uses: set agent.sandboxing.uid_base and uid_count to a "
            "range that nobody uses"
        )

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self, start: int, count: int, kind: int = fcntl.F_WRLCK) -> bool:
        # The lock belongs to the open file description, not to the process. Otherwise closing
        # another descriptor of the file would release it.
        wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, wanted)
        except BlockingIOError:
            return False
        return True


def _is_account(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False
