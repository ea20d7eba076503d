"""No sandbox: only for an operator who says so, where whoever uploads is trusted like a
colleague.

A job can read and write what its uid can, and reach the network. What is left of the protocol
holds: gate, limits as far as the host enforces them, timeouts, and death before collecting. That
death is certain where there is a cgroup or a uid per slot (a root agent); else it covers every
process that descends from the job, kept its session or its environment, or was adopted by the
agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import NONE, SOFT, Launch, Process, SandboxBroken, SelfTestReport
from client_agent.sandbox.host_sandbox import HostSandbox, find_program
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.cgroups import kill_group
from client_agent.sandbox.limits.meter import EndCause
from client_agent.sandbox.process.chain import JOIN, PATH, TEMPORARY, gated
from client_agent.sandbox.process.start import Start
from client_agent.sandbox.process.supervisor import SupervisedProcess
from client_agent.sandbox.settings import SandboxSettings
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import Clock
from shared.wire import Limits

ATTEMPT_VARIABLE: Final = "FERRYMAN_ATTEMPT_OF"
"""Variable by which processes are found that left their session."""
_KILL_INTERVAL_S: Final = 0.01


class NoSandbox(HostSandbox):
    """Implements :class:`client_agent.sandbox.base.Sandbox` without isolation."""

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        super().__init__(clock, home, settings)
        self.leaders: set[int] = set()
        """Pids of the attempts under way: children of ours that are not adopted."""

    async def self_test(self) -> SelfTestReport:
        await self.check_required_limits()
        find_program("setpriv", "util-linux")
        await self.clear()
        advice = ("bundles run without isolation: use the bubblewrap backend", *self.host.advice)
        return SelfTestReport("none", "", self.enforcement, {}, advice)

    @property
    def enforcement(self) -> Mapping[str, str]:
        """limit -> "hard", "soft" or "none"."""
        found = {**self.host.enforcement, "network": NONE, "isolation": NONE}
        if not self.separate_uids and found["pids"] == SOFT:
            found["pids"] = NONE  # RLIMIT_NPROC would count everything of this user
        return found

    async def clear(self) -> None:
        """As any backend, and processes that carry our marker."""
        if not self.cleared:
            start = f"{ATTEMPT_VARIABLE}={self.work_folders.name}/".encode()
            for pid in _with_variable(lambda variable: variable.startswith(start)):
                _kill(pid)
        await super().clear()

    def workspace(self, name: str, uid: int | None, limits: Limits) -> HostWorkspace:
        return UnsandboxedWorkspace(self, name, uid, limits)


class UnsandboxedWorkspace(HostWorkspace):
    """Starts ``sh JOIN → setpriv → sh GATE → env -i → program``."""

    def __init__(self, sandbox: NoSandbox, name: str, uid: int | None, limits: Limits) -> None:
        super().__init__(sandbox, name, uid, limits)
        self.enforcement = sandbox.enforcement
        self._sandbox = sandbox
        self._processes: ProcessSet | None = None

    async def start(self, launch: Launch) -> Process:
        sandbox, settings = self._sandbox, self._sandbox.settings
        if any(str(source) != place for source, place in launch.grant.read_only):
            raise SandboxBroken("read_only binds to other places need a sandbox")
        marker = f"{ATTEMPT_VARIABLE}={sandbox.work_folders.name}/{self.name}"
        pidfd.become_subreaper()
        start = Start(launch, self.logs(), self.record_init, without_bwrap=True)
        try:
            start.spawn(self._command(launch, marker), (), cwd=self.path)
        except BaseException:
            start.close()
            raise
        spawned = await start.wait_until_ready(
            sandbox.clock, settings.start_timeout_s, settings.death_timeout_s
        )
        sandbox.leaders.add(spawned.init)
        processes = self._processes = ProcessSet(
            spawned.init,
            sandbox.leaders,
            marker.encode(),
            self,
            sandbox.clock,
            settings.death_timeout_s,
        )
        self.process = SupervisedProcess(
            spawned, launch, self.meter(launch, processes), sandbox.clock, settings.death_timeout_s
        )
        return self.process

    def is_dead(self) -> bool:
        return super().is_dead() and (self._processes is None or not self._processes.kill_all())

    async def destroy(self) -> None:
        await super().destroy()
        if self.process is not None:
            self._sandbox.leaders.discard(self.process.pid)

    def _command(self, launch: Launch, marker: str) -> list[str]:
        join = [] if self.group is None else self.group.join_files
        command = ["/bin/sh", "-c", JOIN, "join", *join, "--"]
        command += [find_program("setpriv", "util-linux"), "--pdeathsig=KILL"]
        if self.uid is not None:
            command += [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        env = {
            "PATH": PATH,
            "HOME": str(self.path),
            "LANG": "C.UTF-8",
            "TMPDIR": TEMPORARY[0],
            **launch.variables,
        }
        rlimits = self.rlimits(launch)
        if self.uid is None:
            del rlimits["nproc"]
        variables = [marker, *(f"{name}={value}" for name, value in env.items())]
        program = [find_program("env", "coreutils"), "-i", *variables, *launch.argv]
        return [*command, "--", *gated(program, rlimits)]


class ProcessSet:
    """Everything that an attempt without a namespace has started. A gauge: its last look
    kills."""

    cpu_s = peak_memory = None

    def __init__(
        self,
        leader: int,
        leaders: set[int],
        marker: bytes,
        workspace: HostWorkspace,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._leader, self._marker, self._workspace = leader, marker, workspace
        self._leaders = leaders
        self._clock, self._timeout_s = clock, timeout_s
        fields = pidfd.stat_fields(leader)
        self._started = 0 if fields is None else int(fields[19])
        self._session = os.getsid(0)

    async def poll(self, attempt: Process) -> None:
        pass

    async def read_final(self) -> bool:
        deadline = self._clock.monotonic() + self._timeout_s
        while self._clock.monotonic() <= deadline:
            with contextlib.suppress(OSError):  # not known, perhaps for want of descriptors
                if not self.kill_all():
                    return True
            await self._clock.sleep(_KILL_INTERVAL_S)
        return False

    def end_cause(self) -> EndCause | None:
        return None

    def warnings(self) -> Sequence[str]:
        return ()

    def kill_all(self) -> bool:
        """Kill what is there; whether there was anything."""
        found = False
        if self._workspace.group is not None:
            for folder in self._workspace.group.folders:
                found = kill_group(folder) or found
        for pid in self._members() - self._leaders:
            found = _kill(pid) or found
        return found

    def _members(self) -> set[int]:
        uid = self._workspace.uid
        if uid is not None:
            return _with_uid(uid)
        found = _with_variable(self._marker.__eq__)
        started, own = self._started, os.getpid()
        for pid in _pids():
            fields = pidfd.stat_fields(pid)
            if fields is None:
                continue
            parent, session, birth = int(fields[1]), int(fields[3]), int(fields[19])
            # adopted: its parent died, and we are the subreaper; our own children keep our
            # session
            adopted = parent == own and session != self._session and birth >= started
            if session == self._leader or adopted:
                found.add(pid)
        for pid in list(found):
            found.update(pidfd.descendants(pid))
        return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _with_uid(uid: int) -> set[int]:
    found: set[int] = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(errors="replace")
            line = next(line for line in status.splitlines() if line.startswith("Uid:"))
            if line.split()[1] == str(uid):
                found.add(pid)
    return found


def _with_variable(wanted: Callable[[bytes], bool]) -> set[int]:
    """Processes with a variable (``NAME=value``) that is wanted."""
    found: set[int] = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(wanted(variable) for variable in variables):
                found.add(pid)
    return found


def _kill(pid: int) -> bool:
    """Whether there was something to kill: the dead that nobody has reaped yet do not count."""
    fields = pidfd.stat_fields(pid)
    if fields is None or pid == os.getpid():
        return False
    if fields[0] == "Z":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # adopted: ours to reap
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    return True
