"""No sandbox: only if the operator chooses it, because everybody who uploads is trusted.

A job can read and write what its uid can, and reach the network. The rest is the same: the gate,
the limits that the host enforces, timeouts, and that all processes are dead before results are
collected. They are found by the cgroup of the attempt, or by the uid of its slot (a root agent).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container, Mapping, Sequence
from typing import Final

from client_agent.sandbox.base import NONE, SOFT, Launch, Process, SandboxBroken, SelfTestReport
from client_agent.sandbox.host_sandbox import HostSandbox, find_program
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.cgroups import kill_group
from client_agent.sandbox.limits.meter import Gauge
from client_agent.sandbox.process.chain import JOIN, PATH, TEMPORARY
from client_agent.sandbox.workspace import HostWorkspace
from shared.wire import Limits

_KILL_INTERVAL_S: Final = 0.01


class NoSandbox(HostSandbox):
    """Implements :class:`client_agent.sandbox.base.Sandbox` without isolation."""

    async def self_test(self) -> SelfTestReport:
        await self.check_required_limits()
        find_program("setpriv", "util-linux")
        if not self.separate_uids and self.host.hierarchy is None:
            raise SandboxBroken(
                "without a sandbox the processes of a job are found by its cgroup or its uid, and "
                "this agent has neither: start it as root, or give it cgroups (Delegate=yes in its "
                "systemd unit)"
            )
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
        """As in any backend; before that, kill the processes with the uids of this agent's jobs."""
        if not self.cleared:
            for pid in _with_uid(self.settings.own_uids):
                _kill(pid)
        await super().clear()

    async def pack(self, name: str, slot: int, limits: Limits) -> None:
        del name, slot, limits  # nothing would be saved

    def workspace(self, name: str, uid: int | None, limits: Limits) -> HostWorkspace:
        return UnsandboxedWorkspace(self, name, uid, limits)


class UnsandboxedWorkspace(HostWorkspace):
    """Starts ``sh JOIN → setpriv → env -i → bash, with its gate``."""

    def __init__(self, sandbox: NoSandbox, name: str, uid: int | None, limits: Limits) -> None:
        super().__init__(sandbox, name, uid, limits)
        self.enforcement = sandbox.enforcement
        self._sandbox = sandbox
        self._processes: ProcessSet | None = None

    async def start(self, launch: Launch) -> Process:
        if any(str(source) != target for source, target in launch.grant.read_only):
            raise SandboxBroken("read_only binds to other places need a sandbox")
        rlimits = self.rlimits(launch.timeout_s)
        if self.uid is None:
            del rlimits["nproc"]
        start = self.new_start(rlimits, without_bwrap=True)
        try:
            start.spawn(self._command(launch.argv, start.env), (), cwd=self.path)
        except BaseException:
            start.close()
            raise
        start.tell_init(launch.on_init)
        await start.wait_until_ready()
        spawned = await self.hand_over(start, launch)
        self._processes = ProcessSet(spawned.init, self, self._sandbox)
        return self.supervise(spawned, launch, self._processes)

    def is_dead(self) -> bool:
        return super().is_dead() and (self._processes is None or not self._processes.kill_all())

    def _command(self, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        join = [] if self.group is None else self.group.join_files
        command = ["/bin/sh", "-c", JOIN, "join", *join, "--"]
        command += [find_program("setpriv", "util-linux"), "--pdeathsig=KILL"]
        if self.uid is not None:
            command += [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        own = {"PATH": PATH, "HOME": self.path, "LANG": "C.UTF-8", "TMPDIR": TEMPORARY[0], **env}
        variables = [f"{name}={value}" for name, value in own.items()]
        return [*command, "--", find_program("env", "coreutils"), "-i", *variables, *argv]


class ProcessSet(Gauge):
    """The processes of an attempt that has no pid namespace. A gauge whose final reading kills
    them."""

    def __init__(self, leader: int, workspace: HostWorkspace, sandbox: NoSandbox) -> None:
        self._leader, self._workspace, self._sandbox = leader, workspace, sandbox

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
        group, uid = self._workspace.group, self._workspace.uid
        killed = [kill_group(folder) for folder in (group.folders if group else ())]
        others = set() if uid is None else _with_uid((uid,)) - {self._leader}
        return any([*killed, *map(_kill, others)])


def _with_uid(uids: Container[int]) -> set[int]:
    """The processes of this host with these uids."""
    pids = set[int]()
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # numbers
        fields = pidfd.status_field(int(name), "Uid:")
        if fields and int(fields[0]) in uids:
            pids.add(int(name))
    return pids


def _kill(pid: int) -> bool:
    """Kill a process; whether it was alive. A dead one is reaped if it is a child of the agent."""
    fields = pidfd.stat_fields(pid)
    if fields is None:
        return False
    if fields[0] == "Z":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True
