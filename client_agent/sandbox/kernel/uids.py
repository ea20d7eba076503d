"""The uids of a root agent's jobs: no account has them, and no other agent of this host."""

from __future__ import annotations

import fcntl
import os
import pwd
import struct
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import SandboxBroken

REGISTER: Final = Path("/run/ferryman-uids.lock")
"""Byte n of it is locked by the agent whose jobs run as uid n; the lock dies with the agent."""


class UidBlock:
    """A block of uids, held until closed or the process ends, however it ends.

    Two agents whose jobs share a uid would share its keyrings and its processes' signals wherever
    the sandbox is off, and count against each other's limits of processes.

    Args:
        first, count: the range to choose from.
        need: how many, side by side.
        uid_map: of this process's user namespace: in a container not every uid exists.

    Raises:
        SandboxBroken: no such block is free; the text names what takes them.

    Attributes:
        first: the lowest of the block.
    """

    def __init__(
        self,
        first: int,
        count: int,
        need: int,
        register: Path = REGISTER,
        uid_map: Path = Path("/proc/self/uid_map"),
    ) -> None:
        try:
            self._fd = os.open(register, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise SandboxBroken(
                f"an agent that is root notes the uids of its jobs in {register}, which cannot be "
                f"written: {problem.strerror}"
            ) from problem
        mapped = _mapped(uid_map)
        taken = ""
        for start in range(first, first + count - need + 1, need):
            block = range(start, start + need)
            if not any(block[0] in uids and block[-1] in uids for uids in mapped):
                known = ", ".join(f"{uids[0]} to {uids[-1]}" for uids in mapped)
                taken = f"this container has only the uids {known}"
            elif not self._lock(start, need):
                taken = "other agents of this host have them"
            elif (account := _account(block)) is not None:  # may ask a directory service: last
                self._lock(start, need, fcntl.F_UNLCK)
                taken = f"uid {account.pw_uid} is the account {account.pw_name}"
            else:
                self.first = start
                return
        os.close(self._fd)
        raise SandboxBroken(
            f"the jobs of this agent need {need} uids of their own, and none are free from {first} "
            f"to {first + count - 1}"
            + (f" ({taken})" if taken else "")
            + ": set agent.sandboxing.uid_base and uid_count to a range that nobody uses"
        )

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self, start: int, count: int, kind: int = fcntl.F_WRLCK) -> bool:
        # of the open file description, not of the process: closing another descriptor of the
        # register must not give the block away
        wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, wanted)
        except BlockingIOError:
            return False
        return True


def _mapped(uid_map: Path) -> list[range]:
    lines = [line.split() for line in uid_map.read_text().splitlines()]
    return [range(int(inside), int(inside) + int(size)) for inside, _, size in lines]


def _account(uids: range) -> pwd.struct_passwd | None:
    for uid in uids:
        try:
            return pwd.getpwuid(uid)
        except KeyError:
            continue
    return None
