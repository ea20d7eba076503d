"""The model of an agent and a real agent promise a server the same: each scenario is asked of both,
over HTTP.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from shared.wire import AgentHealth, Order, PayloadDoc, PayloadList, PayloadsRequest
from tests.kit.agent import LIMITS
from tests.kit.agent_http import calling
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent
from tests.kit.fake_sandbox import FakeSandbox
from tests.kit.raw_archives import write_bundle
from tests.kit.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUMBERS: Final = itertools.count(1)


class Side:
    """One of the two, and what makes its attempts end."""

    def __init__(
        self, http: aiohttp.ClientSession, by: FakeAgent | FakeSandbox, folder: Path
    ) -> None:
        self.http, self._by, self.folder = http, by, folder
        self.server = f"server-{next(NUMBERS)}"
        self.bundle, self.digest = b"", ""

    async def call(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        async with self.http.request(method, path, **more) as answer:
            body = await answer.read()
            return answer.status, json.loads(body) if "json" in answer.content_type else body

    def order(self, key: str, server: str = "", **changed: Any) -> Order:
        given: dict[str, Any] = {
            "server": server or self.server,
            "key": key,
            "service": "example",
            "user_id": "ann",
            "timeout_s": 60.0,
            "limits": LIMITS,
            "bundle_digest": self.digest,
            "bundle_size": len(self.bundle),
        }
        return Order(**(given | changed))

    async def post(
        self, *orders: Order, bundles: bool = True, acknowledge: Any = ()
    ) -> tuple[list[Any], Any]:
        """``POST /payloads``: (code or payload) of each order, and what is kept."""
        size = len(self.bundle) if bundles else 0
        head = PayloadsRequest(
            orders=list(orders),
            sizes=[size] * len(orders),
            server=self.server,
            acknowledge=list(acknowledge),
        )
        body = head.model_dump_json().encode() + b"\n" + self.bundle * (len(orders) * bundles)
        status, found = await self.call("POST", "/payloads", data=body)
        assert status == 200, found
        answers = [one["payload"] or (one["status"], one["code"]) for one in found["answers"]]
        return answers, found["refused"]

    async def submit(self, order: Order) -> tuple[int, Any]:
        """``POST /submit``."""
        form = aiohttp.FormData()
        form.add_field("order", order.model_dump_json())
        form.add_field("bundle", self.bundle, filename="b.zip", content_type="application/zip")
        return await self.call("POST", "/submit", data=form)

    async def order_of(self, files: dict[str, bytes], key: str) -> Order:
        """An order of another bundle, which is the one to send from now on."""
        path = self.folder / self.server
        self.digest = write_bundle(path, files).digest
        self.bundle = path.read_bytes()
        path.unlink()
        return self.order(key)

    async def runs(self, key: str, **changed: Any) -> Any:
        """The payload of a new order, which runs."""
        ((found,), _) = await self.post(self.order(key, **changed))
        if isinstance(self._by, FakeSandbox):
            await self._by.process(key)
            return await eventually(lambda: self.settle(key), lambda one: one.status == "Running")
        return PayloadDoc.model_validate(found)

    async def end(self, key: str, exit_code: int = 0) -> PayloadDoc:
        """Its run.sh ends."""
        if isinstance(self._by, FakeSandbox):
            (await self._by.process(key)).finish(exit_code)
        else:
            found = self._by.model.find(self.server, key)
            assert found is not None
            await self._by.end(found, "Failed" if exit_code else "Completed")
        async with self.http.get("/events", params={"server": self.server}) as stream:
            async for line in stream.content:
                payload = json.loads(line).get("payload")
                if payload and payload["key"] == key and payload["ended_at"]:
                    return PayloadDoc.model_validate(payload)
        raise AssertionError("the stream ended")

    async def ended(self, key: str, exit_code: int = 0) -> PayloadDoc:
        await self.runs(key)
        return await self.end(key, exit_code)

    async def settle(self, key: str, **query: str) -> Any:
        status, found = await self.call("POST", f"/keys/{self.server}/{key}/settle", params=query)
        assert status == 200, found
        payload = found["payload"]
        return None if payload is None else PayloadDoc.model_validate(payload)

    async def listed(self, server: str = "") -> PayloadList:
        query = {"server": server or self.server, "after": "0"}
        return PayloadList.model_validate((await self.call("GET", "/payloads", params=query))[1])

    async def code(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        status, found = await self.call(method, path, **more)
        return status, found["code"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["model", "agent"])
async def http(
    request: pytest.FixtureRequest, module_folder: Path
) -> AsyncIterator[tuple[aiohttp.ClientSession, FakeAgent | FakeSandbox]]:
    async with AsyncExitStack() as stack:
        if request.param == "agent":
            real = await stack.enter_async_context(calling(module_folder, SimClock(), slots=50))
            yield real.http, real.sandbox
            return
        model = FakeAgent("node-1", "some-id", ends="Running")
        url = await stack.enter_async_context(model.listening())
        yield await stack.enter_async_context(aiohttp.ClientSession(url)), model


@pytest_asyncio.fixture(loop_scope="module")
async def side(
    http: tuple[aiohttp.ClientSession, FakeAgent | FakeSandbox], module_folder: Path
) -> AsyncIterator[Side]:
    """Each scenario is another server, with a bundle of its own."""
    found = Side(*http, module_folder)
    await found.order_of({"run.sh": found.server.encode()}, "1.1")
    yield found


async def test_it_says_who_it_is(side: Side) -> None:
    status, found = await side.call("GET", "/health")
    health = AgentHealth.model_validate(found)
    assert (status, health.status, health.agent, health.ready) == (200, "ok", "node-1", True)
    assert health.agent_id
    assert health.slots


async def test_an_order_becomes_a_payload_by_either_way(side: Side) -> None:
    ((many,), kept) = await side.post(side.order("1.1"))
    status, one = await side.submit(side.order("2.1"))
    assert (status, kept) == (200, {})
    for key, found in (("1.1", many), ("2.1", one)):
        payload = PayloadDoc.model_validate(found)
        said = payload.server, payload.key, payload.bundle_digest
        assert said == (side.server, key, side.digest)
        assert payload.status in ("Prepared", "Running")
        assert payload.result is None
    assert many["id"] != one["id"]


async def test_an_order_that_is_repeated_starts_nothing(side: Side) -> None:
    ended = await side.ended("1.1")
    ((many,), _) = await side.post(side.order("1.1"))
    _, one = await side.submit(side.order("1.1"))
    for found in (many, one):
        assert (found["id"], found["status"]) == (ended.id, "Completed")
    assert len((await side.listed()).payloads) == 1


async def test_a_key_stands_for_one_bundle(side: Side) -> None:
    await side.runs("1.1")
    other = await side.order_of({"run.sh": b"another"}, "1.1")
    assert (await side.post(other))[0] == [(409, "digest_mismatch")]
    status, found = await side.submit(other)
    assert (status, found["code"]) == (409, "digest_mismatch")


async def test_each_order_has_its_own_answer(side: Side) -> None:
    await side.settle("2.1")
    answers, _ = await side.post(*[side.order(f"{number}.1") for number in (1, 2, 3)])
    assert [isinstance(one, dict) for one in answers] == [True, False, True]
    assert answers[1] == (409, "key_refused")


async def test_a_key_that_was_settled_never_starts(side: Side) -> None:
    assert await side.settle("1.1") is None
    assert await side.settle("1.1") is None
    assert (await side.post(side.order("1.1")))[0] == [(409, "key_refused")]
    status, found = await side.submit(side.order("1.1"))
    assert (status, found["code"]) == (409, "key_refused")
    assert (await side.listed()).payloads == []


async def test_a_key_that_is_known_is_settled_by_its_payload(side: Side) -> None:
    running = await side.runs("1.1")
    found = await side.settle("1.1")
    assert (found.id, found.status) == (running.id, "Running")
    ended = await side.settle("1.1", kill="1")
    assert (ended.status, ended.killed) == ("Killed", True)
    assert (await side.settle("1.1", kill="1")).status == "Killed"


@pytest.mark.parametrize("settled", [False, True])
async def test_an_attempt_before_one_that_is_known_never_starts(side: Side, settled: bool) -> None:
    if settled:
        await side.settle("1.2")
    else:
        await side.runs("1.2")
    assert (await side.post(side.order("1.1")))[0] == [(409, "stale_attempt")]
    ((found,), _) = await side.post(side.order("1.3"))
    assert found["key"] == "1.3"


async def test_keys_of_two_servers_are_two_payloads(side: Side) -> None:
    mine = await side.runs("1.1")
    other = side.order("1.1", server=f"{side.server}-b")
    ((others,), _) = await side.post(other)
    assert others["id"] != mine.id
    assert [one.id for one in (await side.listed()).payloads] == [mine.id]
    assert [one.id for one in (await side.listed(other.server)).payloads] == [others["id"]]


async def test_a_kill_ends_what_runs_and_nothing_that_has_ended(side: Side) -> None:
    running, done = await side.runs("1.1"), await side.ended("2.1")
    for payload, status in ((running, "Killed"), (done, "Completed")):
        for _ in range(2):
            code, found = await side.call(
                "POST", f"/kill/{payload.id}", params={"key": payload.key}
            )
            assert (code, found["id"], found["status"]) == (200, payload.id, status)


async def test_a_number_counts_only_with_its_key(side: Side) -> None:
    payload = await side.runs("1.1")
    for number, key in ((payload.id, "9.9"), (10**9, "1.1")):
        query = {"key": key, "server": side.server}
        assert await side.code("POST", f"/kill/{number}", params=query) == (
            404,
            "payload_not_found",
        )
    query = {"key": "9.9", "server": side.server}
    path = f"/payloads/{payload.id}"
    assert await side.code("DELETE", path, params=query) == (404, "payload_not_found")
    assert (await side.settle("1.1")).status == "Running"


@pytest.mark.parametrize(("exit_code", "status"), [(0, "Completed"), (3, "Failed")])
async def test_a_result_is_the_one_that_was_announced(
    side: Side, exit_code: int, status: str
) -> None:
    ended = await side.ended("1.1", exit_code)
    assert ended.status == status
    assert ended.result is not None
    _, content = await side.call("GET", f"/retrieve_partial/{ended.id}")
    assert len(content) == ended.result.size
    assert hashlib.sha256(content).hexdigest() == ended.result.sha256


async def test_what_runs_can_be_fetched_so_far(side: Side) -> None:
    running = await side.runs("1.1")
    status, content = await side.call("GET", f"/retrieve_partial/{running.id}")
    assert (status, content[:2]) == (200, b"PK")
    assert (await side.settle("1.1")).status == "Running"


async def test_what_was_acknowledged_is_forgotten_and_its_key_is_not(side: Side) -> None:
    ended = await side.ended("1.1")
    query = {"key": "1.1", "server": side.server}
    for _ in range(2):
        assert (await side.call("DELETE", f"/payloads/{ended.id}", params=query))[0] == 204
    assert (await side.listed()).payloads == []
    assert await side.code("GET", f"/retrieve_partial/{ended.id}") == (404, "cleaned")
    ((found,), _) = await side.post(side.order("1.1"))
    assert (found["id"], found["status"]) == (ended.id, "Cleaned")


async def test_what_runs_cannot_be_acknowledged(side: Side) -> None:
    running = await side.runs("1.1")
    query = {"key": "1.1", "server": side.server}
    assert await side.code("DELETE", f"/payloads/{running.id}", params=query) == (409, "not_ended")
    assert (await side.call("DELETE", f"/payloads/{10**9}", params=query))[0] == 204


async def test_acknowledgements_go_along_with_orders(side: Side) -> None:
    ended, running = await side.ended("1.1"), await side.runs("2.1")
    refs = [
        {"id": ended.id, "key": "1.1"},
        {"id": running.id, "key": "2.1"},
        {"id": 10**9, "key": "3.1"},
    ]
    ((found,), kept) = await side.post(side.order("4.1"), acknowledge=refs)
    assert (found["key"], kept) == ("4.1", {str(running.id): "not_ended"})
    wrong = [{"id": running.id, "key": "9.9"}]
    assert (await side.post(acknowledge=wrong))[1] == {str(running.id): "payload_not_found"}
    assert {one.key for one in (await side.listed()).payloads} == {"2.1", "4.1"}


async def test_events_tell_what_is_there_and_then_each_change(side: Side) -> None:
    await side.runs("1.1")
    query = {"server": side.server, "after": "0"}
    async with side.http.get("/events", params=query) as stream:
        seen = list[tuple[int, str, str]]()
        async for line in stream.content:
            event = json.loads(line)
            if payload := event.get("payload"):
                seen.append((event["seq"], payload["key"], payload["status"]))
                if payload["status"] == "Running" and payload["key"] == "1.1":
                    await side.ended("2.1")
            if seen and seen[-1][1:] == ("2.1", "Completed"):
                break
    assert [one[0] for one in seen] == sorted(one[0] for one in seen)
    assert {one[1] for one in seen} == {"1.1", "2.1"}


async def test_events_after_a_list_begin_where_it_ends(side: Side) -> None:
    await side.ended("1.1")
    seq = (await side.listed()).seq
    query = {"server": side.server, "after": str(seq)}
    async with side.http.get("/events", params=query) as stream:
        await side.runs("2.1")
        async for line in stream.content:
            if payload := json.loads(line).get("payload"):
                assert payload["key"] == "2.1"
                break


async def test_a_small_result_comes_behind_its_line(side: Side) -> None:
    ended = await side.ended("1.1")
    assert ended.result is not None
    query = {"server": side.server, "after": "0", "results": str(1 << 20)}
    content = b""
    async with side.http.get("/events", params=query) as stream:
        async for line in stream.content:
            event = json.loads(line)
            if event.get("payload") and event["payload"]["ended_at"]:
                assert event["result_bytes"] == ended.result.size
                content = await stream.content.readexactly(ended.result.size)
                break
    assert hashlib.sha256(content).hexdigest() == ended.result.sha256


async def test_a_bundle_that_it_keeps_need_not_be_sent_again(side: Side) -> None:
    assert (await side.post(side.order("1.1"), bundles=False))[0] == [(409, "bundle_missing")]
    await side.post(side.order("1.1", keep_bundle=True))
    ((found,), _) = await side.post(side.order("2.1", keep_bundle=True), bundles=False)
    assert (found["key"], found["bundle_digest"]) == ("2.1", side.digest)
    other = side.order("3.1", server=f"{side.server}-b")
    assert (await side.post(other, bundles=False))[0] == [(409, "bundle_missing")]


async def test_there_is_a_code_for_what_is_not_there(side: Side) -> None:
    assert await side.code("GET", "/no/such/route") == (404, "no_such_route")
    assert await side.code("GET", f"/retrieve_partial/{10**9}") == (404, "payload_not_found")
