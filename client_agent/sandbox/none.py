"""No sandbox: only if the operator chooses it, because everybody who uploads is trusted.

A job can read and write what its uid can, and reach the network. The rest is the same: the gate,
the limits that the host enforces, timeouts, and that all processes are dead before results are
collected. All of them are found if there is a cgroup or a uid per slot (a root agent). Otherwise a
process is found if it descends from the job, has its session or its environment, or became a child
of the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import NONE, SOFT, Launch, Process, SandboxBroken, SelfTestReport
from client_agent.sandbox.host_sandbox import HostSandbox, find_program
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.cgroups import kill_group
from client_agent.sandbox.limits.meter import Gauge
from client_agent.sandbox.process.chain import JOIN, PATH, TEMPORARY, gated
from client_agent.sandbox.settings import SandboxSettings
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import Clock
from shared.wire import Limits

ATTEMPT_VARIABLE: Final = "FERRYMAN_ATTEMPT_OF"
"""Variable that identifies processes of an attempt that left its session."""
_KILL_INTERVAL_S: Final = 0.01


class NoSandbox(HostSandbox):
    """Implements :class:`client_agent.sandbox.base.Sandbox` without isolation."""

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        super().__init__(clock, home, settings)
        self.leaders: set[int] = set()
        """Pids of the running attempts, which are children of the agent from the start."""

    async def self_test(self) -> SelfTestReport:
        await self.check_required_limits()
        find_program("setpriv", "util-linux")
        await self.clear()
        advice = ("bundles run without isolation: use the bubblewrap backend", *self.host.advice)
        return SelfTestReport("none", "", self.enforcement, {}, advice)

    @property
    def enforcement(self) -> Mapping[str, str]:
        """limit -> "hard", "soft" or "none"."""
        enforcement = {**self.host.enforcement, "network": NONE, "isolation": NONE}
        if not self.separate_uids and enforcement["pids"] == SOFT:
            enforcement["pids"] = NONE  # RLIMIT_NPROC would count all processes of this user
        return enforcement

    async def clear(self) -> None:
        """As in any backend; before that, kill the processes with the variable of this agent."""
        if not self.cleared:
            prefix = f"{ATTEMPT_VARIABLE}={self.work_folders.name}/".encode()
            for pid in _with_variable(lambda variable: variable.startswith(prefix)):
                _kill(pid)
        await super().clear()

    async def pack(self, name: str, slot: int, limits: Limits) -> None:
        del name, slot, limits  # nothing would be saved

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
        sandbox = self._sandbox
        if any(str(source) != target for source, target in launch.grant.read_only):
            raise SandboxBroken("read_only binds to other places need a sandbox")
        marker = f"{ATTEMPT_VARIABLE}={sandbox.work_folders.name}/{self.name}"
        start = self.new_start(without_bwrap=True)
        try:
            start.spawn(self._command(launch, marker), (), cwd=self.path)
        except BaseException:
            start.close()
            raise
        start.tell_init(launch.on_init)
        await start.wait_until_ready()
        spawned = await self.hand_over(start, launch)
        sandbox.leaders.add(spawned.init)
        self._processes = ProcessSet(spawned.init, marker.encode(), self, sandbox)
        return self.supervise(spawned, launch, self._processes)

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
        rlimits = self.rlimits(launch.timeout_s)
        if self.uid is None:
            del rlimits["nproc"]
        variables = [marker, *(f"{name}={value}" for name, value in env.items())]
        program = [find_program("env", "coreutils"), "-i", *variables, *launch.argv]
        return [*command, "--", *gated(program, rlimits)]


class ProcessSet(Gauge):
    """The processes of an attempt that has no pid namespace. A gauge whose final reading kills
    them."""

    def __init__(
        self, leader: int, marker: bytes, workspace: HostWorkspace, sandbox: NoSandbox
    ) -> None:
        self._leader, self._marker = leader, marker
        self._workspace, self._sandbox = workspace, sandbox
        fields = pidfd.stat_fields(leader)
        self._started = 0 if fields is None else int(fields[19])
        self._session = os.getsid(0)

    async def read_final(self) -> bool:
        clock = self._sandbox.clock
        deadline = clock.monotonic() + self._sandbox.settings.death_timeout_s
        while clock.monotonic() <= deadline:
            with contextlib.suppress(OSError):  # for example, no descriptor is left
                if not self.kill_all():
                    return True
            await clock.sleep(_KILL_INTERVAL_S)
        return False

    def kill_all(self) -> bool:
        """Kill all processes; whether there were any."""
        groups = [] if self._workspace.group is None else self._workspace.group.folders
        killed = [kill_group(folder) for folder in groups]
        killed += [_kill(pid) for pid in self._members() - self._sandbox.leaders]
        return any(killed)

    def _members(self) -> set[int]:
        uid = self._workspace.uid
        if uid is not None:
            return _pids(lambda pid: (pidfd.status_field(pid, "Uid:") or [""])[0] == str(uid))
        members = _with_variable(self._marker.__eq__) | _pids(self._left_by_job)
        return members.union(*map(pidfd.descendants, members))

    def _left_by_job(self, pid: int) -> bool:
        """Whether a process has the job's session, or was adopted: its parent died, and the agent
        is the subreaper. Other children of the agent have the agent's session."""
        fields = pidfd.stat_fields(pid)
        if fields is None:
            return False
        parent, session, birth = int(fields[1]), int(fields[3]), int(fields[19])
        adopted = parent == os.getpid() and session != self._session and birth >= self._started
        return session == self._leader or adopted


def _pids(matches: Callable[[int], bool]) -> set[int]:
    """The processes of this host that match, without those that may not be read or are gone."""
    pids: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # numbers
        with contextlib.suppress(PermissionError, FileNotFoundError, ProcessLookupError):
            if matches(int(name)):
                pids.add(int(name))
    return pids


def _with_variable(matches: Callable[[bytes], bool]) -> set[int]:
    """Processes with a variable (``NAME=value``) that matches."""

    def has_variable(pid: int) -> bool:
        return any(map(matches, Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")))

    return _pids(has_variable)


def _kill(pid: int) -> bool:
    """Kill a process; whether it was alive. A dead one is reaped if it is a child of the agent."""
    fields = pidfd.stat_fields(pid)
    if fields is None or pid == os.getpid():
        return False
    if fields[0] == "Z":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    return True
