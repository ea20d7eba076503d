"""Starts that are prepared before their jobs come."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from client_agent.sandbox.base import Ahead, Ended, Grant, Launch
from client_agent.sandbox.bubblewrap.backend import Bubblewrap, BubblewrapWorkspace
from client_agent.sandbox.bubblewrap.root_tree import CHECK_S
from client_agent.sandbox.kernel import disk_images, pidfd
from shared.clock import RealClock
from shared.wire import Limits
from tests.kit.real_sandbox import (
    SETTINGS,
    SMALL,
    Who,
    descriptors,
    in_child,
    processes_of,
    turns,
    uid_base,
    unpack,
)
from tests.kit.waiting import until

SAY = {"run.sh": 'echo "$FERRYMAN_JOB_ID $A $(ls) $(id -u)"; echo x >made\n'}


class Agent:
    """A sandbox that prepares starts, and its jobs."""

    def __init__(self, home: Path, grant: Grant | None = None, most: int = 1) -> None:
        home.mkdir(exist_ok=True)
        self.home, self.grant, self.clock = home, grant or Grant(env={"A": "a"}), RealClock()
        settings = replace(SETTINGS, uid_base=uid_base(), prepared_starts=most)
        if os.geteuid() == 0:
            settings = replace(settings, prepared_uids=range(uid_base() + 8, uid_base() + 14))
        self.sandbox = Bubblewrap(self.clock, home / "agent", settings)
        self._serial = 0

    @property
    def units(self) -> list[BubblewrapWorkspace]:
        return [unit.workspace for unit in self.sandbox._ahead._units]

    async def prepare(self, limits: Limits = SMALL, script: str = "run.sh") -> Any:
        self._serial += 1
        ahead = Ahead(("bash", script), {}, 20.0, self.grant)
        return await self.sandbox.prepare(f"job-{self._serial}", 0, limits, ahead)

    async def run(
        self, limits: Limits = SMALL, env: dict[str, str] | None = None
    ) -> tuple[str, str, Ended]:
        """Run a job; the name of its workspace, what it said, and its end."""
        workspace = await self.prepare(limits)
        name = workspace.name
        unpack(SAY, workspace)
        out, err = (self.home / f"{self._serial}.{one}" for one in ("out", "err"))
        variables = {"FERRYMAN_JOB_ID": str(self._serial), **(env or {})}
        launch = Launch(("bash", "run.sh"), variables, 20.0, 0.5, out, err, self.grant)
        process = await workspace.start(launch)
        process.go()
        ended = await process.wait()
        await workspace.destroy()
        assert err.read_text() == ""
        return name, out.read_text().strip(), ended

    async def prepared(self) -> BubblewrapWorkspace:
        """Run a job, and wait until the start that follows it waits at its gate."""
        await self.run()
        await until(lambda: bool(self.units))
        unit = self.units[0]
        assert unit._begun is not None
        await unit._begun[2]
        return unit


def with_agent(work: Callable[[Agent], Awaitable[Any]], who: Who, **given: Any) -> Any:
    async def whole(home: Path) -> Any:
        agent = Agent(home / "one", **given)
        try:
            return await work(agent)
        finally:
            await agent.sandbox.close()

    return in_child(lambda home: asyncio.run(whole(home)), who)


def test_the_next_job_gets_a_prepared_start_and_sees_only_its_own(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        runs = []
        for _ in range(3):
            runs.append(await agent.run(env={"FERRYMAN_X": "it's $HOME; \\"}))
            await until(lambda: bool(agent.units))
        return runs

    runs = with_agent(work, who)
    assert [name for name, _, _ in runs] == ["job-1", "ahead-1", "ahead-2"]
    assert [said for _, said, _ in runs] == [f"{i} a run.sh 1000" for i in (1, 2, 3)]
    assert [ended.exit_code for _, _, ended in runs] == [0, 0, 0]
    assert all(ended.usage.wall_s < 10 for _, _, ended in runs)


def test_a_prepared_start_is_behind_its_closed_gate_and_nobodys(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        unit = await agent.prepared()
        assert unit._begun is not None
        init = unit._begun[1]._init
        programs = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pidfd.descendants(init)]
        files = os.listdir(unit.fd)  # noqa: PTH208  # a descriptor
        return programs, files, unit.uid, unit.usable

    programs, files, uid, usable = with_agent(work, who)
    assert len(programs) == 1
    assert programs[0].startswith(b"/bin/sh\0-c\0")
    assert files == []
    assert usable
    assert (uid is None) == (who == "user")


def test_another_kind_of_job_does_not_take_it(who: Who) -> None:
    async def work(agent: Agent) -> list[str]:
        unit = await agent.prepared()
        names = []
        other = SMALL.model_copy(update={"pids": 40})
        for limits, script in ((other, "run.sh"), (SMALL, "x.sh")):
            workspace = await agent.prepare(limits, script)
            names.append(workspace.name)
            await workspace.destroy()
        assert agent.units == [unit]
        return names

    assert with_agent(work, who) == ["job-2", "job-3"]


def test_variables_that_no_shell_should_see_reach_the_job_all_the_same(who: Who) -> None:
    """Then the start begins again."""

    async def work(agent: Agent) -> Any:
        await agent.prepared()
        return await agent.run(env={"A": "it's\nlong"})

    name, said, ended = with_agent(work, who)
    assert name == "ahead-1"
    assert said == "2 it's\nlong run.sh 1000"
    assert ended.exit_code == 0


def test_a_prepared_start_that_died_is_not_used(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        unit = await agent.prepared()
        assert unit._begun is not None
        init = os.pidfd_open(unit._begun[1]._init)
        signal.pidfd_send_signal(init, signal.SIGKILL)
        await asyncio.to_thread(select.select, [init], [], [], 20)
        os.close(init)
        return await agent.run()

    name, said, _ = with_agent(work, who)
    assert (name, said) == ("job-2", "2 a run.sh 1000")


def test_a_start_with_files_of_the_host_that_changed_is_not_used(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        await agent.prepared()
        trees = agent.sandbox._trees
        trees._current[False].signature = ()
        trees._checked_at[False] -= CHECK_S
        return await agent.run()

    assert with_agent(work, who)[0] == "job-2"


def test_files_of_the_host_that_change_after_it_was_taken_are_new_all_the_same(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        await agent.prepared()
        workspace = await agent.prepare()
        trees = agent.sandbox._trees
        taken = trees._current[False]
        taken.signature = ()
        trees._checked_at[False] -= CHECK_S
        unpack(SAY, workspace)
        out, err = agent.home / "out", agent.home / "err"
        launch = Launch(("bash", "run.sh"), {}, 20.0, 0.5, out, err, agent.grant)
        process = await workspace.start(launch)
        tree = workspace._tree
        process.go()
        ended = await process.wait()
        await workspace.destroy()
        return ended.exit_code, tree is taken, taken.users

    assert with_agent(work, who) == (0, False, 0)


def test_a_job_gets_the_loop_device_of_a_prepared_start() -> None:
    async def work(agent: Agent) -> Any:
        unit = await agent.prepared()
        image = unit._image
        assert image is not None
        real = disk_images.attach  # type: ignore[attr-defined]

        def attach(fd: int) -> tuple[int, str]:
            if image.file.exists():
                raise OSError(errno.EBUSY, "no free loop device")
            return real(fd)

        disk_images.attach = attach  # type: ignore[attr-defined]
        try:
            while (idle := agent.sandbox.host.images.take_idle(SMALL.disk)) is not None:  # type: ignore[union-attr]
                idle.discard()
            other = SMALL.model_copy(update={"disk": SMALL.disk + (1 << 20)})
            return await agent.run(other)
        finally:
            disk_images.attach = real  # type: ignore[attr-defined]

    name, said, _ = with_agent(work, "root")
    assert (name, said) == ("job-2", "2 a run.sh 1000")


def test_a_start_that_is_given_up_at_any_step_leaves_no_process(who: Who) -> None:
    async def work(agent: Agent) -> list[int]:
        for step in range(40):
            workspace = await agent.prepare(script=f"{step}.sh")
            await agent.clock.sleep(step * 0.3e-3)
            await workspace.destroy()
        await agent.sandbox.close()
        return pidfd.descendants(os.getpid())

    assert with_agent(work, who) == []


def test_nothing_is_prepared_for_services_with_folders_of_the_operator(who: Who) -> None:
    async def work(agent: Agent) -> list[str]:
        names = []
        for _ in range(2):
            names.append((await agent.run())[0])
            await turns(100)
        return names

    grant = Grant(read_only=((Path("/usr/share"), "/data"),), env={"A": "a"})
    assert with_agent(work, who, grant=grant) == ["job-1", "job-2"]


def test_at_the_end_nothing_is_left(who: Who) -> None:
    async def work(home: Path) -> Any:
        before = descriptors()
        agent = Agent(home / "one", most=3)
        for _ in range(3):
            await agent.run()
        workspace = await agent.prepare()  # and one that is not started
        await workspace.destroy()
        await agent.sandbox.close()
        left = sorted(path.name for path in (home / "one/agent").rglob("*"))
        alive = pidfd.descendants(os.getpid())
        return left, alive, len(asyncio.all_tasks()), descriptors() - before

    left, alive, tasks, more = in_child(lambda home: asyncio.run(work(home)), who)
    assert {name for name in left if not name.startswith("template")} <= {
        "work",
        "images",
        "cgroups",
    }
    assert (alive, tasks) == ([], 1)
    assert more <= 3  # what the process keeps: memfd probes and the like


def test_prepared_starts_end_with_their_killed_agent(who: Who) -> None:
    def work(home: Path) -> Any:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:

            async def wait_for_ever() -> None:
                agent = Agent(home / "one")
                unit = await agent.prepared()
                assert unit._begun is not None
                os.write(write, f"{unit._begun[1]._init} {unit.uid or os.geteuid()}\n".encode())
                await asyncio.Event().wait()

            asyncio.run(wait_for_ever())
        init, uid = map(int, os.read(read, 100).split())
        fd = os.pidfd_open(init)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        died = bool(select.select([fd], [], [], 20)[0])

        async def again() -> list[str]:
            agent = Agent(home / "one")
            await agent.sandbox.clear()
            left = sorted(path.name for path in (home / "one/agent/work").iterdir())
            await agent.sandbox.close()
            return left

        return died, asyncio.run(again()), processes_of(uid)

    assert in_child(work, who) == (True, [], [])
