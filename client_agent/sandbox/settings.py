"""The operator's settings of a sandbox, already validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Settings of a backend. Sizes in bytes, times in seconds."""

    uid_base: int = 70_000
    """A root agent runs the job of slot ``n`` as this uid + n. No account is needed. The default
    lies between systemd's last uid 65535 and Debian's first subordinate uid 100000."""
    own_uids: range = range(0)
    """All that jobs of this root agent may have, and those of no other agent of this host."""
    scratch: int = 256 * MIB
    """Size of /tmp, and of /dev/shm, inside. Both are memory, and count against the job's limit."""
    require_hard_limits: bool = False
    """Refuse to start if a limit can only be enforced softly."""
    log_hard_factor: int = 16
    """A job that writes more than this many times ``limits.log`` to stdout or stderr is ended with
    ``log_limit``."""
    start_timeout_s: float = 30.0
    """For the whole start up to the closed gate; a busy host is slow."""
    death_timeout_s: float = 10.0
    """After SIGKILL. Then the agent gives the attempt up and quarantines its directory."""
    disk_images: bool = True
    """Give each job of a root agent a disk of its own, a loop-mounted file. That makes its disk
    limit hard. Without it, writing is a little faster and the limit is soft."""
    inode_every: int = 16_384
    """A job may make one file for each so many bytes of its disk limit."""
    free_floor: int = 256 * MIB
    """Bytes that must stay free on the agent's disk. With less, no job starts, and running jobs are
    ended."""
    prepared_starts: int = 0
    """Starts that may wait at their gates for jobs that have not come yet."""
    prepared_uids: range = range(0)
    """Of these, a root agent gives one to each prepared start."""
    spare_images: int = 4
    """Idle images kept for later attempts. Each uses a loop device and some cache."""
    nofile: int = 1024
    """Limit of open files of one process."""
    poll_s: float = 0.5
    """Between two samples of what a job uses."""
