"""Starts that are prepared before their jobs come: who gets them, how many, and when they end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import Ahead, Grant, Launch, SandboxBroken
from client_agent.sandbox.bubblewrap import prepared_starts
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.kernel import pidfd
from shared.wire import Limits
from tests.kit.real_sandbox import (
    SETTINGS,
    SMALL,
    TOPS,
    LimitClock,
    Who,
    dead_within,
    in_child,
    processes_of,
    turns,
    uid_base,
    unpack,
)
from tests.kit.waiting import until

SAY = {"run.sh": 'echo "$FERRYMAN_JOB_ID $A $(ls) $(id -u)"; echo x >made\n'}
OTHER = SMALL.model_copy(update={"pids": 40})


class Agent:
    """A sandbox that prepares starts, and its jobs."""

    def __init__(self, home: Path, grant: Grant | None = None, most: int = 1) -> None:
        self.home, self.grant = home, grant or Grant(env={"A": "a"})
        settings = replace(SETTINGS, uid_base=uid_base(), prepared_starts=most)
        if os.geteuid() == 0:
            settings = replace(settings, prepared_uids=range(uid_base() + 8, uid_base() + 14))
        self.sandbox = Bubblewrap(LimitClock(), home / "agent", settings)
        self.serial = 0

    async def prepare(self, limits: Limits = SMALL, script: str = "run.sh") -> Any:
        self.serial += 1
        ahead = Ahead(("bash", script), {}, 20.0, self.grant)
        return await self.sandbox.prepare(f"job-{self.serial}", 0, limits, ahead)

    async def run(self, limits: Limits = SMALL, **env: str) -> tuple[str, str]:
        """Run a job; the name of its workspace, and what it said."""
        workspace, number = await self.prepare(limits), self.serial
        name = workspace.name
        unpack(SAY, workspace)
        out, err = (self.home / f"{workspace.name}.{one}" for one in ("out", "err"))
        variables = {"FERRYMAN_JOB_ID": str(number), **env}
        launch = Launch(("bash", "run.sh"), variables, 20.0, 0.5, out, err, self.grant)
        process = await workspace.start(launch)
        process.go()
        assert (await process.wait()).exit_code == 0
        await workspace.destroy()
        assert err.read_text() == ""
        return name, out.read_text().strip()

    def gates(self) -> list[int]:
        """Processes of starts that wait at their gates."""
        below = pidfd.descendants(os.getpid())
        return [
            pid
            for pid in below
            if pidfd.has_seccomp_filter(pid) and Path(f"/proc/{pid}/comm").read_text() == "sh\n"
        ]

    async def prepared(self, limits: Limits = SMALL) -> int:
        """Run a job, and wait until the start that follows it waits at its gate: its process."""
        await self.run(limits)
        await until(lambda: bool(self.gates()))
        await turns(200)
        return self.gates()[0]


def with_agent(work: Callable[[Agent], Awaitable[Any]], who: Who, **given: Any) -> Any:
    async def whole(home: Path) -> Any:
        agent = Agent(home, **given)
        try:
            return await work(agent)
        finally:
            await agent.sandbox.close()
            assert pidfd.descendants(os.getpid()) == []
            assert {path.name for path in (home / "agent").iterdir()} <= TOPS

    return in_child(whole, who)


def test_the_next_job_gets_a_prepared_start_and_sees_only_its_own(who: Who) -> None:
    """Also variables that no shell should see."""

    async def work(agent: Agent) -> Any:
        gate = await agent.prepared()
        files = os.listdir(Path(f"/proc/{gate}/root", "job")) if os.geteuid() == 0 else []  # noqa: PTH208
        runs = [await agent.run(FERRYMAN_X="it's $HOME; \\")]
        await until(lambda: bool(agent.gates()))
        await turns(200)
        runs.append(await agent.run(A="it's\nlong"))
        return files, runs

    files, runs = with_agent(work, who)
    assert files == []
    assert runs == [("ahead-1", "2 a run.sh 1000"), ("ahead-2", "3 it's\nlong run.sh 1000")]


def test_a_prepared_start_that_died_is_not_used(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        fields = pidfd.stat_fields(await agent.prepared())
        assert fields is not None
        init = os.pidfd_open(int(fields[1]))
        signal.pidfd_send_signal(init, signal.SIGKILL)
        await asyncio.to_thread(select.select, [init], [], [], 20)
        os.close(init)
        return (await agent.run())[1]

    assert with_agent(work, who) == "2 a run.sh 1000"


def test_a_start_that_is_given_up_at_any_step_leaves_no_process(who: Who) -> None:
    async def work(agent: Agent) -> None:
        for step in range(20):
            workspace = await agent.prepare(script=f"{step}.sh")
            await turns(step * step * 10)
            await workspace.destroy()

    with_agent(work, who)


def test_nothing_is_prepared_for_services_with_folders_of_the_operator(who: Who) -> None:
    async def work(agent: Agent) -> list[str]:
        names = [(await agent.run())[0]]
        await turns(100)
        return [*names, (await agent.run())[0]]

    grant = Grant(read_only=((Path("/usr/share"), "/data"),), env={"A": "a"})
    assert with_agent(work, who, grant=grant) == ["job-1", "job-2"]


def test_prepared_starts_end_with_their_killed_agent(who: Who) -> None:
    def work(home: Path) -> Any:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:

            async def wait_for_ever() -> None:
                gate = await Agent(home).prepared()
                (uid, *_) = pidfd.status_field(gate, "Uid:") or [""]
                os.write(write, f"{gate} {uid}\n".encode())
                await asyncio.Event().wait()

            asyncio.run(wait_for_ever())
        gate, uid = map(int, os.read(read, 100).split())
        fd = os.pidfd_open(gate)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        died = dead_within(fd)

        async def again() -> list[str]:
            sandbox = Agent(home).sandbox
            await sandbox.clear()
            await sandbox.close()
            return sorted(path.name for path in (home / "agent/work").iterdir())

        return died, asyncio.run(again()), processes_of(uid)

    assert in_child(work, who) == (True, [], [])


# ---------------------------------------------------------------- how many, for whom, how long


@pytest.mark.parametrize("most", [1, 2])
def test_each_is_used_once_and_has_a_uid_of_its_own(who: Who, most: int) -> None:
    async def work(agent: Agent) -> Any:
        await asyncio.gather(*(agent.run() for _ in range(3)))
        await until(lambda: len(agent.gates()) >= most)
        await turns(200)
        waiting = len({pidfd.stat_fields(pid)[1] for pid in agent.gates()})  # type: ignore[index]
        taken = [await agent.prepare() for _ in range(most + 1)]
        for workspace in taken:
            await workspace.destroy()
        return waiting, [one.name.split("-")[0] for one in taken], [one.uid for one in taken]

    waiting, names, uids = with_agent(work, who, most=most)
    assert (waiting, names) == (most, [*["ahead"] * most, "job"])
    assert len(set(uids)) == (most + 1 if who == "root" else 1)


def test_only_the_same_limits_and_the_same_launch_take_it(who: Who) -> None:
    """Once a job of another kind has run, it replaces the oldest."""

    async def work(agent: Agent) -> list[str]:
        await agent.prepared()
        names = []
        same = Ahead(("bash", "run.sh"), {}, 20.0, agent.grant)
        for limits, ahead in (
            (OTHER, same),
            (SMALL.model_copy(update={"network": True}), same),
            (SMALL, replace(same, argv=("bash", "other.sh"))),
            (SMALL, replace(same, env={"FERRYMAN_A": "1"})),
            (SMALL, replace(same, grant=Grant(env={"A": "b"}))),
            (SMALL, replace(same, grant=replace(agent.grant, network=True))),
            (SMALL, replace(same, grant=replace(agent.grant, allow=frozenset({"inotify"})))),
            (SMALL, replace(same, grant=replace(agent.grant, scratch=1 << 20))),
        ):
            workspace = await agent.sandbox.prepare("job-x", 0, limits, ahead)
            names.append(workspace.name)
            await workspace.destroy()
        await agent.prepared(OTHER)
        return [*names, (await agent.run(OTHER))[0], (await agent.run())[0]]

    *others, replaced, gone = with_agent(work, who)
    assert others == ["job-x"] * 8
    assert (replaced, gone) == ("ahead-2", "job-4")


def test_what_nobody_takes_is_removed_after_a_while(
    who: Who, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_starts, "LIFETIME_S", 0.2)

    async def work(agent: Agent) -> str:
        await agent.run()
        await until(lambda: bool(pidfd.descendants(os.getpid())))
        await until(lambda: not pidfd.descendants(os.getpid()))
        return (await agent.run())[0]

    assert with_agent(work, who) == "job-2"


@pytest.mark.parametrize("problem", [SandboxBroken("x"), OSError(24, "too many open files")])
def test_a_job_for_which_something_is_short_gets_what_prepared_starts_have(
    who: Who, problem: Exception
) -> None:
    """What fails without any fails once."""

    async def work(agent: Agent) -> Any:
        await agent.prepared()
        real, calls, fails = agent.sandbox.make_workspace, [], lambda: True

        async def make(*given: Any) -> Any:
            calls.append(bool(agent.gates()))
            if fails():
                raise problem
            return await real(*given)

        agent.sandbox.make_workspace = make  # type: ignore[method-assign, assignment]
        with pytest.raises(type(problem)):
            await agent.prepare(OTHER)
        fails = lambda: False  # noqa: E731
        await agent.prepared(OTHER)
        before, fails = len(calls), lambda: calls[-1]
        workspace = await agent.prepare()
        await workspace.destroy()
        return calls[:2], workspace.name, calls[before:]

    assert with_agent(work, who) == ([True, False], "job-4", [True, False])
