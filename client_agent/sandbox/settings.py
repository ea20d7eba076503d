"""What an operator decides about the sandbox of an agent, checked before it gets here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Settings of a backend. Sizes in bytes, times in seconds."""

    uid_base: int = 70_000
    """A root agent runs the job of slot ``n`` as this uid + n. The default lies in the gap
    between systemd's 65535 and Debian's first subordinate uid 100000; a numeric uid needs no
    account."""
    scratch: int = 256 * MIB
    """Size of /tmp inside. It is memory, and counts against the job's."""
    shm: int = 64 * MIB
    """Size of /dev/shm inside. It is memory, too."""
    require_hard_limits: bool = False
    """Refuse to work where a limit can only be enforced softly."""
    log_hard_factor: int = 16
    """A job whose stdout or stderr outgrows this many times ``limits.log`` is ended:
    ``log_limit``."""
    start_timeout_s: float = 30.0
    """For the whole chain up to the closed gate; a busy host is slow."""
    death_timeout_s: float = 10.0
    """After SIGKILL; then the attempt is given up and its directory quarantined."""
    disk_images: bool = True
    """Give each job of a root agent a disk of its own, a loop-mounted file, which makes its disk
    limit hard. Without, writing is a little faster and the limit soft."""
    inode_every: int = 16_384
    """A job may make one file for so many bytes of its disk limit."""
    free_floor: int = 256 * MIB
    """Bytes that jobs leave free on the agent's disk; below that nothing starts."""
    nofile: int = 1024
    """Open files of one process."""
    poll_s: float = 0.5
    """Between two looks at what a job uses, where the kernel does not tell by itself."""
