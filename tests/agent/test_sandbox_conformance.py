"""One suite that the real sandbox and the fake one pass: what the fake promises to the tests of the
agent is what the agent gets.

Each scenario says what the test does with the attempt, and what run.sh does: as a script, and as
calls of the fake. The real one runs as a user only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import Launch, OutputListener, Process, Workspace
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from shared.clock import RealClock
from shared.wire import Reason
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.real_sandbox import SETTINGS, SMALL, in_child, unpack
from tests.kit.waiting import until

OBEYS = "echo begun; sleep 1000 & wait\n"
IGNORES = "trap '' TERM; echo begun; while :; do sleep 1000 & wait; done\n"


class Heard:
    """What a listener of an attempt hears."""

    def __init__(self) -> None:
        self.output = {"stdout": b"", "stderr": b""}

    def on_output(self, stream: str, data: bytes) -> int:
        self.output[stream] += data
        return 0

    def on_stored(self, stream: str) -> None:
        pass


@dataclass
class Attempt:
    """An attempt behind its gate, in either sandbox."""

    workspace: Workspace
    process: Process
    launch: Launch
    heard: Heard
    inits: list[int]

    async def begun(self) -> None:
        """Its script has said something."""
        await until(lambda: bool(self.heard.output["stdout"]))


async def goes(attempt: Attempt) -> None:
    attempt.process.go()


async def goes_twice(attempt: Attempt) -> None:
    attempt.process.go()
    attempt.process.go()


async def never_goes(attempt: Attempt) -> None:
    attempt.process.stop(None, "cancelled")


async def stopped_then_goes(attempt: Attempt) -> None:
    attempt.process.stop(Reason.SHUTDOWN, "stopped")
    attempt.process.go()


async def cancelled(attempt: Attempt) -> None:
    attempt.process.go()
    await attempt.begun()
    attempt.process.stop(None, "cancelled")


async def killed(attempt: Attempt) -> None:
    attempt.process.go()
    await attempt.begun()
    attempt.process.stop(Reason.SHUTDOWN, "stopped", grace=False)


async def stopped_twice(attempt: Attempt) -> None:
    attempt.process.go()
    await attempt.begun()
    attempt.process.stop(Reason.HEARTBEAT_TIMEOUT, "silent")
    attempt.process.stop(Reason.SHUTDOWN, "stopped", grace=False)


async def stopped_after_its_end(attempt: Attempt) -> None:
    attempt.process.go()
    await attempt.process.wait()
    attempt.process.stop(Reason.SHUTDOWN, "stopped", grace=False)


def writes(process: FakeProcess) -> None:
    process.log(b"out\n", b"err\n")
    process.write("made/out.txt", process.read("data.txt") * 2)
    process.finish()


def fails(process: FakeProcess) -> None:
    process.finish(3)


def asks_later(process: FakeProcess) -> None:
    process.finish(75)


def prints_unended(process: FakeProcess) -> None:
    process.log(b"no newline")
    process.finish()


def begins(process: FakeProcess) -> None:
    process.log(b"begun\n")


@dataclass(frozen=True)
class Scenario:
    """What happens, and what is seen of it.

    Attributes:
        code: None: run.sh did not end by itself; -1: it is not compared.
        stubborn: run.sh does not obey SIGTERM.
    """

    name: str
    script: str
    fake: Callable[[FakeProcess], None]
    does: Callable[[Attempt], Awaitable[None]] = goes
    code: int | None = 0
    reason: Reason | None = None
    message: str = ""
    out: bytes = b""
    err: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    timeout_s: float = 30.0
    grace_s: float = 10.0
    stubborn: bool = False


LEFT = {"made/out.txt": b"4242", "data.txt": b"42"}
SCENARIOS = [
    Scenario(
        "it writes",
        "mkdir made; printf 4242 > made/out.txt; echo out; echo err >&2\n",
        writes,
        out=b"out\n",
        err=b"err\n",
        files=LEFT,
    ),
    Scenario("go is said twice", "exit 0\n", FakeProcess.finish, goes_twice),
    Scenario("it fails", "exit 3\n", fails, code=3, reason=Reason.EXIT_CODE, message="code 3"),
    Scenario("it asks for later", "exit 75\n", asks_later, code=75, reason=Reason.EXIT_CODE),
    Scenario("no newline", "printf 'no newline'\n", prints_unended, out=b"no newline"),
    Scenario("it never goes", "echo begun\n", begins, never_goes, code=None),
    Scenario(
        "it goes after a stop",
        "echo begun\n",
        begins,
        stopped_then_goes,
        code=None,
        reason=Reason.SHUTDOWN,
        message="stopped",
    ),
    Scenario("cancelled", OBEYS, begins, cancelled, code=143, out=b"begun\n"),
    Scenario(
        "cancelled and stubborn",
        IGNORES,
        begins,
        cancelled,
        code=None,
        out=b"begun\n",
        grace_s=0.2,
        stubborn=True,
    ),
    Scenario(
        "killed",
        IGNORES,
        begins,
        killed,
        code=None,
        reason=Reason.SHUTDOWN,
        message="stopped",
        out=b"begun\n",
        stubborn=True,
    ),
    Scenario(
        "the first cause stands",
        IGNORES,
        begins,
        stopped_twice,
        code=None,
        reason=Reason.HEARTBEAT_TIMEOUT,
        message="silent",
        out=b"begun\n",
        stubborn=True,
    ),
    Scenario("a stop comes too late", "exit 0\n", FakeProcess.finish, stopped_after_its_end),
    Scenario(
        "the time is over",
        OBEYS,
        begins,
        code=-1,
        reason=Reason.TIMEOUT,
        out=b"begun\n",
        timeout_s=0.5,
    ),
    Scenario(
        "the time is over and it is stubborn",
        IGNORES,
        begins,
        code=None,
        reason=Reason.TIMEOUT,
        out=b"begun\n",
        timeout_s=0.5,
        grace_s=0.2,
        stubborn=True,
    ),
    Scenario("no limit of time", "exit 0\n", FakeProcess.finish, timeout_s=0.0),
]


async def run(sandbox: Any, home: Path, number: int, scenario: Scenario) -> dict[str, Any]:
    """What is seen of one scenario, in either sandbox."""
    name = f"attempt-{number}"
    workspace = await sandbox.prepare(name, 0, SMALL)
    root = Path(f"/proc/self/fd/{workspace.fd}")
    assert list(root.iterdir()) == []
    unpack({"run.sh": scenario.script, "data.txt": "42"}, workspace)
    heard, inits = Heard(), list[int]()
    listener: OutputListener = heard
    env = {"FERRYMAN_JOB_ID": str(number), "FERRYMAN_ATTEMPT": "1"}
    launch = Launch(
        ("bash", "run.sh"),
        env,
        scenario.timeout_s,
        scenario.grace_s,
        home / f"{name}.stdout",
        home / f"{name}.stderr",
        listener=listener,
        on_init=inits.append,
    )
    process = await workspace.start(launch)
    seen: dict[str, Any] = {"gate": (launch.stdout.read_bytes(), launch.stderr.read_bytes())}
    attempt = Attempt(workspace, process, launch, heard, inits)
    await scenario.does(attempt)
    ended = await process.wait()
    assert await process.wait() == ended
    seen["files"] = {
        name: (root / name).read_bytes() for name in scenario.files if (root / name).exists()
    }
    await workspace.destroy()
    seen |= {
        "code": ended.exit_code,
        "reason": ended.reason,
        "message": ended.message,
        "certain": ended.certain,
        "stored": (launch.stdout.read_bytes(), launch.stderr.read_bytes()),
        "heard": (heard.output["stdout"], heard.output["stderr"]),
        "init": inits in ([], [process.pid]),
        "gone": not Path(workspace.path).exists(),
        "timed": ended.usage.wall_s
        >= (scenario.timeout_s if ended.reason is Reason.TIMEOUT else 0),
    }
    return seen


def check(scenario: Scenario, seen: dict[str, Any]) -> None:
    wanted = {
        "gate": (b"", b""),
        "files": scenario.files,
        "certain": True,
        "reason": scenario.reason,
        "stored": (scenario.out, scenario.err),
        "heard": (scenario.out, scenario.err),
        "init": True,
        "gone": True,
        "timed": True,
    }
    if scenario.code != -1:
        wanted["code"] = scenario.code
    assert {name: seen[name] for name in wanted} == wanted, scenario.name
    assert scenario.message in seen["message"], scenario.name


def of_the_fake(home: Path) -> list[dict[str, Any]]:
    async def all_of_them() -> list[dict[str, Any]]:
        sandbox = FakeSandbox(RealClock(), home / "agent")
        assert (await sandbox.self_test()).backend == "fake"
        await sandbox.clear()
        found = []
        for number, scenario in enumerate(SCENARIOS, 1):
            sandbox.script, sandbox.obeys_sigterm = scenario.fake, not scenario.stubborn
            found.append(await run(sandbox, home, number, scenario))
        await sandbox.close()
        assert sandbox.violations == []
        return found

    return asyncio.run(all_of_them())


def of_the_real_one(home: Path) -> list[dict[str, Any]]:
    async def all_of_them() -> list[dict[str, Any]]:
        sandbox = Bubblewrap(RealClock(), home / "agent", replace(SETTINGS, poll_s=0.05))
        assert (await sandbox.self_test()).backend == "bubblewrap"
        await sandbox.clear()
        found = [
            await run(sandbox, home, number, scenario)
            for number, scenario in enumerate(SCENARIOS, 1)
        ]
        await sandbox.close()
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("which", [of_the_fake, of_the_real_one])
def test_a_sandbox_keeps_its_promises(which: Callable[[Path], list[dict[str, Any]]]) -> None:
    problems = []
    for scenario, seen in zip(SCENARIOS, in_child(which, "user"), strict=True):
        try:
            check(scenario, seen)
        except AssertionError as problem:
            problems.append(problem)
    if problems:
        raise ExceptionGroup(f"{len(problems)} of {len(SCENARIOS)} scenarios", problems)
