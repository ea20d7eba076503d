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
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.bubblewrap.prepared_starts import LIFETIME_S, PreparedStarts
from client_agent.sandbox.kernel import pidfd
from shared.wire import Limits
from tests.kit.clock import SimClock
from tests.kit.each import each
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
        workspace = await self.prepare(limits)
        name = workspace.name
        unpack(SAY, workspace)
        out, err = (self.home / f"{self.serial}.{one}" for one in ("out", "err"))
        variables = {"FERRYMAN_JOB_ID": str(self.serial), **env}
        launch = Launch(("bash", "run.sh"), variables, 20.0, 0.5, out, err, self.grant)
        process = await workspace.start(launch)
        process.go()
        assert (await process.wait()).exit_code == 0
        await workspace.destroy()
        assert err.read_text() == ""
        return name, out.read_text().strip()

    async def prepared(self) -> int:
        """Run a job, and wait until the start that follows it waits at its gate: its process."""
        await self.run()

        def gates() -> list[int]:
            below = pidfd.descendants(os.getpid())
            return [
                pid
                for pid in below
                if Path(f"/proc/{pid}/comm").read_text() == "sh\n" and pidfd.has_seccomp_filter(pid)
            ]

        await until(lambda: bool(gates()))
        await turns(200)
        return gates()[0]


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
    """Also variables that no shell should see; another kind of job does not get it."""

    async def work(agent: Agent) -> Any:
        gate = await agent.prepared()
        files = os.listdir(Path(f"/proc/{gate}/root", "job")) if os.geteuid() == 0 else []  # noqa: PTH208
        others = []
        for limits, script in ((OTHER, "run.sh"), (SMALL, "x.sh")):
            workspace = await agent.prepare(limits, script)
            others.append(workspace.name)
            await workspace.destroy()
        runs = [await agent.run(FERRYMAN_X="it's $HOME; \\")]
        await until(lambda: bool(pidfd.descendants(os.getpid())))
        await turns(200)
        runs.append(await agent.run(A="it's\nlong"))
        return files, others, runs

    files, others, runs = with_agent(work, who)
    assert (files, others) == ([], ["job-2", "job-3"])
    assert runs == [("ahead-1", "4 a run.sh 1000"), ("ahead-2", "5 it's\nlong run.sh 1000")]


def test_a_prepared_start_that_died_is_not_used(who: Who) -> None:
    async def work(agent: Agent) -> Any:
        fields = pidfd.stat_fields(await agent.prepared())
        assert fields is not None
        init = os.pidfd_open(int(fields[1]))
        signal.pidfd_send_signal(init, signal.SIGKILL)
        await asyncio.to_thread(select.select, [init], [], [], 20)
        os.close(init)
        await turns(20)
        return await agent.run()

    assert with_agent(work, who) == ("job-2", "2 a run.sh 1000")


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

LAUNCH = Ahead(("bash", "run.sh"), {}, 0.0)
KIND = Limits(), LAUNCH
PIDS = Limits(pids=7), LAUNCH


class FakeWorkspace:
    def __init__(self, prepared: Prepared, name: str, uid: int | None) -> None:
        self.name, self.uid, self.usable, self._prepared = name, uid, True, prepared

    async def destroy(self) -> None:
        self._prepared.made.remove(self)
        self._prepared.starts.release(self.uid)


class Prepared:
    """Prepared starts, and what was made for them."""

    def __init__(self, most: int = 2, uids: tuple[int, ...] = ()) -> None:
        self.clock = SimClock()
        self.made: list[FakeWorkspace] = []
        self.problem: Exception | None = None
        self.starts: PreparedStarts[FakeWorkspace] = PreparedStarts(
            self._make, self.clock, most, uids
        )

    async def _make(self, name: str, uid: int | None, *_: object) -> FakeWorkspace:
        await turns()
        if self.problem is not None:
            raise self.problem
        self.made.append(FakeWorkspace(self, name, uid))
        return self.made[-1]

    async def refill(self, times: int = 1, kind: tuple[Limits, Ahead] = KIND) -> None:
        for _ in range(times):
            self.starts.refill(*kind)
        await self.clock.settle()

    @property
    def uids(self) -> list[int | None]:
        return [one.uid for one in self.made]


@pytest.fixture
async def two() -> Any:
    prepared = Prepared()
    await prepared.refill(5)
    assert len(prepared.made) == 2, "never more than allowed"
    yield prepared
    await prepared.starts.close()
    await prepared.refill()
    assert prepared.made == [], "it is closed"


async def test_each_is_taken_once_if_it_is_as_good_as_new(two: Prepared) -> None:
    first, second = two.made
    first.usable = False
    assert two.starts.take(*KIND) is second
    assert two.starts.take(*KIND) is None
    await second.destroy()
    await two.clock.settle()
    assert two.made == []


@each(
    "limits, launch",
    [
        PIDS,
        (Limits(network=True), LAUNCH),
        (Limits(), replace(LAUNCH, argv=("bash", "other.sh"))),
        (Limits(), replace(LAUNCH, env={"A": "1"})),
        (Limits(), replace(LAUNCH, timeout_s=9.0)),
        (Limits(), replace(LAUNCH, grant=Grant(network=True))),
        (Limits(), replace(LAUNCH, grant=Grant(allow=frozenset({"inotify"})))),
        (Limits(), replace(LAUNCH, grant=Grant(env={"A": "1"}))),
        (Limits(), replace(LAUNCH, grant=Grant(scratch=1))),
    ],
)
def test_only_the_same_limits_and_the_same_launch_take_it(limits: Limits, launch: Ahead) -> None:
    async def work() -> tuple[bool, bool]:
        prepared = Prepared()
        await prepared.refill()
        wrong, right = (prepared.starts.take(*kind) for kind in ((limits, launch), KIND))
        await prepared.starts.close()
        return wrong is None, right is not None

    assert asyncio.run(work()) == (True, True)


async def test_another_kind_replaces_the_oldest(two: Prepared) -> None:
    kept = two.made[1]
    await two.refill(kind=PIDS)
    assert two.made[0] is kept
    assert two.starts.take(*PIDS) is two.made[1]
    await two.made[1].destroy()


async def test_what_nobody_takes_is_removed_after_a_minute() -> None:
    prepared = Prepared()
    left = []
    await prepared.refill()
    for _ in range(3):
        await prepared.clock.advance(LIFETIME_S / 2)
        left.append(len(prepared.made))
        if len(left) == 1:
            await prepared.refill()
    assert (left, prepared.clock.sleeping) == ([1, 1, 0], 0)
    await prepared.starts.close()


async def test_each_has_a_uid_until_it_is_removed() -> None:
    prepared = Prepared(most=2, uids=(7, 8, 9))
    await prepared.refill(2)
    taken = prepared.starts.take(*KIND)
    assert taken is not None
    await prepared.refill()
    assert prepared.starts.take(*KIND) is not None
    await prepared.refill(2)
    assert prepared.uids == [7, 8, 9], "no uid is left, and nothing is left of what got none"
    await taken.destroy()
    await prepared.refill()
    assert prepared.uids == [8, 9, 7]
    await prepared.starts.close()


@pytest.mark.parametrize("problem", [SandboxBroken("x"), OSError(28, "full")])
async def test_what_is_short_costs_no_job(problem: Exception) -> None:
    """What cannot be prepared is left to the next job; a job for which something is short gets what
    prepared starts have, those that are being made too; what fails without any fails once."""
    prepared, calls = Prepared(most=2, uids=(7, 8)), list[int]()

    async def make() -> int:
        calls.append(len(prepared.made))
        if prepared.made or prepared.problem:
            raise problem
        return 5

    prepared.problem = problem
    await prepared.refill()
    with pytest.raises(type(problem)):
        await prepared.starts.make_room(make)
    assert (prepared.made, calls) == ([], [0])
    prepared.problem = None
    await prepared.refill()
    prepared.starts.refill(*KIND)
    assert await prepared.starts.make_room(make) == 5
    await prepared.starts.close()
