"""One suite that the real sandbox and the fake one pass: what the fake promises to the tests of the
agent is what the agent gets.

Each scenario says what the test does with the attempt, and what run.sh does: as a script, and as
calls of the fake. The real one runs as a user only.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from client_agent.sandbox.base import Launch, OutputListener, Process
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from shared.clock import RealClock
from shared.wire import Reason
from tests.kit.child import in_child
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.waiting import until
from tests.sandbox.real_sandbox import SETTINGS, SMALL, unpack


class Heard:
    """What a listener of an attempt hears."""

    def __init__(self) -> None:
        self.output = {"stdout": b"", "stderr": b""}

    def on_output(self, stream: str, data: bytes) -> int:
        self.output[stream] += data
        return 0

    def on_stored(self, stream: str) -> None:
        pass


OBEYS: Final = "echo begun; sleep 1000 & wait\n"
IGNORES: Final = "trap '' TERM; echo begun; while :; do sleep 1000 & wait; done\n"
WRITES: Final = "mkdir made; printf 4242 > made/out.txt; echo out; echo err >&2\n"
LEFT: Final = {"made/out.txt": b"4242", "data.txt": b"42"}

STEPS: Final[Mapping[str, Callable[[Process], object]]] = {
    "go": lambda process: process.go(),
    "cancel": lambda process: process.stop(None, "cancelled"),
    "silent": lambda process: process.stop(Reason.HEARTBEAT_TIMEOUT, "silent"),
    "stop": lambda process: process.stop(Reason.SHUTDOWN, "stopped"),
    "kill": lambda process: process.stop(Reason.SHUTDOWN, "stopped", grace=False),
}


def writes(process: FakeProcess) -> None:
    process.log(b"out\n", b"err\n")
    process.write("made/out.txt", process.read("data.txt") * 2)
    process.finish()


def prints_unended(process: FakeProcess) -> None:
    process.log(b"no newline")
    process.finish()


def begins(process: FakeProcess) -> None:
    process.log(b"begun\n")


class Scenario(NamedTuple):
    """What happens, and what is seen of it.

    Attributes:
        does: names in ``STEPS``; "begun": once it has said something; "ended": once it has ended.
        code: None: run.sh did not end by itself; -1: it is not compared.
        why: the reason of the end, and what its message says.
    """

    name: str
    script: str
    fake: Callable[[FakeProcess], None]
    does: str = "go"
    code: int | None = 0
    why: tuple[Reason | None, str] = (None, "")
    out: bytes = b""
    err: bytes = b""
    limits: tuple[float, float] = (30.0, 10.0)
    """Wall time and grace."""


BEGUN = b"begun\n"
FAILED, ENDED = Reason.EXIT_CODE, FakeProcess.finish
STOPPED, SILENT = (Reason.SHUTDOWN, "stopped"), (Reason.HEARTBEAT_TIMEOUT, "silent")
LATE = (Reason.TIMEOUT, "")
SCENARIOS = [
    Scenario("it writes", WRITES, writes, out=b"out\n", err=b"err\n"),
    Scenario("go is said twice", "exit 0\n", ENDED, "go go"),
    Scenario("it fails", "exit 3\n", lambda it: it.finish(3), code=3, why=(FAILED, "code 3")),
    Scenario("it asks for later", "exit 75\n", lambda it: it.finish(75), code=75, why=(FAILED, "")),
    Scenario("no newline", "printf 'no newline'\n", prints_unended, out=b"no newline"),
    Scenario("it never goes", "echo begun\n", begins, "cancel", None),
    Scenario("it goes after a stop", "echo begun\n", begins, "stop go", None, STOPPED),
    Scenario("cancelled", OBEYS, begins, "go begun cancel", 143, out=BEGUN),
    Scenario("stubborn", IGNORES, begins, "go begun cancel", None, out=BEGUN, limits=(30, 0.2)),
    Scenario("killed", IGNORES, begins, "go begun kill", None, STOPPED, BEGUN),
    Scenario("first cause", IGNORES, begins, "go begun silent kill", None, SILENT, BEGUN),
    Scenario("a stop comes too late", "exit 0\n", ENDED, "go ended kill"),
    Scenario("the time is over", OBEYS, begins, "go", -1, LATE, BEGUN, limits=(0.5, 10)),
    Scenario("late and stubborn", IGNORES, begins, "go", None, LATE, BEGUN, limits=(0.5, 0.2)),
    Scenario("no limit of time", "exit 0\n", ENDED, limits=(0.0, 10.0)),
]


async def check(sandbox: Any, home: Path, number: int, scenario: Scenario) -> None:
    name = f"attempt-{number}"
    workspace = await sandbox.prepare(name, 0, SMALL)
    root = Path(f"/proc/self/fd/{workspace.fd}")
    assert list(root.iterdir()) == []
    unpack({"run.sh": scenario.script, "data.txt": "42"}, workspace)
    heard, inits = Heard(), list[int]()
    listener: OutputListener = heard
    env = {"FERRYMAN_JOB_ID": str(number), "FERRYMAN_ATTEMPT": "1"}
    logs = home / f"{name}.stdout", home / f"{name}.stderr"
    argv = ("bash", "run.sh")
    launch = Launch(argv, env, *scenario.limits, *logs, listener=listener, on_init=inits.append)
    process = await workspace.start(launch)
    assert [log.read_bytes() for log in logs] == [b"", b""], "the gate is closed"
    for step in scenario.does.split():
        if step == "begun":
            await until(lambda: bool(heard.output["stdout"]))
        elif step == "ended":
            await process.wait()
        else:
            STEPS[step](process)
    ended = await process.wait()
    assert await process.wait() == ended
    files = {name: (root / name).read_bytes() for name in LEFT if (root / name).exists()}
    await workspace.destroy()
    reason, message = scenario.why
    assert files == (LEFT if scenario.script == WRITES else {"data.txt": b"42"})
    assert (ended.reason, ended.certain) == (reason, True)
    assert message in ended.message
    assert scenario.code in (ended.exit_code, -1)
    said = [scenario.out, scenario.err]
    assert [log.read_bytes() for log in logs] == said
    assert [*heard.output.values()] == said
    assert inits in ([], [process.pid])
    assert not Path(workspace.path).exists()
    assert reason is not Reason.TIMEOUT or ended.usage.wall_s >= scenario.limits[0]


async def problems_of(sandbox: Any, home: Path) -> list[str]:
    await sandbox.self_test()
    await sandbox.clear()
    problems = []
    for number, scenario in enumerate(SCENARIOS, 1):
        if isinstance(sandbox, FakeSandbox):
            sandbox.script, sandbox.obeys_sigterm = scenario.fake, scenario.script != IGNORES
        try:
            await check(sandbox, home, number, scenario)
        except AssertionError as problem:
            problems.append(f"{scenario.name}: {problem}")
    await sandbox.close()
    assert not isinstance(sandbox, FakeSandbox) or sandbox.violations == []
    return problems


def of_the_fake(home: Path) -> list[str]:
    return asyncio.run(problems_of(FakeSandbox(RealClock(), home / "agent"), home))


def of_the_real_one(home: Path) -> list[str]:
    sandbox = Bubblewrap(RealClock(), home / "agent", replace(SETTINGS, poll_s=0.05))
    return asyncio.run(problems_of(sandbox, home))


@pytest.mark.parametrize("which", [of_the_fake, of_the_real_one])
def test_a_sandbox_keeps_its_promises(which: Callable[[Path], list[str]]) -> None:
    assert in_child(which, "user") == []
