"""The model of an agent and a real agent promise a server the same: each scenario is asked of both,
over HTTP.
"""

import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from shared.wire import AgentHealth, PayloadDoc, PayloadList
from tests.kit.agent_http import AgentClient, Sent, calling, digest
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent
from tests.kit.fake_sandbox import FakeSandbox
from tests.kit.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUMBERS: Final = itertools.count(1)
NO_NUMBER: Final = 10**9
By = FakeAgent | FakeSandbox
"""What makes attempts end."""


class Side(AgentClient):
    """One of the two, spoken to for a server of one scenario, with a bundle of its own."""

    def __init__(self, http: aiohttp.ClientSession, by: By, folder: Path) -> None:
        sandbox: Any = by
        server = f"server-{next(NUMBERS)}"
        super().__init__("http://127.0.0.1:0", http, sandbox, SimClock(), folder, server)
        self._by, self.files = by, {"run.sh": server.encode()}

    def of(self, key: str, **changed: Any) -> Sent:
        return self.sent(key, self.files, **changed)

    async def answers(self, *sent: Sent) -> list[Any]:
        """Code or payload, of each order."""
        found = (await self.post(*sent))["answers"]
        return [one["payload"] or (one["status"], one["code"]) for one in found]

    async def codes(self, key: str, files: dict[str, bytes] | None = None) -> set[tuple[int, str]]:
        """Of what is refused by either way."""
        status, found = await self.submit(key, files or self.files)
        return {(status, found["code"]), *await self.answers(self.sent(key, files or self.files))}

    async def runs(self, key: str, **changed: Any) -> PayloadDoc:
        """The payload of a new order, which runs."""
        (found,) = await self.answers(self.of(key, **changed))
        if isinstance(self._by, FakeSandbox):
            await self._by.process(key)
            return await eventually(lambda: self.known(key), lambda one: one.status == "Running")
        return PayloadDoc.model_validate(found)

    async def end(self, key: str, exit_code: int = 0) -> PayloadDoc:
        if isinstance(self._by, FakeSandbox):
            (await self._by.process(key)).finish(exit_code)
        else:
            found = self._by.model.find(self.server, key)
            assert found is not None
            await self._by.end(found, "Failed" if exit_code else "Completed")
        async with self.stream(server=self.server) as stream:
            return PayloadDoc.model_validate((await stream.until(key))["payload"])

    async def over(self, key: str, exit_code: int = 0) -> PayloadDoc:
        await self.runs(key)
        return await self.end(key, exit_code)

    async def known(self, key: str, **query: str) -> Any:
        """The payload of a key that is settled."""
        status, found = await self.settle(key, **query)
        assert status == 200, found
        payload = found["payload"]
        return None if payload is None else PayloadDoc.model_validate(payload)

    async def listed(self, server: str = "") -> PayloadList:
        query = {"server": server or self.server, "after": "0"}
        return PayloadList.model_validate((await self.call("GET", "/payloads", params=query))[1])

    async def code(self, method: str, path: str, key: str = "1.1") -> tuple[int, str]:
        """Why it is refused; "": it is not."""
        query = {"key": key, "server": self.server}
        status, found = await self.call(method, path, params=query)
        return status, found["code"] if found else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["model", "agent"])
async def http(
    request: pytest.FixtureRequest, module_folder: Path
) -> AsyncIterator[tuple[aiohttp.ClientSession, By]]:
    async with AsyncExitStack() as stack:
        if request.param == "agent":
            real = await stack.enter_async_context(calling(module_folder, SimClock(), slots=50))
            yield real.http, real.sandbox
            return
        model = FakeAgent("node-1", "some-id", ends="Running")
        url = await stack.enter_async_context(model.listening())
        yield await stack.enter_async_context(aiohttp.ClientSession(url)), model


@pytest_asyncio.fixture(loop_scope="module")
async def side(http: tuple[aiohttp.ClientSession, By], module_folder: Path) -> Side:
    return Side(*http, module_folder)


async def test_it_says_who_it_is_and_has_a_code_for_what_is_not_there(side: Side) -> None:
    status, found = await side.call("GET", "/health")
    health = AgentHealth.model_validate(found)
    assert (status, health.status, health.agent, health.ready) == (200, "ok", "node-1", True)
    assert health.agent_id
    assert health.slots
    assert await side.code("GET", "/no/such/route") == (404, "no_such_route")
    partial = f"/retrieve_partial/{NO_NUMBER}"
    assert await side.code("GET", partial) == (404, "payload_not_found")


async def test_an_order_becomes_a_payload_by_either_way(side: Side) -> None:
    (many,) = await side.answers(side.of("1.1"))
    status, one = await side.submit("2.1", side.files)
    assert status == 200
    for key, found in (("1.1", many), ("2.1", one)):
        payload = PayloadDoc.model_validate(found)
        said = payload.server, payload.key, payload.bundle_digest
        assert said == (side.server, key, side.bundle(side.files)[1])
        assert payload.status in ("Prepared", "Running")
        assert payload.result is None
    assert many["id"] != one["id"]


async def test_an_order_that_is_repeated_starts_nothing_and_its_key_is_of_one_bundle(side):
    ended = await side.over("1.1")
    (many,) = await side.answers(side.of("1.1"))
    _, one = await side.submit("1.1", side.files)
    for found in (many, one):
        assert (found["id"], found["status"]) == (ended.id, "Completed")
    assert len((await side.listed()).payloads) == 1
    await side.runs("2.1")
    for key in ("1.1", "2.1"):
        assert await side.codes(key, {"run.sh": b"another"}) == {(409, "digest_mismatch")}


async def test_a_key_that_was_settled_never_starts_and_the_others_do(side: Side) -> None:
    for _ in range(2):
        assert await side.known("2.1") is None
    assert await side.codes("2.1") == {(409, "key_refused")}
    assert (await side.listed()).payloads == []
    answers = await side.answers(*[side.of(f"{number}.1") for number in (1, 2, 3)])
    assert [isinstance(one, dict) for one in answers] == [True, False, True]
    assert answers[1] == (409, "key_refused")


async def test_a_key_that_is_known_is_settled_by_its_payload(side: Side) -> None:
    running = await side.runs("1.1")
    found = await side.known("1.1")
    assert (found.id, found.status) == (running.id, "Running")
    for _ in range(2):
        ended = await side.known("1.1", kill="1")
        assert (ended.id, ended.status, ended.killed) == (running.id, "Killed", True)


@pytest.mark.parametrize("settled", [False, True])
async def test_an_attempt_before_one_that_is_known_never_starts(side: Side, settled: bool) -> None:
    await (side.known("1.2") if settled else side.runs("1.2"))
    assert await side.codes("1.1") == {(409, "stale_attempt")}
    (found,) = await side.answers(side.of("1.3"))
    assert found["key"] == "1.3"


async def test_keys_of_two_servers_are_two_payloads(side: Side) -> None:
    mine, other = await side.runs("1.1"), f"{side.server}-b"
    (others,) = await side.answers(side.of("1.1", server=other))
    assert others["id"] != mine.id
    assert [one.id for one in (await side.listed()).payloads] == [mine.id]
    assert [one.id for one in (await side.listed(other)).payloads] == [others["id"]]


async def test_a_kill_ends_what_runs_under_its_key_and_nothing_that_has_ended(side):
    running, done = await side.runs("1.1"), await side.over("2.1")
    for payload, status in ((running, "Killed"), (done, "Completed")):
        for _ in range(2):
            query = {"key": str(payload.key)}
            code, found = await side.call("POST", f"/kill/{payload.id}", params=query)
            assert (code, found["id"], found["status"]) == (200, payload.id, status)
    number = (await side.runs("3.1")).id
    for method, path, key in (
        ("POST", f"/kill/{number}", "9.9"),
        ("POST", f"/kill/{NO_NUMBER}", "3.1"),
    ):
        assert await side.code(method, path, key) == (404, "payload_not_found")
    assert (await side.known("3.1")).status == "Running"


@pytest.mark.parametrize(("exit_code", "status"), [(0, "Completed"), (3, "Failed")])
async def test_a_result_is_the_one_that_was_announced(side, exit_code, status):
    """By its own route, and behind the line of events that names it."""
    running = await side.runs("1.1")
    async with side.http.get(f"/retrieve_partial/{running.id}") as answer:
        assert (answer.status, (await answer.read())[:2]) == (200, b"PK"), "so far"
    assert (await side.known("1.1")).status == "Running"
    ended = await side.end("1.1", exit_code)
    assert ended.result is not None
    assert ended.status == status
    async with side.http.get(f"/retrieve_partial/{ended.id}") as answer:
        content = await answer.read()
    assert digest(content) == ended.result.model_dump(include={"size", "sha256"})
    async with side.stream(server=side.server, after="0", results=str(1 << 20)) as stream:
        event = await stream.until("1.1")
    assert hashlib.sha256(event["result"]).hexdigest() == ended.result.sha256


async def test_what_was_acknowledged_is_forgotten_and_its_key_is_not(side: Side) -> None:
    ended = await side.over("1.1")
    for number in (ended.id, ended.id, NO_NUMBER):
        await side.forget(number)
    assert (await side.listed()).payloads == []
    assert await side.code("GET", f"/retrieve_partial/{ended.id}") == (404, "cleaned")
    (found,) = await side.answers(side.of("1.1"))
    assert (found["id"], found["status"]) == (ended.id, "Cleaned")


async def test_acknowledgements_go_along_with_orders(side: Side) -> None:
    ended, running = await side.over("1.1"), await side.runs("2.1")
    numbers = {"1.1": ended.id, "2.1": running.id, "3.1": NO_NUMBER}
    refs = [{"id": number, "key": key} for key, number in numbers.items()]
    found = await side.post(side.of("4.1"), acknowledge=refs)
    assert found["answers"][0]["payload"]["key"] == "4.1"
    assert found["refused"] == {str(running.id): "not_ended"}
    found = await side.post(acknowledge=[{"id": running.id, "key": "9.9"}])
    assert found["refused"] == {str(running.id): "payload_not_found"}
    assert {one.key for one in (await side.listed()).payloads} == {"2.1", "4.1"}


async def test_events_tell_what_is_there_and_then_each_change(side: Side) -> None:
    await side.runs("1.1")
    async with side.stream(server=side.server, after="0") as stream:
        await stream.until("1.1", "Running")
        await side.over("2.1")
        await stream.until("2.1", "Completed")
    seq = (await side.listed()).seq
    async with side.stream(server=side.server, after=str(seq)) as stream:
        await side.runs("3.1")  # after a list they begin where it ends
        while not (payload := (await stream.next())["payload"]):
            pass
        assert payload["key"] == "3.1"


async def test_a_bundle_that_it_keeps_need_not_be_sent_again(side: Side) -> None:
    def without(key: str, **changed: Any) -> Sent:
        return side.of(key, **changed)[0], b""

    assert await side.answers(without("1.1")) == [(409, "bundle_missing")]
    await side.post(side.of("1.1", keep_bundle=True))
    (found,) = await side.answers(without("2.1", keep_bundle=True))
    assert (found["key"], found["bundle_digest"]) == ("2.1", side.bundle(side.files)[1])
    other = without("3.1", server=f"{side.server}-b")
    assert await side.answers(other) == [(409, "bundle_missing")]
