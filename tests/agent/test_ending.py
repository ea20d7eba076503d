"""How an agent ends: with attempts that are to continue, and when it is drained."""

from __future__ import annotations

import asyncio

import pytest

from client_agent.run import runner
from client_agent.run.runner import EndRequests
from shared.wire import AgentHealth
from tests.kit.agent import SERVER
from tests.kit.agent_http import AgentClient, calling
from tests.kit.clock import SimClock


async def stop_with_three(tmp_path, asked: EndRequests, clock: SimClock) -> asyncio.Task[None]:
    """An agent that is asked to stop while one attempt continues, one does not, and one waits."""
    started = asyncio.Event()

    async def serve() -> None:
        async with calling(tmp_path, clock, asked, slots=2) as agent:
            for key, how in (("1.1", "continue"), ("2.1", "resubmit"), ("3.1", "continue")):
                await agent.submit(key, on_shutdown=how)
                if key != "3.1":
                    await agent.sandbox.process(key)
            serve.agent = agent  # type: ignore[attr-defined]
            started.set()
            await asked.stop.wait()

    task = asyncio.create_task(serve())
    await started.wait()
    agent: AgentClient = serve.agent  # type: ignore[attr-defined]
    first = await agent.sandbox.process("1.1")
    asked.on_stop_signal()
    while len(agent.sandbox.live) > 1:
        await clock.settle()
    assert first.alive
    assert not task.done()
    task.first = first  # type: ignore[attr-defined]
    return task


async def states(tmp_path) -> dict[str, tuple[str, str | None]]:
    async with calling(tmp_path, slots=1) as agent:
        _, listing = await agent.call("GET", "/payloads")
        return {one["key"]: (one["status"], one["reason"]) for one in listing["payloads"]}


async def test_an_attempt_that_is_to_continue_is_waited_for(tmp_path) -> None:
    asked, clock = EndRequests(), SimClock()
    task = await stop_with_three(tmp_path, asked, clock)
    await clock.advance(30.0)
    assert not task.done()
    task.first.finish()  # type: ignore[attr-defined]
    await task
    found = await states(tmp_path)
    assert found["2.1"] == ("Failed", "shutdown")
    assert found["3.1"][0] in ("Prepared", "Running")
    assert found["1.1"] == ("Completed", None)


async def test_an_attempt_whose_sandbox_comes_up_meanwhile_continues(tmp_path) -> None:
    """Its row may say Running already: an end as shut down would be a failure of the job."""
    asked, clock, coming, go_on = EndRequests(), SimClock(), asyncio.Event(), asyncio.Event()

    def hold(step: str) -> object:
        if step != "up":
            return None
        coming.set()
        return go_on.wait()

    async def serve() -> None:
        async with calling(tmp_path, clock, asked, slots=1) as agent:
            agent.sandbox.hook = hold
            agent.sandbox.script = lambda process: process.finish()
            await agent.submit("1.1", on_shutdown="continue")
            await asked.stop.wait()

    task = asyncio.create_task(serve())
    await coming.wait()
    asked.on_stop_signal()
    while not asked.waits:
        await clock.settle()
    go_on.set()
    await task
    assert (await states(tmp_path))["1.1"] == ("Completed", None)


async def test_a_second_signal_ends_what_was_to_continue_too(tmp_path) -> None:
    asked, clock = EndRequests(), SimClock()
    task = await stop_with_three(tmp_path, asked, clock)
    assert asked.waits
    assert not asked.on_stop_signal()
    await task
    assert (await states(tmp_path))["1.1"] == ("Failed", "shutdown")
    assert asked.on_stop_signal()


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
