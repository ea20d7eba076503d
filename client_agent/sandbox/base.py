"""What a sandbox promises; a backend is one implementation of :class:`Sandbox`.

The life of one attempt::

    workspace = await sandbox.prepare(name, slot, limits)   # directory, cgroups, image
    ... the runner unpacks the bundle below workspace.fd ...
    process = await workspace.start(launch)                 # everything up to the closed gate
    ... the runner commits Running ...
    process.go()                                            # run.sh starts
    ended = await process.wait()                            # after certain death
    ... the runner collects from workspace.fd ...
    await workspace.destroy()

Death of the agent at any point must leave nothing running: before ``go`` the gate sees its pipe
close, after it the processes die with their parent, and :meth:`Sandbox.clear` at the next start
makes sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from client_agent.sandbox.grants import Grant
from shared.wire import Limits, Reason, Usage

HARD: Final = "hard"
SOFT: Final = "soft"
NONE: Final = "none"


class SandboxBroken(Exception):
    """The sandbox cannot be used on this host. The text says why and how to fix it."""


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """What the self-test found; goes into ``/health`` and receipts."""

    backend: str
    """"bubblewrap" or "none"."""
    version: str
    enforcement: Mapping[str, str]
    """limit -> "hard", "soft" or "none"."""
    checks: Mapping[str, bool] = field(default_factory=dict)
    """Assertions of the canary, e.g. "no_new_privs"."""
    advice: Sequence[str] = ()
    """How to make soft limits hard on this host."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run, and how long."""

    argv: Sequence[str]
    """Program and arguments as seen inside; never a shell string made of user data."""
    env: Mapping[str, str]
    """Our own variables."""
    timeout_s: float
    """Wall time until SIGTERM."""
    grace_s: float
    """Between SIGTERM and SIGKILL."""
    stdout: Path
    stderr: Path
    """Where the logs are stored, outside the workspace; at most ``limits.log`` bytes each, then a
    marker."""
    grant: Grant = field(default_factory=Grant)

    @property
    def variables(self) -> Mapping[str, str]:
        """Those of the grant, and ours, which win."""
        return {**self.grant.env, **self.env}


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, told only after every process of it is dead for certain."""

    exit_code: int | None
    """As run.sh gave it; None if it gave none (killed, sandbox broken)."""
    reason: Reason | None
    """None: exit code 0. EXIT_CODE: another exit code. Otherwise the first cause."""
    message: str
    """A sentence for people; empty where reason is None."""
    usage: Usage
    warnings: Sequence[str] = ()
    """Later causes, events such as pids_limit or log_truncated."""
    certain: bool = True
    """False: death could not be confirmed in time; nothing may be collected, the directory is
    quarantined."""


class Process(Protocol):
    """One started, gated attempt."""

    pid: int
    """Of the sandbox's init on the host."""

    def go(self) -> None:
        """Open the gate: run.sh starts. The timeout counts from here."""
        ...

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        """Ask for the end, for this cause (reason None: cancelled); the first cause wins. Returns
        at once.

        With ``grace``: SIGTERM and SIGCONT to the processes inside, the grace time, then SIGKILL.
        Without: SIGKILL. Works before ``go`` too: then run.sh never starts.
        """
        ...

    async def wait(self) -> Ended:
        """Return how it ended, once nothing of it is alive and its pipes are drained. May be
        called repeatedly."""
        ...


class Workspace(Protocol):
    """The directory of one attempt, with the limits that hold for it."""

    path: Path
    """For messages, and ``loc`` of the payload; work goes through ``fd``."""
    fd: int
    """Directory descriptor, opened before anything runs; the bundle is unpacked here and results
    are read from here."""
    uid: int | None
    """Owner that files unpacked here must be given; None: the agent's own."""
    gid: int | None
    enforcement: Mapping[str, str]

    async def start(self, launch: Launch) -> Process:
        """Start everything up to the closed gate.

        Raises:
            SandboxBroken: the sandbox did not come up; nothing is left running.
        """
        ...

    async def destroy(self) -> None:
        """Remove the directory and everything made for it. Survives any tree a job can make."""
        ...


class Sandbox(Protocol):
    """A backend."""

    async def self_test(self) -> SelfTestReport:
        """Run a canary through the whole chain.

        Raises:
            SandboxBroken: with the fix in its text.
        """
        ...

    async def clear(self) -> None:
        """At start: kill and remove whatever an earlier run of this agent left (processes,
        cgroups, mounts, directories)."""
        ...

    async def close(self) -> None:
        """At the end: give back what is held between attempts (mounts, images, cgroups).

        Nothing may be running, every workspace is destroyed. What is not given back, because the
        agent was killed, the next start's :meth:`clear` finds.
        """
        ...

    async def prepare(self, name: str, slot: int, limits: Limits) -> Workspace:
        """Make the directory of one attempt.

        Args:
            name: ``[a-z0-9-]+``, unique within the agent at a time.
            slot: 0 ≤ slot < slots; never in use twice at once. A root agent derives the job's uid
                from it.

        Raises:
            SandboxBroken, OSError: e.g. no space.
        """
        ...
