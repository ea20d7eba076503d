"""Many payloads in one request to an agent, as a Ferryman server sends them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client_agent.storage import shared_bundles
from tests.kit.agent_http import HELLO, SERVER, AgentClient, Sent, calling
from tests.kit.waiting import until


@pytest.fixture
async def agent(tmp_path) -> AsyncIterator[AgentClient]:
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


def order(agent: AgentClient, key: str, files=HELLO, **more: Any) -> Sent:
    """Without its bundle."""
    return agent.sent(key, files, keep_bundle=True, **more)[0], b""


async def post(agent: AgentClient, *orders: Sent) -> list[dict[str, Any]]:
    return list((await agent.post(*orders))["answers"])


async def test_a_bundle_is_sent_once_for_many_orders(agent) -> None:
    await agent.submit("1.1", keep_bundle=True)
    answers = await post(agent, *(order(agent, f"{n}.1") for n in range(2, 6)))
    assert [one["payload"]["key"] for one in answers] == ["2.1", "3.1", "4.1", "5.1"]
    assert len(agent.names("bundles")) == 1

    async def check(n: int) -> None:
        process = await agent.sandbox.process(f"{n}.1")
        assert process.read("run.sh") == HELLO["run.sh"]
        process.finish()

    await asyncio.gather(*map(check, range(1, 6)))
    for one in answers:
        await agent.ended(one["payload"]["id"])
    assert len(agent.names("bundles")) == 1, "more may come"
    again = await post(agent, order(agent, "2.1"), order(agent, "6.1"))
    assert [one["payload"]["status"] for one in again] == ["Completed", "Prepared"]
    await agent.sandbox.finish("6.1")
    await agent.ended(again[1]["payload"]["id"])
    assert agent.sandbox.starts == {f"{n}.1": 1 for n in range(1, 7)}
    await agent.clock.advance(shared_bundles.KEEP_S + 60)
    await until(lambda: not agent.names("bundles"))
    (missing,) = await post(agent, order(agent, "7.1"))
    assert (missing["status"], missing["code"]) == (409, "bundle_missing")


async def test_each_order_is_judged_by_itself(agent) -> None:
    await agent.submit("1.1", keep_bundle=True)
    await agent.call("POST", f"/keys/{SERVER}/8.1/settle")
    await agent.call("POST", f"/keys/{SERVER}/9.2/settle")
    judged = {
        "": order(agent, "2.1"),
        "key_refused": order(agent, "8.1"),
        "stale_attempt": order(agent, "9.1"),
        "invalid_order": order(agent, "4.1", env={"HOME": "x"}),
        "digest_mismatch": order(agent, "1.1", {"run.sh": b"another"}),
        "bundle_missing": order(agent, "6.1", server="another-server"),
    }
    answers = await post(agent, *judged.values(), order(agent, "7.1"))
    assert [one["code"] for one in answers] == [*judged, ""]
    await agent.sandbox.finish("1.1", "2.1", "7.1")


async def test_many_are_acknowledged_at_once(agent) -> None:
    ids = [await agent.completed(f"{n}.1") for n in range(1, 4)]
    running = (await agent.submit("9.1"))[1]["id"]
    refs = [{"id": one, "key": f"{n}.1"} for n, one in enumerate(ids, 1)]
    refs[2]["key"] = "7.1"
    refs += [{"id": running}, {"id": 999}]
    for _ in range(2):
        refused = {str(ids[2]): "payload_not_found", str(running): "not_ended"}
        assert (await agent.post(acknowledge=refs))["refused"] == refused
    assert agent.names("results") == [f"{ids[2]}.zip"]
    await agent.sandbox.finish("9.1")


async def test_many_at_once_need_the_token_as_one_does(tmp_path) -> None:
    async with calling(tmp_path, tokens=["t" * 32]) as agent:
        headers = {"Authorization": "Bearer wrong"}
        assert (await agent.call("POST", "/payloads", json={}, headers=headers))[0] == 401
