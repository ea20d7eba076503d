"""The agent's routes for many payloads at once, as a Ferryman server uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client_agent.api import bulk
from client_agent.intake import orders
from client_agent.storage import shared_bundles
from shared.wire import ResultHeads
from tests.kit.agent_http import HELLO, SERVER, AgentClient, calling
from tests.kit.waiting import until


@pytest.fixture
async def agent(tmp_path) -> AsyncIterator[AgentClient]:
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


def bundles(tmp_path) -> int:
    return len(list((tmp_path / "agent" / "bundles").iterdir()))


def order(agent: AgentClient, key: str, files=HELLO, **more: Any) -> dict[str, Any]:
    data, digest = agent.bundle(files)
    wanted = agent.order(key, data, digest, keep_bundle=True, **more)
    return wanted.model_dump(mode="json")


async def post_orders(agent: AgentClient, *wanted: dict[str, Any]) -> list[dict[str, Any]]:
    status, body = await agent.call("POST", "/orders", json={"orders": wanted})
    assert status == 200, body
    return list(body["answers"])


async def fetch(agent: AgentClient, *refs: dict[str, Any]) -> tuple[ResultHeads, bytes]:
    async with agent.http.post("/results", json={"payloads": refs}) as response:
        assert response.status == 200, await response.text()
        head, _, body = (await response.read()).partition(b"\n")
    return ResultHeads.model_validate_json(head), body


async def test_a_bundle_is_sent_once_for_many_orders(agent, tmp_path) -> None:
    await agent.submit("1.1", keep_bundle=True)
    answers = await post_orders(agent, *(order(agent, f"{n}.1") for n in range(2, 6)))
    assert [one["payload"]["key"] for one in answers] == ["2.1", "3.1", "4.1", "5.1"]
    assert bundles(tmp_path) == 1

    async def check(n: int) -> None:
        process = await agent.sandbox.process(f"{n}.1")
        assert process.read("run.sh") == HELLO["run.sh"]
        process.finish()

    await asyncio.gather(*map(check, range(1, 6)))
    for one in answers:
        await agent.ended(one["payload"]["id"])
    assert bundles(tmp_path) == 1  # more may come
    again = await post_orders(agent, order(agent, "2.1"), order(agent, "6.1"))
    assert [one["payload"]["status"] for one in again] == ["Completed", "Prepared"]
    await agent.sandbox.finish("6.1")
    await agent.ended(again[1]["payload"]["id"])
    assert agent.sandbox.starts == {f"{n}.1": 1 for n in range(1, 7)}
    await agent.clock.advance(shared_bundles.KEEP_S + 60)
    await until(lambda: bundles(tmp_path) == 0)
    (missing,) = await post_orders(agent, order(agent, "7.1"))
    assert (missing["status"], missing["code"]) == (409, "bundle_missing")


async def test_each_order_is_judged_by_itself(agent) -> None:
    await agent.submit("1.1", keep_bundle=True)
    await agent.call("POST", f"/keys/{SERVER}/8.1/settle")
    await agent.call("POST", f"/keys/{SERVER}/9.2/settle")
    answers = await post_orders(
        agent,
        order(agent, "2.1"),
        order(agent, "3.1", {"run.sh": b"another"}),
        order(agent, "8.1"),
        order(agent, "9.1"),
        order(agent, "bad key"),
        order(agent, "4.1", env={"HOME": "x"}),
        order(agent, "1.1", {"run.sh": b"another"}),
        order(agent, "5.1", inputs={"size": 1, "sha256": "00"}),
        order(agent, "6.1", server="another-server"),
        order(agent, "7.1"),
    )
    assert [one["code"] for one in answers] == [
        "",
        "bundle_missing",
        "key_refused",
        "stale_attempt",
        "invalid_order",
        "invalid_order",
        "digest_mismatch",
        "invalid_order",
        "bundle_missing",
        "",
    ]
    await agent.sandbox.finish("1.1", "2.1", "7.1")


async def test_many_are_acknowledged_at_once(agent, tmp_path) -> None:
    ids = [await agent.completed(f"{n}.1") for n in range(1, 4)]
    running = (await agent.submit("9.1"))[1]["id"]
    refs = [{"id": one, "key": f"{n}.1"} for n, one in enumerate(ids, 1)]
    refs[2]["key"] = "7.1"
    refs += [{"id": running}, {"id": 999}]
    query = {"server": SERVER}
    call = ("POST", "/payloads/acknowledge")
    for _ in range(2):
        status, body = await agent.call(*call, json={"payloads": refs}, params=query)
        refused = {str(ids[2]): "payload_not_found", str(running): "not_ended"}
        assert (status, body["refused"]) == (200, refused)
    left = {path.name for path in (tmp_path / "agent" / "results").iterdir()}
    assert left == {f"{ids[2]}.zip"}
    await agent.sandbox.finish("9.1")


@pytest.mark.parametrize("route", ["/orders", "/results", "/payloads/acknowledge"])
async def test_what_is_no_list_or_too_long_is_refused(agent, route, monkeypatch) -> None:
    for body in (b"", b"[]", b'{"orders": 1, "payloads": [{"id": "x"}]}'):
        status, answer = await agent.call("POST", route, data=body)
        assert (status, answer["code"][:7]) == (400, "invalid")
    monkeypatch.setattr(bulk, "MAX_PAYLOADS", 2)
    monkeypatch.setattr(orders, "MAX_ORDERS", 2)
    many = {"payloads": [{"id": n} for n in range(3)]}
    many["orders"] = [order(agent, f"{n}.1") for n in range(1, 4)]
    assert (await agent.call("POST", route, json=many))[0] == 413
    monkeypatch.setattr(bulk, "MAX_BODY", 10)
    assert (await agent.call("POST", route, json=many))[0] == 413


async def test_an_order_has_a_key_that_can_be_stored(agent) -> None:
    listed = {"orders": [order(agent, f"{2**63}.1")]}
    status, answer = await agent.call("POST", "/orders", json=listed)
    assert (status, answer["answers"][0]["code"]) == (200, "invalid_order")


async def test_many_at_once_need_the_token_as_one_does(tmp_path) -> None:
    async with calling(tmp_path, tokens=["t" * 32]) as agent:
        for route in ("/orders", "/results", "/payloads/acknowledge"):
            headers = {"Authorization": "Bearer wrong"}
            status, _ = await agent.call("POST", route, json={}, headers=headers)
            assert status == 401
