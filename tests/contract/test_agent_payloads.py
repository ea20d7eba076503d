"""``POST /payloads`` of an agent: several orders with their bundles, and acknowledgements."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from client_agent.api import bulk
from client_agent.intake import many, orders, submission
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.files import durable
from tests.kit.agent import SERVER
from tests.kit.agent_http import HELLO, AgentClient, calling
from tests.kit.waiting import eventually

Sent = tuple[dict[str, Any], bytes]


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[AgentClient]:
    async with calling(tmp_path, slots=20) as caller:
        yield caller
    assert caller.sandbox.violations == []


def with_bundle(agent: AgentClient, key: str, script: bytes = b"true\n", **more: Any) -> Sent:
    data, digest = agent.bundle({"run.sh": script})
    return agent.order(key, data, digest, **more).model_dump(mode="json"), data


def body(*sent: Sent, **more: Any) -> bytes:
    head: dict[str, Any] = {
        "orders": [order for order, _ in sent],
        "sizes": [len(data) for _, data in sent],
        "server": SERVER,
        "lease": 0,
    }
    return json.dumps(head | more).encode() + b"\n" + b"".join(data for _, data in sent)


async def post(agent: AgentClient, *sent: Sent, **more: Any) -> dict[str, Any]:
    status, answer = await agent.call("POST", "/payloads", data=body(*sent, **more))
    assert status == 200, answer
    return dict(answer)


def codes(answer: dict[str, Any]) -> list[str]:
    return [one["code"] for one in answer["answers"]]


def names(tmp_path: Path, folder: str) -> list[str]:
    return sorted(path.name for path in (tmp_path / "agent" / folder).iterdir())


async def finish(agent: AgentClient, *keys: str) -> None:
    for key in keys:
        (await agent.sandbox.process(key)).finish()


async def test_each_runs_with_its_own_bundle(agent, tmp_path) -> None:
    sent = [with_bundle(agent, f"{n}.1", b"echo %d\n" % n) for n in range(1, 6)]
    answer = await post(agent, *sent)
    assert [one["payload"]["key"] for one in answer["answers"]] == [f"{n}.1" for n in range(1, 6)]
    for n in range(1, 6):
        process = await agent.sandbox.process(f"{n}.1")
        assert process.read("run.sh") == b"echo %d\n" % n
        process.finish()
    for one in answer["answers"]:
        await agent.ended(one["payload"]["id"])
    assert names(tmp_path, "staging") == []


async def test_half_of_them_may_be_refused(agent, tmp_path) -> None:
    await agent.call("POST", f"/keys/{SERVER}/8.1/settle")
    fine, other = with_bundle(agent, "1.1"), with_bundle(agent, "2.1", b"false\n")
    damaged = bytearray(with_bundle(agent, "3.1")[1])
    damaged[-30:] = bytes(30)
    answer = await post(
        agent,
        fine,
        (with_bundle(agent, "2.1")[0], other[1]),
        (with_bundle(agent, "3.1")[0], bytes(damaged)),
        (with_bundle(agent, "4.1")[0] | {"bundle_size": 7}, fine[1]),
        with_bundle(agent, "bad key"),
        with_bundle(agent, "5.1", env={"HOME": "x"}),
        with_bundle(agent, "6.1", inputs={"size": 1, "sha256": "00"}),
        with_bundle(agent, "8.1"),
        (with_bundle(agent, "9.1")[0], b""),
        with_bundle(agent, "10.1"),
    )
    assert codes(answer) == [
        "",
        "invalid_bundle",
        "invalid_bundle",
        "invalid_bundle",
        "invalid_order",
        "invalid_order",
        "invalid_order",
        "key_refused",
        "bundle_missing",
        "",
    ]
    assert names(tmp_path, "staging") == []
    assert len(names(tmp_path, "bundles")) == 2
    await finish(agent, "1.1", "10.1")


async def test_the_same_key_twice_is_one_payload(agent, tmp_path) -> None:
    sent = with_bundle(agent, "1.1")
    answers = await asyncio.gather(*(post(agent, sent, sent) for _ in range(3)))
    ids = {one["payload"]["id"] for answer in answers for one in answer["answers"]}
    assert len(ids) == 1
    assert len(names(tmp_path, "bundles")) == 1
    assert codes(await post(agent, with_bundle(agent, "1.1", b"another"))) == ["digest_mismatch"]
    await finish(agent, "1.1")
    await agent.ended(ids.pop())
    assert agent.sandbox.starts == {"1.1": 1}


async def test_a_bundle_that_is_kept_serves_orders_without_one(agent, tmp_path) -> None:
    await post(agent, with_bundle(agent, "1.1", keep_bundle=True))
    order, _ = with_bundle(agent, "2.1")
    assert codes(await post(agent, (order, b""), with_bundle(agent, "3.1", b"other"))) == ["", ""]
    assert len(names(tmp_path, "bundles")) == 2
    await finish(agent, "1.1", "2.1", "3.1")


async def test_what_is_acknowledged_with_orders_is_forgotten(agent, tmp_path) -> None:
    ids = [await agent.completed(f"{n}.1") for n in range(1, 4)]
    refs = [{"id": one, "key": f"{n}.1"} for n, one in enumerate(ids, 1)]
    refs[2]["key"] = "7.1"
    order = with_bundle(agent, "4.1", lease=3)
    answer = await post(agent, order, acknowledge=[*refs, {"id": 999}], lease=3)
    assert (codes(answer), answer["refused"]) == ([""], {str(ids[2]): "payload_not_found"})
    assert names(tmp_path, "results") == [f"{ids[2]}.zip"]
    running = answer["answers"][0]["payload"]["id"]
    stale = await post(agent, order, acknowledge=[{"id": ids[2]}, {"id": running}], lease=2)
    assert stale["refused"] == {str(one): "stale_lease" for one in (ids[2], running)}
    assert names(tmp_path, "results") == [f"{ids[2]}.zip"]
    early = await post(agent, order, acknowledge=[{"id": running}], lease=3)
    assert early["refused"] == {str(running): "not_ended"}
    await finish(agent, "4.1")


async def test_an_order_under_a_stale_lease_is_refused(agent, tmp_path) -> None:
    await post(agent, with_bundle(agent, "1.1", lease=5))
    assert codes(await post(agent, with_bundle(agent, "2.1", lease=4))) == ["stale_lease"]
    assert len(names(tmp_path, "bundles")) == 1
    await finish(agent, "1.1")


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [5]},
        {"sizes": [10**12]},
        {"sizes": [-1]},
        {"sizes": [2**63]},
        {"sizes": []},
        {"sizes": [0, 0]},
        {"sizes": "x"},
        {"orders": [{}]},
        {"orders": None},
        {"server": None},
        {"acknowledge": [{"id": "x"}]},
    ],
)
async def test_lying_lengths_and_nonsense_are_refused(agent, tmp_path, change) -> None:
    data = body(with_bundle(agent, "1.1"), **change)
    status, answer = await agent.call("POST", "/payloads", data=data)
    assert status == 400, answer
    assert answer["code"] in ("invalid_order", "wrong_length")
    assert names(tmp_path, "bundles") == names(tmp_path, "staging") == []


async def test_too_much_is_refused(agent, monkeypatch) -> None:
    sent = [with_bundle(agent, f"{n}.1") for n in range(1, 4)]
    assert (await agent.call("POST", "/payloads", data=b"x" * 100_000))[0] == 400
    assert (await agent.call("POST", "/payloads", data=b""))[0] == 400
    monkeypatch.setattr(orders, "MAX_ORDERS", 2)
    status, answer = await agent.call("POST", "/payloads", data=body(*sent))
    assert (status, answer["code"]) == (413, "too_large")
    monkeypatch.setattr(bulk, "MAX_PAYLOADS", 2)
    refs = [{"id": n} for n in range(3)]
    data = body(sent[0], acknowledge=refs)
    assert (await agent.call("POST", "/payloads", data=data))[0] == 413
    monkeypatch.setattr(bulk, "MAX_BODY", 10)
    assert (await agent.call("POST", "/payloads", data=body(sent[0])))[0] == 413
    assert (await agent.call("POST", "/payloads", data=_chunks(body(sent[0]))))[0] == 413


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 7):
        yield data[at : at + 7]


async def test_it_may_come_slowly_and_in_pieces(agent) -> None:
    sent = [with_bundle(agent, f"{n}.1") for n in (1, 2)]
    status, answer = await agent.call("POST", "/payloads", data=_chunks(body(*sent)))
    assert (status, codes(answer)) == (200, ["", ""])
    await finish(agent, "1.1", "2.1")


@pytest.mark.parametrize("most", ["MAX_AT_ONCE", "MAX_OF_ONE"])
async def test_bodies_that_do_not_end_are_few_and_are_cut_off(agent, monkeypatch, most) -> None:
    monkeypatch.setattr(bulk, most, 1)
    open_end, begun = asyncio.Event(), asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"{"
        begun.set()
        await open_end.wait()

    stalled = asyncio.create_task(agent.call("POST", "/payloads", data=stalling()))
    await begun.wait()
    await eventually(lambda: agent.call("POST", "/orders", data=b"x"), lambda it: it[0] != 400)
    status, answer = await agent.call("POST", "/payloads", data=b"x")
    assert (status, answer["code"]) == (503, "too_many_requests")
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with (
        aiohttp.ClientSession(connector=connector) as other,
        other.post(f"{agent.url}/payloads", data=b"x") as response,
    ):
        assert response.status == (400 if most == "MAX_OF_ONE" else 503)
    open_end.set()
    assert (await stalled)[0] == 400
    open_end.clear()
    monkeypatch.setattr(bulk, "MAX_S", 0.05)
    status, answer = await agent.call("POST", "/payloads", data=stalling())
    assert (status, answer["code"]) == (408, "body_too_slow")
    assert (await agent.call("POST", "/payloads", data=b"x"))[0] == 400


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
async def test_a_request_that_breaks_off_leaves_nothing(agent, tmp_path, share) -> None:
    data = body(with_bundle(agent, "1.1"), with_bundle(agent, "2.1"))
    host, port = agent.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /payloads HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data[: int(len(data) * share)])
    writer.write_eof()
    await reader.read()
    writer.close()
    for key in ("1.1", "2.1"):
        status, settled = await agent.call("POST", f"/keys/{SERVER}/{key}/settle")
        assert (status, settled["payload"]) == (200, None)
    assert names(tmp_path, "bundles") == names(tmp_path, "staging") == []


async def test_a_bundle_larger_than_the_agent_takes_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "MAX_BUNDLE", 100)
    async with calling(tmp_path) as agent:
        assert codes(await post(agent, with_bundle(agent, "1.1"))) == ["too_large"]


async def test_a_full_disk_refuses_all_and_keeps_nothing(agent, tmp_path, monkeypatch) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    done = await agent.completed("9.1")
    with monkeypatch.context() as patch:
        patch.setattr(durable, "fsync_folder", full)
        answer = await post(
            agent, with_bundle(agent, "1.1"), with_bundle(agent, "2.1"), acknowledge=[{"id": done}]
        )
    assert [(one["status"], one["code"]) for one in answer["answers"]] == [(507, "disk_full")] * 2
    assert all(one["retry_after_s"] for one in answer["answers"])
    assert names(tmp_path, "bundles") == names(tmp_path, "staging") == names(tmp_path, "results")
    assert names(tmp_path, "results") == []


async def test_it_needs_the_token(tmp_path) -> None:
    async with calling(tmp_path, tokens=["t" * 32]) as agent:
        headers = {"Authorization": "Bearer wrong"}
        assert (await agent.call("POST", "/payloads", json={}, headers=headers))[0] == 401


STEPS = (
    (many, "store", False),
    (durable, "fsync_folder", False),
    (durable, "fsync_folder", True),
    (many, "store", True),
    (Payloads, "add", False),
    (Payloads, "add", True),
    (Payloads, "acknowledge_all", True),
    (Folders, "remove_results", False),
    (Folders, "remove_results", True),
)


@pytest.mark.parametrize(("where", "name", "after"), STEPS)
async def test_killed_at_each_step_a_payload_is_whole_or_was_never_there(
    tmp_path, monkeypatch, where, name, after
) -> None:
    """What is on the disk at that step is what an agent finds that was killed there."""
    left = tmp_path / "left"

    def look() -> None:
        if not left.exists():
            with suppress(shutil.Error):  # what was removed in a thread meanwhile
                shutil.copytree(tmp_path / "agent", left / "agent")

    async with calling(tmp_path, slots=20) as agent:
        done = await agent.completed("9.1", HELLO)
        sent = [with_bundle(agent, f"{n}.1", b"echo %d\n" % n) for n in (1, 2, 3)]
        with monkeypatch.context() as patch:
            patch.setattr(where, name, _watched(getattr(where, name), look, after))
            await post(agent, *sent, acknowledge=[{"id": done, "key": "9.1"}])
        await finish(agent, "1.1", "2.1", "3.1")
    async with calling(left, slots=20) as again:
        found = []
        for n, (order, data) in enumerate(sent, 1):
            _, settled = await again.call("POST", f"/keys/{SERVER}/{n}.1/settle")
            found.append(settled["payload"] is not None)
            (answer,) = (await post(again, (order, data)))["answers"]
            assert answer["code"] == ("" if found[-1] else "key_refused")
            if found[-1]:
                process = await again.sandbox.process(f"{n}.1")
                assert process.read("run.sh") == b"echo %d\n" % n
                process.finish()
                await again.ended(answer["payload"]["id"])
        _, listed = await again.call("POST", f"/keys/{SERVER}/9.1/settle")
        kept = names(left, "results")
        assert (f"{done}.zip" in kept) == (listed["payload"]["status"] != "Cleaned")
    assert len(set(found)) == 1  # in one commit


def _watched(work: Callable[..., Any], look: Callable[[], None], after: bool) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        if not after:
            look()
        given = work(*args, **more)
        if asyncio.iscoroutine(given):
            return _then(given, look) if after else given
        if after:
            look()
        return given

    return call


async def _then(given: Any, look: Callable[[], None]) -> Any:
    answer = await given
    look()
    return answer
