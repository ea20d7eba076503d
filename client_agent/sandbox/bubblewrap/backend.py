"""The default backend: bubblewrap. A root agent runs it as the uid of the slot."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import SubprocessError

import structlog

from client_agent.sandbox.base import (
    HARD,
    Ahead,
    Grant,
    Launch,
    Process,
    SandboxBroken,
    SandboxSettings,
    SelfTestReport,
)
from client_agent.sandbox.bubblewrap import command, seccomp, selftest
from client_agent.sandbox.bubblewrap.prepared_starts import PreparedStarts
from client_agent.sandbox.bubblewrap.root_tree import JOB, RootTree, RootTrees
from client_agent.sandbox.host_sandbox import HostSandbox, find_program
from client_agent.sandbox.kernel.devices import DeviceFolders
from client_agent.sandbox.kernel.start_namespace import StartNamespace
from client_agent.sandbox.kernel.work_folders import MOUNT_ROOT
from client_agent.sandbox.pack.driver import driven
from client_agent.sandbox.pack.pack import DrivenWorkspace, Pack
from client_agent.sandbox.process.chain import TEMPORARY
from client_agent.sandbox.process.pipes import Constants, Pipes
from client_agent.sandbox.process.start import Start
from client_agent.sandbox.process.supervisor import SpawnedProcesses
from client_agent.sandbox.workspace import HostWorkspace
from shared.clock import Clock
from shared.files.durable import write_all
from shared.files.opened import closing_fd
from shared.wire import Limits

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Bubblewrap(HostSandbox):
    """Implements :class:`client_agent.sandbox.base.Sandbox`."""

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        super().__init__(clock, home, settings)
        self._tools: command.Tools | None = None
        self.constants = Constants()
        self._testing = asyncio.Lock()
        self._trees = RootTrees(self.work_folders, clock)
        self._making_tree = asyncio.Lock()
        self.devices = DeviceFolders(self.work_folders)
        self._namespace: StartNamespace | None = None
        self._namespace_made = False
        uids = self.settings.prepared_uids if self.separate_uids else ()
        self._ahead = PreparedStarts(self._prepared, clock, self.settings.prepared_starts, uids)

    async def self_test(self) -> SelfTestReport:
        await self.check_required_limits()
        async with self._testing:  # two self-tests would have the same name and uid
            return await selftest.run(self, self.tools.bwrap)

    def workspace(self, name: str, uid: int | None, limits: Limits) -> HostWorkspace:
        return BubblewrapWorkspace(self, name, uid, limits)

    async def prepare(
        self, name: str, slot: int, limits: Limits, ahead: Ahead | None = None
    ) -> HostWorkspace:
        kind = self._kind(ahead) if ahead is not None and self.settings.prepared_starts else None
        while kind is not None and (prepared := self._ahead.take(limits, kind)) is not None:
            with contextlib.suppress(SandboxBroken):  # it has died since it was begun
                return await prepared.at_gate()
        return await self._ahead.make_room(partial(self._unprepared, name, slot, limits, kind))

    async def _unprepared(
        self, name: str, slot: int, limits: Limits, kind: Ahead | None
    ) -> HostWorkspace:
        if kind is None:
            return await super().prepare(name, slot, limits)
        uid = self.settings.uid_base + slot if self.separate_uids else None
        return await (await self._begun(name, uid, limits, kind)).at_gate()

    async def _begun(
        self, name: str, uid: int | None, limits: Limits, ahead: Ahead
    ) -> BubblewrapWorkspace:
        """A workspace whose start has begun."""
        workspace = await self.make_workspace(name, uid, limits)
        assert isinstance(workspace, BubblewrapWorkspace), "this backend makes no others"
        try:
            await workspace.begin(ahead)
        except BaseException:
            await workspace.destroy()
            raise
        workspace.kind = ahead
        return workspace

    async def _prepared(
        self, name: str, uid: int | None, limits: Limits, ahead: Ahead
    ) -> BubblewrapWorkspace:
        workspace = await self._begun(name, uid, limits, ahead)
        workspace.on_removed = partial(self._ahead.release, uid)
        return workspace

    def prepare_next(self, limits: Limits, ahead: Ahead) -> None:
        """A job of this kind started. Folders of the operator may appear and disappear, so none
        are mounted ahead."""
        if not ahead.grant.read_only:
            self._ahead.refill(limits, ahead)

    def _kind(self, ahead: Ahead) -> Ahead:
        """A hard limit of CPU time is not the start's, so its time does not matter."""
        hard_cpu = self.host.enforcement["cpu"] == HARD
        return replace(ahead, timeout_s=0.0) if hard_cpu else ahead

    async def pack(self, name: str, slot: int, limits: Limits) -> Pack:
        workspace = await self.prepare(name, slot, limits)
        assert isinstance(workspace, BubblewrapWorkspace), "this backend makes no others"
        return Pack(self, workspace)

    async def close(self) -> None:
        await self._ahead.close()
        self.constants.close()
        self.devices.close()
        if self._threads is not None:
            await self.in_thread(self._trees.close)
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None
        self._namespace_made = False
        await super().close()

    def namespace(self) -> AbstractContextManager[None] | None:
        """In which to spawn a chain that needs no folders of the operator; None: the agent's."""
        if not self._namespace_made:
            self._namespace_made = True
            if self.work_folders.has_mounts:
                self._namespace = self._make_namespace()
        return None if self._namespace is None else self._namespace.entered()

    def _make_namespace(self) -> StartNamespace | None:
        hierarchy, tools = self.host.hierarchy, self.tools
        groups = [] if hierarchy is None else hierarchy.folders.values()
        programs = [(tools.sh, "-c", ":"), (tools.bwrap, "--version"), (tools.unshare, "--version")]
        try:
            return StartNamespace(MOUNT_ROOT, groups, programs)
        except (OSError, SubprocessError) as problem:
            log.warning("sandbox.all_mounts", error=str(problem))
            return None

    async def use_tree(self, *, network: bool) -> RootTree:
        """The root of a sandbox; its ``users`` are one more. Raises OSError."""
        async with self._making_tree:
            tree = self._trees.current(network=network)
            if tree is None:
                tree = await self.in_thread(self._trees.make, network=network)
            tree.users += 1
            return tree

    def is_current(self, tree: RootTree) -> bool:
        """Whether that tree is the one that a start would use now."""
        return self._trees.is_current(tree)

    @property
    def tools(self) -> command.Tools:
        """The programs of the chain. Raises SandboxBroken if one is not installed."""
        if self._tools is None:
            self._tools = command.Tools(
                sh="/bin/sh",
                bwrap=find_program("bwrap", "bubblewrap"),
                unshare=find_program("unshare", "util-linux"),
            )
        return self._tools


class BubblewrapWorkspace(DrivenWorkspace):
    """Starts the chain of :mod:`client_agent.sandbox.bubblewrap.command`."""

    scratch = (TEMPORARY[0], command.SHM)

    def __init__(self, sandbox: Bubblewrap, name: str, uid: int | None, limits: Limits) -> None:
        super().__init__(sandbox, name, uid, limits)
        self._sandbox = sandbox
        self._tree: RootTree | None = None
        self._devices: Path | None = None
        self._begun: tuple[Ahead, Start, asyncio.Task[None]] | None = None
        self.kind: Ahead | None = None
        """Of a start that could serve other attempts, too."""
        self.on_removed: Callable[[], None] | None = None

    @property
    def seen_as(self) -> str:
        return JOB

    async def destroy(self) -> None:
        await self._end_start()
        await super().destroy()

    async def remove(self) -> None:
        await super().remove()
        self._leave_tree()
        devices, self._devices = self._devices, None
        if devices is not None:
            self._sandbox.devices.give_back(devices)
        if self.on_removed is not None:
            self.on_removed()

    def _leave_tree(self) -> None:
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.users -= 1

    @property
    def usable(self) -> bool:
        """Whether a start that has begun is as good as one that begins now."""
        if self._begun is None or self._tree is None or not self._sandbox.is_current(self._tree):
            return False
        _, start, ready = self._begun
        return not ready.done() or start.waits

    async def begin(self, ahead: Ahead) -> None:
        """Spawn the chain. Raises SandboxBroken or OSError; then nothing is left of it."""
        rlimits = self.rlimits(ahead.timeout_s)
        start, _ = await self._spawn(ahead.grant, ahead.argv, {}, rlimits)
        self._begun = ahead, start, asyncio.create_task(start.wait_until_ready())

    async def at_gate(self) -> BubblewrapWorkspace:
        """This workspace, once its start waits at the gate: no file of the job may be there before.
        If that fails, it is destroyed. Raises SandboxBroken.
        """
        assert self._begun is not None, "its start has begun"
        try:
            await self._begun[2]
        except BaseException:
            await self.destroy()
            raise
        return self

    async def start_driver(self, launch: Launch) -> tuple[SpawnedProcesses, list[int]]:
        inside = driven(launch.argv, self.rlimits(launch.timeout_s))
        start, further = await self._spawn(
            launch.grant, inside, launch.variables, None, as_init=True
        )
        start.tell_init(launch.on_init)
        await start.wait_until_ready()
        spawned = await self.hand_over(start, launch)
        return spawned, [start.pipes.hand_over(fd) for fd in further]

    async def _spawn(
        self,
        grant: Grant,
        inside: Sequence[str],
        env: Mapping[str, str],
        rlimits: Mapping[str, int] | None,
        *,
        as_init: bool = False,
    ) -> tuple[Start, list[int]]:
        """Spawn the chain. Returns its start, and further descriptors of its pipes for the init.

        Args:
            rlimits: of a bash with a gate; None: the command inside is another.
            as_init: it is the init of its namespace of processes.
        """
        sandbox, settings = self._sandbox, self._sandbox.settings
        network = self.limits.network
        if self._tree is None or not sandbox.is_current(self._tree):
            tree = await sandbox.use_tree(network=network)
            self._leave_tree()
            self._tree = tree
        if self._devices is None:
            self._devices = sandbox.devices.take()
        start, opened = self.new_start(rlimits), contextlib.ExitStack()
        try:
            further = start.pipes.further() if as_init else []
            fds = self._descriptors(start.pipes, opened, grant.allow)
            args = command.bwrap_options(
                fds,
                {**env, **start.env},
                root=self._tree,
                scratch=min(grant.scratch or settings.scratch, self.limits.memory),
                read_only=grant.read_only,
                network=network,
                as_init=as_init,
                devices=self._devices,
            )
            write_all(fds.args, command.encode_args(args))
            os.lseek(fds.args, 0, os.SEEK_SET)
            join = [] if self.group is None else self.group.join_files
            argv = command.chain(sandbox.tools, fds.args, inside, uid=self.uid, join=join)
            namespace = None if grant.read_only else sandbox.namespace()
            start.spawn(argv, fds.passed(), namespace=namespace)
        except BaseException:
            start.close()
            raise
        finally:
            opened.close()
        return start, further

    async def start(self, launch: Launch) -> Process:
        if not self._serves(launch):
            await self._end_start()
            await self.begin(Ahead(launch.argv, launch.timeout_s, launch.grant))
        assert self._begun is not None, "it is begun"
        _, start, ready = self._begun
        start.tell_init(launch.on_init)
        await ready
        self._begun = None
        process = self.supervise(await self.hand_over(start, launch), launch)
        if self.kind is not None:
            process.on_go = partial(self._sandbox.prepare_next, self.limits, self.kind)
        return process

    def _serves(self, launch: Launch) -> bool:
        """Whether the start that has begun is of use."""
        if self._begun is None or not self.usable:
            return False
        ahead, _, _ = self._begun
        same = tuple(ahead.argv) == tuple(launch.argv)
        same = same and replace(launch.grant, env={}) == replace(ahead.grant, env={})
        return same and self.rlimits(ahead.timeout_s) == self.rlimits(launch.timeout_s)

    async def _end_start(self) -> None:
        """End a start that nobody needs."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        _, start, ready = begun
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)  # it may have failed: nobody asked
        await start.abandon()

    def _descriptors(
        self, pipes: Pipes, opened: contextlib.ExitStack, allow: frozenset[str]
    ) -> command.Descriptors:
        sandbox, network = self._sandbox, self.limits.network
        name = "seccomp " + "+".join(sorted(allow)) + (" network" if network else "")

        def keep(fd: int) -> int:
            return opened.enter_context(closing_fd(fd))

        return command.Descriptors(
            args=keep(os.memfd_create("args", os.MFD_CLOEXEC)),
            job=self.fd,
            status=pipes.status_w,
            seccomp=keep(sandbox.constants.open(name, seccomp.program(allow, network=network))),
        )
