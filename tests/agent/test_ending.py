"""How an agent ends: with attempts that are to continue, that start meanwhile, and when drained."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from client_agent.payloads.store import Payloads
from client_agent.run import runner
from client_agent.run.runner import EndRequests
from shared.wire import AgentHealth
from tests.kit.agent import SERVER
from tests.kit.agent_http import AgentClient, calling
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeProcess

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
async def test_an_attempt_that_is_to_continue_is_waited_for_until_a_second_signal(
    tmp_path, again
) -> None:
    asked, clock = EndRequests(), SimClock()
    agent, task = await serving(tmp_path, asked, clock)
    for key, how in (("1.1", "continue"), ("2.1", "resubmit")):
        await agent.started(key, on_shutdown=how)
    await agent.submit("3.1", on_shutdown="continue")  # it waits
    first = await agent.sandbox.process("1.1")
    asked.on_stop_signal()
    while len(agent.sandbox.live) > 1:
        await clock.settle()
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
        while not asked.waits:
            await clock.settle()
    await task
    assert await states(tmp_path) == {"1.1": COMPLETED}


async def test_what_starts_while_the_agent_stops_gets_an_end(tmp_path, monkeypatch) -> None:
    """Or the next start would take it for an attempt that died with the agent."""
    start = Payloads.start
    leave = asyncio.Event()

    async def stop_meanwhile(*args):
        running = await start(*args)
        leave.set()
        await agent.clock.settle()
        return running

    with monkeypatch.context() as patch:
        patch.setattr(Payloads, "start", stop_meanwhile)
        async with calling(tmp_path / "1") as agent:
            await agent.submit("1.1")
            await leave.wait()
    with contextlib.ExitStack() as held:
        async with calling(tmp_path / "2") as other:
            at = held.enter_context(other.sandbox.held("up"))
            await other.submit("1.1")
            await at.wait()
            async with other.stream() as stream:
                await stream.until("1.1", "Running")
            asyncio.get_running_loop().call_later(0.01, held.close)
    assert agent.sandbox.starts == other.sandbox.starts == {}
    for home in ("1", "2"):
        assert await states(tmp_path / home) == {"1.1": STOPPED}


async def test_a_second_signal_is_one_too_many_where_nothing_continues() -> None:
    asked = EndRequests()
    assert [asked.on_stop_signal(), asked.on_stop_signal()] == [False, True]


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
        for number, payload_id in enumerate(ids, 1):
            query = f"?key={number}.1&server={SERVER}"
            await agent.call("DELETE", f"/payloads/{payload_id}{query}")
        while not asked.stop.is_set():
            await clock.advance(1.0)


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
            if stopped and waited_s == 50.0:
                asked.on_stop_signal()
        assert (waited_s >= runner.FETCH_S) is not stopped
    async with calling(tmp_path) as agent:  # nothing was lost
        _, listing = await agent.call("GET", "/payloads")
        assert [one["status"] for one in listing["payloads"]] == ["Completed"]
