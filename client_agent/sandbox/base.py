"""The interface of a sandbox. A backend is one implementation of :class:`Sandbox`.

The steps of one attempt::

    workspace = await sandbox.prepare(name, slot, limits)   # directory, cgroups, image
    ... the runner unpacks the bundle below workspace.fd ...
    process = await workspace.start(launch)                 # everything up to the closed gate
    ... the runner has committed Running, which it may begin at launch.on_init ...
    process.go()                                            # run.sh starts
    ended = await process.wait()                            # all of its processes are dead
    ... the runner collects from workspace.fd ...
    await workspace.destroy()

If the agent dies, nothing may keep running. Before ``go``, the gate ends when its pipe is closed.
After ``go``, the processes die with their parent. :meth:`Sandbox.clear` kills at the next start
whatever is left nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from shared.wire import Limits, Reason, Usage


@dataclass(frozen=True, slots=True)
class Grant:
    """What an operator gives the jobs of one service."""

    read_only: tuple[tuple[Path, str], ...] = ()
    """(host path, path inside) of folders such as software and data sets. They are mounted before
    /job, and never below it."""
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    """Jobs whose limits request it get the host's network."""
    allow: frozenset[str] = frozenset()
    """Relaxations of the system call filter, see
    :data:`client_agent.sandbox.bubblewrap.seccomp.RELAXATIONS`."""
    scratch: int | None = None
    """Bytes of /tmp, and of /dev/shm, inside; None: the sandbox's setting."""

    def doc(self) -> dict[str, Any]:
        """For ``/health`` and receipts. Only names of variables: their values may be secret."""
        return {
            "read_only": [target for _, target in self.read_only],
            "env": sorted(self.env),
            "network": self.network,
            "allow": sorted(self.allow),
        }


class Grants:
    """The grants of one agent.

    Args:
        common: the grant of services without one of their own.
    """

    def __init__(self, common: Grant, services: Mapping[str, Grant]) -> None:
        self._common, self._services = common, services

    def for_service(self, service: str) -> Grant:
        return self._services.get(service, self._common)

    @property
    def sources(self) -> list[Path]:
        """The host paths of all grants."""
        grants = (self._common, *self._services.values())
        return sorted({path for grant in grants for path, _ in grant.read_only})

    def doc(self) -> dict[str, Any]:
        """Service (``*``: all others) -> its grant as JSON, for ``/health``."""
        return {name: grant.doc() for name, grant in self.granted.items()}

    @property
    def granted(self) -> dict[str, Grant]:
        """Service (``*``: all others) -> its grant, unless that is empty."""
        grants = {"*": self._common, **self._services}
        return {name: grant for name, grant in sorted(grants.items()) if any(grant.doc().values())}

    @property
    def networked(self) -> list[str]:
        """Services whose jobs may use the host's network."""
        return [name for name, grant in self.granted.items() if grant.network]


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


HARD: Final = "hard"
SOFT: Final = "soft"
NONE: Final = "none"


class SandboxBroken(Exception):
    """The sandbox cannot be used on this host. The text says why and how to fix it."""


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """The result of the self-test, for ``/health`` and receipts."""

    backend: str
    """"bubblewrap" or "none"."""
    version: str
    enforcement: Mapping[str, str]
    """limit -> "hard", "soft" or "none"."""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """What the self-test checked, such as "no_new_privs" -> whether it holds."""
    advice: Sequence[str] = ()
    """How to make soft limits hard on this host."""


class OutputListener(Protocol):
    """Learns what a job prints, while it does. Called on the event loop: it must be quick."""

    def on_output(self, stream: str, data: bytes) -> int:
        """Bytes were read from "stdout" or "stderr". None: reading goes on after a pause. Returns
        how many lines had to be looked at one by one: after many, reading pauses for a while."""

    def on_stored(self, stream: str) -> None:
        """What was read is in the log's file now, as far as it is stored."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run, and how long."""

    argv: Sequence[str]
    """Bash and its arguments as seen inside. Never a shell command that contains user data."""
    env: Mapping[str, str]
    """Variables that the agent sets."""
    timeout_s: float
    """Wall time until SIGTERM; 0: no limit."""
    grace_s: float
    """Between SIGTERM and SIGKILL."""
    stdout: Path
    stderr: Path
    """Files for the logs, outside the workspace; at most ``limits.log`` bytes each, and a marker
    line."""
    grant: Grant = field(default_factory=Grant)
    listener: OutputListener | None = None
    on_init: Callable[[int], None] | None = None
    """Called with the pid of the init, if the start makes one, some milliseconds before the gate is
    ready."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the grant and of ``env``, which has priority."""
        return {**self.grant.env, **self.env}


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is known of a launch before its files are there: enough to start everything up to the
    gate."""

    argv: Sequence[str]
    timeout_s: float
    grant: Grant = field(default_factory=Grant)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. It is reported only after all of its processes are dead."""

    exit_code: int | None
    """Of run.sh; None if there is none (it was killed, or the sandbox broke)."""
    reason: Reason | None
    """None: exit code 0. EXIT_CODE: another exit code. Otherwise the first cause."""
    message: str
    """A sentence for people; empty if the reason is None."""
    usage: Usage
    warnings: Sequence[str] = ()
    """Later causes, and events such as pids_limit or log_truncated."""
    certain: bool = True
    """False: it is not known in time whether all processes are dead. Then nothing may be collected,
    and the directory is quarantined."""


class Process(Protocol):
    """A started attempt, which waits behind its gate until :meth:`go`."""

    pid: int
    """Pid of the sandbox's init, as the host sees it."""

    @property
    def output_paused(self) -> bool:
        """What it prints is not read now: the agent is behind, not the job."""

    def go(self) -> None:
        """Open the gate: run.sh starts. The timeout counts from here."""

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        """Start ending it, for this reason (None: cancelled). The first reason counts. Returns at
        once.

        With ``grace``, the processes inside get SIGTERM and SIGCONT, and after the grace time
        SIGKILL. Without it they get SIGKILL. Before ``go`` it works, too: run.sh never starts.
        """

    async def wait(self) -> Ended:
        """Return how it ended, once all of its processes are dead and its pipes are read to the
        end. May be called repeatedly."""


class Workspace(Protocol):
    """The directory of one attempt, and its limits."""

    path: Path
    """For messages, and ``loc`` of the payload. Files are opened through ``fd``."""
    fd: int
    """Descriptor of the directory, opened before anything runs. The bundle is unpacked and results
    are read through it."""
    uid: int | None
    """Owner of the files that are unpacked here; None: the agent's own uid."""
    gid: int | None
    enforcement: Mapping[str, str]

    @property
    def seen_as(self) -> str:
        """Path of the directory as the job sees it."""

    async def start(self, launch: Launch) -> Process:
        """Start everything up to the closed gate. Raises SandboxBroken if the sandbox did not
        start; then nothing is left running."""

    async def destroy(self) -> None:
        """Remove the directory and everything made for it, whatever tree the job made."""


class Pack(Protocol):
    """One start of the sandbox, in which attempts run one after the other, each as if alone. They
    must be the same user's, of one array, with the same limits, variables and grant."""

    @property
    def usable(self) -> bool:
        """Whether another attempt can run in it."""

    def workspace(self) -> Workspace:
        """For the next attempt, once that of the one before is destroyed."""

    async def close(self) -> None:
        """Remove everything made for it. Repeats are harmless."""


class Sandbox(Protocol):
    """A backend."""

    async def self_test(self) -> SelfTestReport:
        """Run a test program in the sandbox. Raises SandboxBroken if it failed; the text says
        how to repair it."""

    async def clear(self) -> None:
        """At start: kill and remove what an earlier run of this agent left (processes, cgroups,
        mounts, directories)."""

    async def close(self) -> None:
        """At the end: release what is kept between attempts (mounts, images, cgroups).

        Nothing may be running, and every workspace must be destroyed. If the agent is killed
        before, :meth:`clear` does this at the next start.
        """

    async def prepare(
        self, name: str, slot: int, limits: Limits, ahead: Ahead | None = None
    ) -> Workspace:
        """Make the directory of one attempt. Raises SandboxBroken, or OSError if, for example,
        no space is left.

        Args:
            name: ``[a-z0-9-]+``; no other attempt of the agent has it at the same time.
            slot: 0 ≤ slot < slots; no other attempt has it at the same time. A root agent derives
                the job's uid from it.
            ahead: what is known of the launch. The sandbox may start already, or have started
                before; then the directory has another name.
        """

    async def pack(self, name: str, slot: int, limits: Limits) -> Pack | None:
        """Make what several attempts share, see :meth:`prepare`; None: this backend has no packs.
        Raises SandboxBroken or OSError."""
