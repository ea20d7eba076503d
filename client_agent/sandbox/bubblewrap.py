"""The default backend: bubblewrap, as root (drops to one uid per slot) or unprivileged."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from client_agent.sandbox import options, pidfd, seccomp, selftest
from client_agent.sandbox.attempt import Attempt
from client_agent.sandbox.base import Launch, Process, Report, SandboxBroken, Workspace
from client_agent.sandbox.meter import NoMeter
from client_agent.sandbox.places import Places
from client_agent.sandbox.settings import SandboxSettings
from client_agent.sandbox.spawn import Logs, Pipes, Start, spawn
from shared.clock import Clock
from shared.wire import Limits, Reason

_NAME: Final = re.compile(r"[a-z0-9-]{1,100}")
_SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class Bubblewrap:
    """Implements :class:`client_agent.sandbox.base.Sandbox`.

    Args:
        home: the agent's directory; ``work/`` and ``quarantine/`` below it are the sandbox's.
    """

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.clock = clock
        self.drop = os.geteuid() == 0
        self.places = Places(home, drop=self.drop)
        self._tools: options.Tools | None = None
        self._constants: dict[str, int] = {}

    async def self_test(self) -> Report:
        return await selftest.run(self)

    async def clear(self) -> None:
        """Kill, then unmount, then remove: in that order nothing is pulled from under a live
        job."""
        for folder in self.places.left_over():
            fd = self.places.recorded_init(folder)
            if fd is None:
                continue
            try:
                pidfd.kill(fd)
                timer = asyncio.create_task(self.clock.sleep(self.settings.death_timeout_s))
                dead = pidfd.watch(fd)
                await asyncio.wait({dead, timer}, return_when=asyncio.FIRST_COMPLETED)
                timer.cancel()
                if not dead.done():
                    dead.cancel()
                    raise SandboxBroken(f"a process of a former life would not die: {folder}")
            finally:
                os.close(fd)
        for folder in self.places.left_over():
            await asyncio.to_thread(self.places.remove, folder)

    async def prepare(self, name: str, slot: int, limits: Limits) -> Workspace:
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name for an attempt: {name!r}")
        uid = self.settings.uid_base + slot if self.drop else None
        folder = self.places.make(name, uid)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(folder / "job", flags)
        return BubblewrapWorkspace(self, folder, fd, uid, limits)

    def close(self) -> None:
        """Give back what the backend holds between attempts. Nothing may be running."""
        for fd in self._constants.values():
            os.close(fd)
        self._constants.clear()
        self.places.close()

    @property
    def tools(self) -> options.Tools:
        """The programs of the chain.

        Raises:
            SandboxBroken: one is not installed.
        """
        if self._tools is None:
            self._tools = options.Tools(
                sh="/bin/sh",
                bwrap=_find("bwrap", "bubblewrap"),
                choom=_find("choom", "util-linux"),
                setpriv=_find("setpriv", "util-linux") if self.drop else "",
            )
        return self._tools

    def constant(self, name: str, content: bytes) -> int:
        """A new read-only descriptor at the start of ``content``, which is kept under
        ``name``."""
        if name not in self._constants:
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
            os.write(fd, content)
            self._constants[name] = fd
        return os.open(f"/proc/self/fd/{self._constants[name]}", os.O_RDONLY | os.O_CLOEXEC)


class BubblewrapWorkspace:
    """Implements :class:`client_agent.sandbox.base.Workspace`."""

    def __init__(
        self, sandbox: Bubblewrap, folder: Path, fd: int, uid: int | None, limits: Limits
    ) -> None:
        self.path = folder / "job"
        self.fd = fd
        self.uid = self.gid = uid
        self.enforcement: Mapping[str, str] = {}
        self._sandbox, self._folder, self._limits = sandbox, folder, limits
        self._attempt: Attempt | None = None
        self._destroyed = False

    async def start(self, launch: Launch) -> Process:
        sandbox, settings = self._sandbox, self._sandbox.settings
        pidfd.become_subreaper()
        pipes = Pipes()
        opened: list[int] = []
        try:
            fds = self._descriptors(pipes, opened, launch.allow)
            args = options.bwrap_options(
                fds,
                launch.env,
                scratch=min(settings.scratch, self._limits.memory),
                shm=min(settings.shm, self._limits.memory),
                read_only=launch.read_only,
                network=self._limits.network,
            )
            _write_all(fds.args, options.encode_args(args))
            inside = options.gated(launch.argv, self._rlimits())
            argv = options.chain(sandbox.tools, fds.args, inside, uid=self.uid)
            outer = spawn(pipes, argv, fds.passed())
        except BaseException:
            pipes.close()
            raise
        finally:
            for fd in opened:
                os.close(fd)
        logs = Logs(self._limits.log, self._limits.log * settings.log_hard_factor, self._on_flood)
        start = Start(outer, pipes, launch, logs, self._record)
        parts = await start.up(sandbox.clock, settings.start_timeout_s, settings.death_timeout_s)
        self._attempt = Attempt(parts, launch, NoMeter(), sandbox.clock, settings.death_timeout_s)
        return self._attempt

    async def destroy(self) -> None:
        if self._destroyed:
            return
        self._destroyed = True
        os.close(self.fd)
        if self._attempt is not None and not (await self._attempt.wait()).certain:
            self._sandbox.places.quarantine(self._folder)
            return
        await asyncio.to_thread(self._sandbox.places.remove, self._folder)

    def _descriptors(
        self, pipes: Pipes, opened: list[int], allow: frozenset[str]
    ) -> options.Descriptors:
        sandbox = self._sandbox
        relaxed = "+".join(sorted(allow))

        def keep(fd: int) -> int:
            opened.append(fd)
            return fd

        return options.Descriptors(
            args=keep(os.memfd_create("args", os.MFD_CLOEXEC)),
            job=self.fd,
            status=pipes.status_w,
            passwd=keep(sandbox.constant("passwd", options.PASSWD.encode())),
            group=keep(sandbox.constant("group", options.GROUP.encode())),
            hosts=keep(sandbox.constant("hosts", options.HOSTS.encode())),
            seccomp=keep(sandbox.constant(f"seccomp{relaxed}", seccomp.program(allow))),
        )

    def _record(self, init: int) -> None:
        self._sandbox.places.record(self._folder, init)

    def _rlimits(self) -> dict[str, int]:
        return {"nproc": self._limits.pids, "nofile": self._sandbox.settings.nofile, "core": 0}

    def _on_flood(self, stream: str) -> None:
        if self._attempt is not None:
            most = self._limits.log * self._sandbox.settings.log_hard_factor
            self._attempt.stop(
                Reason.LOG_LIMIT, f"the job wrote more than {most} bytes to {stream}", grace=False
            )


def _find(program: str, package: str) -> str:
    found = shutil.which(program, path=_SAFE_PATH)
    if found is None:
        raise SandboxBroken(
            f"{program} is not installed: apt install {package}, or dnf install {package}"
        )
    return found


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)


def argv_of(script: str) -> Sequence[str]:
    """How an entry script is run inside."""
    return ["/bin/bash", script]
