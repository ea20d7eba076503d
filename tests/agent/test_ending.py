"""An agent that stops, is drained or killed at any step, or finds another database than before."""

import asyncio
import contextlib
import hashlib
import inspect
import itertools
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from client_agent.payloads.store import Payloads
from client_agent.run import runner
from client_agent.run.attempt import Attempt
from client_agent.run.runner import EndRequests
from client_agent.storage import folders
from client_agent.storage.folders import ROW_BYTES, Folders
from shared.files import durable
from shared.sqlite.database import Database
from shared.wire import AgentHealth
from tests.kit.agent_http import AgentClient, Sent, calling
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.raw_archives import zipped
from tests.kit.waiting import eventually, until

STOPPED = ("Failed", "shutdown", True)
COMPLETED = ("Completed", None, False)


async def serving(
    tmp_path, asked: EndRequests, clock: SimClock, slots: int = 2
) -> tuple[AgentClient, asyncio.Task[None]]:
    """An agent, and the task that ends once it was asked to stop and has."""
    ready: asyncio.Future[AgentClient] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with calling(tmp_path, clock, asked, slots=slots) as agent:
            ready.set_result(agent)
            await asked.stop.wait()

    task = asyncio.create_task(serve())
    return await ready, task


async def states(tmp_path) -> dict[str, tuple[str, str | None, bool]]:
    """What it says of its payloads when it was started again."""
    async with calling(tmp_path, slots=1) as agent:
        _, listed = await agent.call("GET", "/payloads")
    return {
        one["key"]: (one["status"], one["reason"], one["interrupted"]) for one in listed["payloads"]
    }


@pytest.mark.parametrize("again", [False, True])
async def test_what_is_to_continue_is_waited_for_until_a_second_signal(tmp_path, again) -> None:
    asked, clock = EndRequests(), SimClock()
    agent, task = await serving(tmp_path, asked, clock)
    for key, how in (("1.1", "continue"), ("2.1", "resubmit")):
        await agent.started(key, on_shutdown=how)
    await agent.submit("3.1", on_shutdown="continue")  # it waits
    first = await agent.sandbox.process("1.1")
    asked.on_stop_signal()
    await until(lambda: len(agent.sandbox.live) == 1)
    await clock.advance(30.0)
    assert (first.alive, task.done(), bool(asked.waits)) == (True, False, True)
    if again:
        assert not asked.on_stop_signal()
    else:
        first.finish()
    await task
    found = await states(tmp_path)
    assert found["3.1"][0] in ("Prepared", "Running")
    assert (found["1.1"], found["2.1"]) == (STOPPED if again else COMPLETED, STOPPED)
    if again:
        assert asked.on_stop_signal(), "a third is one too many"


async def test_an_attempt_whose_sandbox_comes_up_meanwhile_continues(tmp_path) -> None:
    """Its row may say Running already: an end as shut down would be a failure of the job."""
    asked, clock = EndRequests(), SimClock()
    agent, task = await serving(tmp_path, asked, clock, slots=1)
    agent.sandbox.script = FakeProcess.finish
    with agent.sandbox.held("up") as coming:
        await agent.submit("1.1", on_shutdown="continue")
        await coming.wait()
        asked.on_stop_signal()
        await until(lambda: asked.waits)
    await task
    assert await states(tmp_path) == {"1.1": COMPLETED}


async def test_what_runs_is_asked_to_end_before_a_stop_kills_it(tmp_path) -> None:
    async with calling(tmp_path) as agent:
        _, process = await agent.started("1.1")
    assert process.asked_to_stop


async def test_what_starts_while_the_agent_stops_gets_an_end(tmp_path, monkeypatch) -> None:
    """Or the next start would take it for an attempt that died with the agent."""
    start, shut_down = Payloads.start, Attempt.shut_down
    leave, ending = asyncio.Event(), asyncio.Event()
    held = contextlib.ExitStack()

    async def stop_meanwhile(*args):
        running = await start(*args)
        leave.set()
        await ending.wait()
        return running

    def asked(attempt: Attempt, *, grace: bool) -> None:
        shut_down(attempt, grace=grace)
        ending.set()
        held.close()

    monkeypatch.setattr(Attempt, "shut_down", asked)
    with monkeypatch.context() as patch:
        patch.setattr(Payloads, "start", stop_meanwhile)
        async with calling(tmp_path / "1") as agent:
            await agent.submit("1.1")
            await leave.wait()
    async with calling(tmp_path / "2") as other:
        at = held.enter_context(other.sandbox.held("up"))
        await other.submit("1.1")
        await at.wait()
        async with other.stream() as stream:
            await stream.until("1.1", "Running")
    assert agent.sandbox.starts == other.sandbox.starts == {}
    for home in ("1", "2"):
        assert await states(tmp_path / home) == {"1.1": STOPPED}


async def test_a_drained_agent_finishes_what_it_has_and_waits_for_servers(tmp_path) -> None:
    asked, clock = EndRequests(), SimClock()
    async with calling(tmp_path, clock, asked, slots=1) as agent:
        ids = [(await agent.submit(f"{n}.1"))[1]["id"] for n in (1, 2)]
        asked.drain.set()
        await clock.advance(1.0)
        status, body = await agent.submit("3.1")
        assert (status, body["code"]) == (503, "draining")
        _, health = await agent.call("GET", "/health")
        said = AgentHealth.model_validate(health)
        assert (said.status, said.draining) == ("error", True)
        assert "draining" in said.message
        await agent.sandbox.finish("1.1", "2.1")  # one of them was only Prepared
        for payload_id in ids:
            await agent.ended(payload_id)
        await clock.advance(10.0)
        assert not asked.stop.is_set()
        for number, payload_id in enumerate(ids, 1):  # an order beside it is refused
            ref = {"id": payload_id, "key": f"{number}.1"}
            (refused,) = (await agent.post(agent.sent("3.1"), acknowledge=[ref]))["answers"]
            assert refused["code"] == "draining"

        async def stops() -> bool:
            await clock.advance(1.0)
            return asked.stop.is_set()

        await eventually(stops, bool)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_drained_agent_does_not_wait_for_ever(tmp_path, stopped) -> None:
    asked, clock = EndRequests(), SimClock()
    async with calling(tmp_path, clock, asked) as agent:
        await agent.completed()
        asked.drain.set()
        waited_s = 0.0
        while not asked.stop.is_set():
            await clock.advance(5.0)
            waited_s += 5.0
            assert waited_s < 2 * runner.FETCH_S
            if stopped and waited_s == 50.0:
                asked.on_stop_signal()
        assert (waited_s >= runner.FETCH_S) is not stopped
    async with calling(tmp_path) as agent:  # nothing was lost
        _, listing = await agent.call("GET", "/payloads")
        assert [one["status"] for one in listing["payloads"]] == ["Completed"]


KEYS = ("1.1", "2.1")


def leaves_its_name(process: FakeProcess) -> None:
    process.write("out", process.job.encode())
    if process.job == KEYS[1]:  # its result is a file
        process.write("large", os.urandom(2 * ROW_BYTES))
    process.finish()


class Copy(NamedTuple):
    """What an agent finds that was killed at a step, and what its server knew by then."""

    step: str
    home: Path
    starts: Counter[str]
    answered: dict[str, int]
    """Key -> payload."""
    fetched: set[str]
    """Keys whose results it had got."""


def copy_at_each_step(
    home: Path, patch: pytest.MonkeyPatch, agent: AgentClient, now: Copy
) -> list[Copy]:
    """Copies what is on the disk before and after each step that changes a file or a row."""
    found, numbers = list[Copy](), itertools.count()

    def look(step: str) -> None:
        there = home / str(next(numbers))
        starts, answered = Counter(agent.sandbox.starts), dict(now.answered)
        with contextlib.suppress(shutil.Error):  # what was removed in a thread meanwhile
            shutil.copytree(home / "agent", there / "agent")
        # A step in a thread stops nobody else: what was fetched meanwhile may be gone in the copy.
        found.append(Copy(step, there, starts, answered, set(now.fetched)))

    def around(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            look(f"before {name}")
            given = work(*args, **more)
            if inspect.isawaitable(given):
                return then(given)
            look(f"after {name}")
            return given

        async def then(given: Any) -> Any:
            answer = await given
            look(f"after {name}")
            return answer

        return call

    agent.sandbox.hook = look
    for where, name in (
        (Database, "write"),
        (durable, "fsync_folder"),
        (Folders, "seal_bundles"),
        (Folders, "seal_result"),
        (Folders, "remove_file"),
    ):
        patch.setattr(where, name, around(name, getattr(where, name)))
    return found


async def test_a_crash_at_any_step_loses_none_and_runs_none_twice(tmp_path, monkeypatch) -> None:
    now = Copy("", tmp_path, Counter(), {}, set())
    async with calling(tmp_path, slots=1) as agent:
        early = await agent.completed("9.1")
        agent.sandbox.script = leaves_its_name
        sent = [agent.sent(key, {"run.sh": key.encode()}) for key in KEYS]
        with monkeypatch.context() as patch:
            copies = copy_at_each_step(tmp_path, patch, agent, now)
            answer = await agent.post(*sent, acknowledge=[{"id": early, "key": "9.1"}])
            ids = [one["payload"]["id"] for one in answer["answers"]]
            now.answered.update(zip(KEYS, ids, strict=True))
            for key, payload_id in now.answered.items():
                await agent.ended(payload_id)
                now.fetched.add(key)
                await agent.forget(payload_id)
        agent.sandbox.hook = None
    assert len(copies) > 40, "or it cut nothing"
    taken = set()
    for copy in copies:
        try:
            async with asyncio.timeout(20):
                taken.add(await _starts_again(copy, sent, early))
        except BaseException as problem:
            problem.add_note(f"killed {copy.step}, at step {copies.index(copy)}")
            raise
    assert taken == {True, False}


async def _starts_again(copy: Copy, sent: list[Sent], early: int) -> bool:
    """Whether the orders had been taken."""
    async with calling(copy.home, slots=1) as after:
        after.sandbox.script = leaves_its_name
        for process in [*after.sandbox.live.values()]:  # it was quicker
            leaves_its_name(process)
        known = (await after.call("HEAD", f"/retrieve/{early + 1}"))[0] != 404
        assert known == ((await after.call("HEAD", f"/retrieve/{early + 2}"))[0] != 404)
        answer = await after.post(*sent)  # a server sends again what it has no answer for
        cleaned = (await after.settle("9.1"))[1]["payload"]["status"] == "Cleaned"
        held = [] if cleaned else [f"{early}.zip"]
        for key, one in zip(KEYS, answer["answers"], strict=True):
            payload_id = one["payload"]["id"]
            assert copy.answered.get(key, payload_id) == payload_id
            if one["payload"]["status"] == "Cleaned":
                assert key in copy.fetched
                continue
            ended = await after.ended(payload_id)
            assert ended["status"] in ("Completed", "Failed")
            assert ended["interrupted"] == (ended["status"] == "Failed")
            if ended["status"] == "Completed":
                held.append(f"{payload_id}.zip")
                assert (await after.zip(f"/retrieve/{payload_id}"))["out"] == key.encode()
        starts = copy.starts + after.sandbox.starts
        assert max(starts.values(), default=0) <= 1, "it ran twice"
        assert after.sandbox.violations == []
        # A bundle that waited is kept for a while: others may use it.
        await after.until_holds("staging", "logs", "results", names=held)
        assert len(after.names("bundles")) <= len(KEYS)
    return known


async def killed_while_it_runs(tmp_path: Path, change: Callable[[Path], None]) -> Path:
    """The folder of an agent that was killed with an attempt running, one waiting, one done."""
    async with calling(tmp_path, slots=1) as agent:
        done = await agent.completed("3.1")
        assert done == 1
        await agent.started("1.1")
        inputs = zipped({"in": b"of another"})
        about = {"size": len(inputs), "sha256": hashlib.sha256(inputs).hexdigest()}
        order, bundle = agent.sent("2.1", inputs=about)
        await agent.post_order(order, bundle + inputs)
        await until(lambda: len(agent.names("bundles")) == 3)
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "agent", copy / "agent")
    change(copy / "agent")
    return copy


async def test_files_of_nobody_are_removed_at_the_start_and_others_are_not(tmp_path) -> None:
    orphans = ("bundles/orphan", "results/2.zip", "staging/half", "logs/2.stdout")

    def change(home: Path) -> None:
        for name in orphans:
            (home / name).write_bytes(b"x")

    home = await killed_while_it_runs(tmp_path, change)
    async with calling(home, slots=1) as agent:
        assert not [name for name in orphans if (agent.data / name).exists()]
        assert agent.names("results") == ["1.zip"]
        process = await agent.sandbox.process("2.1")
        assert process.read("in") == b"of another"
        process.finish()
        assert (await agent.ended(3))["status"] == "Completed"
        lost = await agent.doc(2)
        assert (lost["reason"], lost["interrupted"]) == ("agent_error", True)
        assert lost["message"] == "the agent was killed while it ran"
        assert agent.sandbox.starts == {"2.1": 1}


async def test_no_end_is_stored_before_all_processes_are_dead(tmp_path, monkeypatch) -> None:
    async def cannot(_: FakeSandbox) -> None:
        raise OSError("a process of the previous run would not die")

    home = await killed_while_it_runs(tmp_path, lambda _: None)
    monkeypatch.setattr(FakeSandbox, "clear", cannot)
    with pytest.raises(OSError, match="would not die"):
        async with calling(home):
            pass
    with closing(sqlite3.connect(home / "agent" / "agent.sqlite")) as database:
        (state,) = database.execute("SELECT state FROM payloads WHERE id = 2").fetchone()
    assert state == "Running"


def databases(agent: AgentClient) -> list[Path]:
    return list(agent.data.glob("agent.sqlite*"))


async def test_another_database_loses_no_result_that_an_earlier_one_knew(tmp_path, monkeypatch):
    """The disk of the old one may not be mounted; and a new one gives the same numbers again."""
    monkeypatch.setattr(folders, "ROW_BYTES", 0)
    kept, copies = list[bytes](), dict[Path, bytes]()

    def aside() -> list[bytes]:
        folder = agent.data / "unknown"
        return [path.read_bytes() for path in sorted(folder.glob("*"))] if folder.exists() else []

    for number in range(3):
        async with calling(tmp_path) as agent:
            assert (aside(), agent.names("results")) == (kept, [])
            assert await agent.completed(f"{number + 1}.1") == 1
            kept.append((agent.data / "results" / "1.zip").read_bytes())
        copies = {path: path.read_bytes() for path in databases(agent)}
        if number < 2:
            for path in copies:
                path.unlink()
    async with calling(tmp_path) as agent:
        second = await agent.completed("9.1")
        result = (agent.data / "results" / f"{second}.zip").read_bytes()
    for path in databases(agent):
        path.unlink()
    for path, content in copies.items():  # an older one keeps its own
        path.write_bytes(content)
    (agent.data / "results" / "0.zip").write_bytes(b"of a payload that it knew once")
    async with calling(tmp_path) as agent:
        assert (agent.names("results"), aside()) == (["1.zip"], [*kept[:2], result])


async def test_a_user_and_the_last_words_are_not_on_the_disk_long_after_the_end(tmp_path) -> None:
    told = (b"somebody-to-forget", b"cannot read in.pdb")

    def found() -> list[bytes]:
        there = b"".join(path.read_bytes() for path in databases(agent))
        return [words for words in told if words in there]

    async with calling(tmp_path) as agent:
        payload_id, process = await agent.started(user_id=told[0].decode())
        process.log(stderr=told[1])
        process.finish(3)
        await agent.ended(payload_id)
        assert found() == [*told]
        await agent.forget(payload_id)
        for _ in range(10):  # cleaning comes once a minute
            await agent.clock.advance(30)
            await agent.call("GET", "/")
        await until(lambda: not found(), said=found)
