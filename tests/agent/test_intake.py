"""What an agent takes, what it refuses, and that a refusal leaves nothing.

Orders come in a line before their bundles; a large bundle goes to the disk as it comes, small ones
are read before: both are judged alike. Files without an order come from a job-orchestrator server.
"""

import asyncio
import contextlib
import errno
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import aiohttp
import pytest

from client_agent.api import bulk
from client_agent.intake import orders, submit
from client_agent.intake.order_sink import OrderSink
from client_agent.storage.folders import Folders
from server.settings.tables import ServerTable
from shared.files.bundles import reader
from shared.files.bundles.reader import MAX_FILES
from tests.kit.agent_http import (
    HELLO,
    LIMITS,
    AgentClient,
    Sent,
    bundle_of,
    calling,
    in_lines,
    numbered,
    order_of,
)
from tests.kit.each import each
from tests.kit.raw_archives import zipped
from tests.kit.waiting import eventually, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENT = {
    "slots": 20,
    "services": ["example", "docking", "far"],
    "sandboxing": {"services": {"far": {"read_only": ["/nowhere/tree:/tree"]}}},
}
SMALL = bulk.MAX_SMALL
Answer = tuple[int, str, str]
"""Status, code, message; of an order that is taken the status of its payload."""


async def small(agent: AgentClient, sent: Sent) -> Answer:
    status, body = await agent.post_order(*sent)
    return (200, "", body["status"]) if status == 200 else (status, body["code"], body["message"])


async def large(agent: AgentClient, sent: Sent) -> Answer:
    patch = pytest.MonkeyPatch()  # not undone by what it was: several may be sent at once
    patch.setattr(bulk, "MAX_SMALL", 0)
    try:
        return await small(agent, sent)
    finally:
        patch.setattr(bulk, "MAX_SMALL", SMALL)


both_ways = each("way", [small, large])
FOLDERS = ("bundles", "staging", "results", "logs")


# -- what is taken


@both_ways
async def test_an_order_is_run_as_ordered(agent, way) -> None:
    files = {**HELLO, "data/in.txt": b"in"}
    sent = agent.sent("17.2", files, timeout_s=90.0, service="docking", env={"LANG": "de_DE.UTF-8"})
    assert await way(agent, sent) == (200, "", "Prepared")
    process = await agent.sandbox.process("17.2")
    launch = process.launch
    assert (launch.timeout_s, launch.grace_s, launch.argv) == (90.0, 5.0, ("bash", "run.sh"))
    assert dict(launch.env) == {
        "FERRYMAN_JOB_ID": "17",
        "FERRYMAN_ATTEMPT": "2",
        "FERRYMAN_SERVICE": "docking",
        "FERRYMAN_CPUS": "1",
        "FERRYMAN_MEMORY_BYTES": str(LIMITS.memory),
        "LANG": "de_DE.UTF-8",
    }
    assert {name: process.read(name) for name in files} == files
    _, known = await agent.settle("17.2")
    payload = known["payload"]
    assert (payload["server"], payload["key"]) == (agent.server, "17.2")
    assert payload["bundle_digest"] == sent[0]["bundle_digest"]
    await agent.fresh_server()


@both_ways
async def test_a_repeat_is_harmless_and_another_bundle_refused_in_every_state(agent, way) -> None:
    sent = agent.sent("1.1")
    answers = await asyncio.gather(*(way(agent, sent) for _ in range(8)))
    assert {(status, code) for status, code, _ in answers} == {(200, "")}
    process = await agent.sandbox.process("1.1")
    assert await way(agent, sent) == (200, "", "Running")
    process.finish()
    payload_id = (await agent.settle())[1]["payload"]["id"]
    await agent.ended(payload_id)
    assert await way(agent, sent) == (200, "", "Completed")
    await agent.forget(payload_id)
    assert await way(agent, sent) == (200, "", "Cleaned")
    for size in (1, 1 << 20):  # as after a server was restored, and used its numbers again
        of_another = agent.sent("1.1", {"run.sh": b"", "data": os.urandom(size)})
        assert (await way(agent, of_another))[:2] == (409, "digest_mismatch")
    assert agent.sandbox.starts == {"1.1": 1}
    await agent.until_holds(*FOLDERS)
    await agent.fresh_server()


async def test_several_run_each_with_its_own_bundle_however_slowly_they_come(agent) -> None:
    keys = [f"{n}.1" for n in range(1, 6)]
    sent = [agent.sent(key, {"run.sh": key.encode()}, keep_bundle=True) for key in keys]
    body = in_lines(*sent, sent[0], server=agent.server)

    async def in_pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 97):
            yield body[at : at + 97]

    _, answer = await agent.call("POST", "/payloads", data=in_pieces())
    assert [one["payload"]["key"] for one in answer["answers"]] == [*keys, "1.1"]
    assert len(agent.names("bundles")) == 5, "what came twice is stored once"
    for key in keys:
        process = await agent.sandbox.process(key)
        assert process.read("run.sh") == key.encode()
        process.finish()
    for one in answer["answers"]:
        await agent.ended(one["payload"]["id"])
    late, _ = agent.sent("6.1", {"run.sh": b"2.1"})
    await agent.post((late, b""))
    assert (await agent.sandbox.process("6.1")).read("run.sh") == b"2.1", "it was kept"


@each("piece", [7, 1 << 16])
async def test_a_bundle_that_comes_whole_is_not_read_again(tmp_path, monkeypatch, piece) -> None:
    sent, digest = bundle_of(tmp_path, {**HELLO, "empty": b"", "big": bytes(300_000)})
    folders = Folders(tmp_path / f"in {piece}", numbered())
    sink = OrderSink(folders, order_of("1.1", sent, digest), len(sent))
    sink.begin()
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_content", lambda *_: pytest.fail("it is read again"))
        for at in range(0, len(sent), piece):
            sink.write(sent[at : at + piece])
        assert (sink.finish().digest, sink.paths[0].read_bytes()) == (digest, sent)


async def test_the_body_of_a_large_repeat_is_not_read(agent) -> None:
    sent = agent.sent("1.1", {"run.sh": b"true", "big": os.urandom(1 << 20)})
    assert (await small(agent, sent))[0] == 200
    async with half_sent(agent, sent, 1 << 16) as (answer, _):
        status, again = await answer
        assert (status, again["answers"][0]["payload"]["key"]) == (200, "1.1")


# -- what is refused


DIGEST = "0" * 64
REFUSED: list[tuple[dict[str, Any], bytes | None, int, str, str]] = [
    # changes of the order, what comes in place of its bundle; status, code, in the message
    ({"bundle_digest": DIGEST}, None, 400, "invalid_bundle", f"the order says {DIGEST}"),
    ({"bundle_size": 10}, None, 400, "invalid_bundle", "the order says 10"),
    ({"bundle_size": 10_000}, None, 400, "invalid_bundle", "the order says 10000"),
    ({}, b"not a zip", 400, "invalid_bundle", ""),
    ({}, bytes(100), 400, "invalid_bundle", ""),
    ({"key": "one"}, None, 400, "invalid_order", "order: 'one'"),
    ({"key": "1"}, None, 400, "invalid_order", "order: '1'"),
    ({"key": "1.0"}, None, 400, "invalid_order", "order: '1.0'"),
    ({"key": f"{2**63}.1"}, None, 400, "invalid_order", "order: "),
    ({"server": None}, None, 400, "invalid_order", "server"),
    ({"on_shutdown": "later"}, None, 400, "invalid_order", "on_shutdown"),
    ({"env": {"FERRYMAN_JOB_ID": "1"}}, None, 400, "invalid_order", "JOB_ID is reserved"),
    ({"env": {"HOME": "/"}}, None, 400, "invalid_order", "env: HOME is reserved"),
    ({"env": {"TMPDIR": "/"}}, None, 400, "invalid_order", "env: TMPDIR is reserved"),
    ({"env": {"A-B": "1"}}, None, 400, "invalid_order", "'A-B' cannot be the name of a variable"),
    ({"env": {"A": "hidden\0"}}, None, 400, "invalid_order", "A has a NUL in its value"),
    ({"env": {f"A{n}": "" for n in range(300)}}, None, 400, "invalid_order", "at most 256"),
    ({"env": {"A": "hidden" * 9_000}}, None, 400, "invalid_order", "more than 49152 bytes"),
    ({"folder": "../x/"}, None, 400, "invalid_order", "order: folder:"),
    ({"folder": "a"}, None, 400, "invalid_order", "order: folder: it has to end in /"),
    ({"entry": "-c"}, None, 400, "invalid_order", "order: entry: it would be an option"),
    ({"entry": "/bin/sh"}, None, 400, "invalid_order", "order: entry:"),
    ({"array": {"index": -1}}, None, 400, "invalid_order", "order: array.index"),
    ({"array": {"index": 0, "line": "hidden\0"}}, None, 400, "invalid_order", "order: array.line"),
    ({"array": {"index": 0, "line": "é" * 33_000}}, None, 400, "invalid_order", "than 65536 bytes"),
    ({"outputs": ["../x"]}, None, 400, "invalid_order", "order: outputs"),
    ({"service": "folding"}, None, 403, "not_offered", "does not offer the service 'folding'"),
    ({"limits": {"network": True}}, None, 403, "not_offered", "does not give to it"),
    ({"service": "far"}, None, 503, "not_ready", "/nowhere/tree, which the jobs of 'far' need"),
]


@both_ways
@each("changed, data, status, code, why", REFUSED)
async def test_what_is_refused_says_why_and_leaves_nothing(
    agent, way, changed, data, status, code, why
) -> None:
    order, bundle = agent.sent("1.1")
    if "limits" in changed:
        changed = {"limits": order["limits"] | changed["limits"]}
    answer = await way(agent, (order | changed, bundle if data is None else data))
    assert answer[:2] == (status, code), answer
    assert why in answer[2]
    assert "hidden" not in answer[2]
    await agent.until_holds(*FOLDERS)
    assert (await agent.call("GET", "/payloads"))[1]["payloads"] == []


async def test_what_is_wrong_with_one_of_many_concerns_that_one(agent) -> None:
    fine, (order, _) = agent.sent("1.1"), agent.sent("2.1")
    inputs = agent.sent("4.1", inputs={"size": 1, "sha256": "00"})
    damaged = fine[1][:-30] + bytes(30)
    sent = (fine, (order, damaged), agent.sent("bad key"), inputs, (order, b""), agent.sent("9.1"))
    answer = await agent.post(*sent)
    codes = ["", "invalid_bundle", "invalid_order", "invalid_bundle", "bundle_missing", ""]
    assert [one["code"] for one in answer["answers"]] == codes
    await agent.until_holds("staging")
    assert len(agent.names("bundles")) == 2


LIES: list[dict[str, Any]] = [
    *({"sizes": sizes} for sizes in ([5], [10**12], [-1], [2**63], [], [0, 0], "x")),
    *({"orders": [{}]}, {"orders": None}, {"server": None}),
    {"acknowledge": [{"id": "x"}]},
]


async def test_what_no_route_takes_and_lines_that_lie_are_refused_as_json(agent) -> None:
    lies = [in_lines(agent.sent("1.1"), **({"server": agent.server} | lie)) for lie in LIES]
    for path, body, status in (
        *(("/payloads", line, 400) for line in (b"", b"x" * 100_000, *lies)),
        ("/submit", b"x", 415),
        ("/nowhere", b"", 404),
        ("/retrieve/x", b"", 404),
        (f"/keys/{agent.server}/one/settle", b"", 400),
        ("/health", b"", 405),
    ):
        found, answer = await agent.call("POST", path, data=body)
        assert (found, bool(answer["code"])) == (status, True), (path, body[:500], answer)
    await agent.until_holds(*FOLDERS)


async def test_there_is_a_most_of_everything(agent, monkeypatch) -> None:
    with pytest.raises(ValueError, match=f"less than or equal to {MAX_FILES}"):
        ServerTable(max_files=MAX_FILES + 1)  # no server takes more than an agent can unpack
    sent = [agent.sent(f"{n}.1") for n in range(1, 4)]
    one = in_lines(sent[0], server=agent.server)
    chunks = one[:-9], one[-9:]

    async def whole() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    for where, name, most, body in (
        (orders, "MAX_ORDERS", 2, in_lines(*sent)),
        (orders, "MAX_ORDERS", 2, in_lines(sent[0], acknowledge=[{"id": n} for n in range(3)])),
        (bulk, "MAX_LINE", 10, in_lines(sent[0])),
        (bulk, "MAX_BODY", 10, in_lines(sent[0])),
        (bulk, "MAX_BODY", 10, whole()),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, most)
            status, answer = await agent.call("POST", "/payloads", data=body)
            assert (status, answer["code"]) == (413, "too_large"), name
    monkeypatch.setattr(submit, "MAX_BUNDLE", 100)
    for way in (small, large):
        status, code, message = await way(agent, sent[0])
        assert (status, code, "the limit is 100" in message) == (413, "too_large", True)
    monkeypatch.undo()
    monkeypatch.setattr(submit, "MAX_FILES", 3)
    status, answer = await agent.submit_plain(dict.fromkeys(["run.sh", "a", "b", "c"], b"x"))
    assert (status, answer["code"]) == (413, "too_many_files")
    assert "more than 3 files" in answer["message"]
    await agent.until_holds(*FOLDERS)


@each("most", ["MAX_AT_ONCE", "MAX_OF_ONE"])
async def test_bodies_that_do_not_end_are_few_and_are_cut_off(agent, monkeypatch, most) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"{"
        begun.set()
        await go_on.wait()

    with monkeypatch.context() as patch:
        patch.setattr(bulk, most, 1)
        stalled = asyncio.create_task(agent.call("POST", "/payloads", data=stalling()))
        await begun.wait()
        _, answer = await eventually(
            lambda: agent.call("POST", "/payloads", data=b"x"), lambda it: it[0] != 400
        )
        assert answer["code"] == "too_many_requests"
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with (
            aiohttp.ClientSession(connector=connector) as other,
            other.post(f"{agent.url}/payloads", data=b"x") as response,
        ):
            assert response.status == (400 if most == "MAX_OF_ONE" else 503)
        go_on.set()
        assert (await stalled)[0] == 400
        go_on.clear()
        patch.setattr(bulk, "MAX_S", 0.05)
        status, answer = await agent.call("POST", "/payloads", data=stalling())
        assert (status, answer["code"]) == (408, "body_too_slow")
    assert (await agent.call("POST", "/payloads", data=b"x"))[0] == 400


@contextlib.asynccontextmanager
async def half_sent(
    agent: AgentClient, sent: Sent, size: int
) -> AsyncIterator[tuple[asyncio.Task[tuple[int, Any]], asyncio.Event]]:
    """An order whose bundle comes in part, and the rest once the event is set."""
    whole = in_lines(sent, server=agent.server)
    go_on, size = asyncio.Event(), len(whole) - len(sent[1]) + size

    async def body() -> AsyncIterator[bytes]:
        yield whole[:size]
        await go_on.wait()
        yield whole[size:]

    headers = {"Content-Length": str(len(whole))}
    asked = asyncio.create_task(agent.call("POST", "/payloads", data=body(), headers=headers))
    try:
        yield asked, go_on
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


@each("share", [0.1, 0.5, 0.99])
async def test_a_request_that_breaks_off_leaves_nothing(agent, share) -> None:
    big = agent.sent("1.1", {"run.sh": b"true", "big": os.urandom(4 << 20)})
    async with half_sent(agent, big, int(len(big[1]) * share)):
        await until(lambda: bool(agent.names("staging")))
    await agent.until_holds("bundles", "staging")
    data = in_lines(agent.sent("2.1"), agent.sent("3.1"), server=agent.server)
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    head = f"POST /payloads HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data[: int(len(data) * share)])
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    for key in ("1.1", "2.1", "3.1"):
        assert await agent.settle(key) == (200, {"payload": None})
    await agent.until_holds(*FOLDERS)
    await agent.fresh_server()


# -- the agent cannot


async def test_a_disk_that_is_full_refuses_all_and_keeps_nothing(agent, monkeypatch) -> None:
    done = await agent.completed("9.1")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", mock.Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        assert (await large(agent, agent.sent("1.1")))[:2] == (507, "disk_full")
        refs = [{"id": done}]
        answer = await agent.post(agent.sent("1.1"), agent.sent("2.1"), acknowledge=refs)
        assert [one["code"] for one in answer["answers"]] == ["disk_full"] * 2
        assert all(one["retry_after_s"] for one in answer["answers"])
    await agent.until_holds(*FOLDERS)


@both_ways
async def test_a_bundle_must_leave_the_space_that_is_to_stay_free(agent, way, monkeypatch) -> None:
    sent = agent.sent("1.1")
    with monkeypatch.context() as patch:
        patch.setattr(Folders, "free_bytes", lambda _: len(sent[1]) - 1)
        assert (await way(agent, sent))[:2] == (507, "disk_full")
    assert (await way(agent, sent))[0] == 200


@both_ways
async def test_with_a_broken_sandbox_it_is_unhealthy_and_takes_nothing(agent, way) -> None:
    await agent.fresh_server()
    agent.sandbox.broken = "no user namespaces: sysctl user.max_user_namespaces"
    _, payload = await agent.submit("1.1")
    assert (await agent.ended(payload["id"]))["interrupted"]
    status, health = await agent.call("GET", "/health")
    assert (status, "max_user_namespaces" in health["message"]) == (503, True)
    assert (await way(agent, agent.sent("2.1")))[:2] == (503, "sandbox_broken")
    agent.sandbox.broken = None
    await agent.clock.advance(11)
    assert (await agent.call("GET", "/health"))[0] == 200
    assert (await way(agent, agent.sent("2.1")))[0] == 200
    (await agent.sandbox.process("2.1")).finish()


async def with_inputs(
    agent: AgentClient,
    inputs: bytes,
    key="1.1",
    order: Mapping[str, Any] = MappingProxyType({}),
    **announced: Any,
) -> Any:
    info = {"size": len(inputs), "sha256": hashlib.sha256(inputs).hexdigest()} | announced
    files = {"run.sh": b"true", "a/run.sh": b"echo a", "a/deep/data": b"of a"}
    sent, data = agent.sent(key, files, inputs=info, **order)
    body = in_lines((sent, data), server=agent.server, sizes=[len(data)]) + inputs
    status, answer = await agent.call("POST", "/payloads", data=io.BytesIO(body))
    return status, answer["answers"][0] if status == 200 else answer


@each("most", [0, SMALL])
async def test_inputs_lie_beside_the_bundle_and_replace_nothing_of_it(agent, monkeypatch, most):
    monkeypatch.setattr(bulk, "MAX_SMALL", most)
    await agent.fresh_server()
    inputs = {"inputs/17/out.txt": b"of 17", "a/more.txt": b"more"}
    evil = {"a/run.sh": b"evil", "a/deep": b"evil", "run.sh/x": b"evil"}
    status, answer = await with_inputs(agent, zipped(inputs | evil))
    assert status == 200
    process = await agent.sandbox.process("1.1")
    wanted = inputs | {"a/run.sh": b"echo a", "run.sh": b"true"}
    assert {name: process.read(name) for name in wanted} == wanted
    process.finish()
    warnings = (await agent.ended(answer["payload"]["id"]))["warnings"]
    assert "3 files of the inputs are not there" in warnings[0]
    await agent.until_holds("bundles")


@each("which, kept", [("all", {"inputs/17/out"}), ("changed", set())])
async def test_a_result_refers_to_the_bundles_files_and_not_to_inputs(agent, which, kept) -> None:
    """Its server takes what it refers to from the bundle."""
    await agent.fresh_server()
    inputs = zipped({"inputs/17/out": b"of 17", "inputs/17/more": b"sent"})
    order = {"result_files": which, "meta": '{"a": 1}', "folder": "a/", "entry": "run.sh"}
    _, answer = await with_inputs(agent, inputs, order=order)
    process = await agent.sandbox.process("1.1")
    process.write("new", b"")
    process.write("inputs/17/more", b"changed")
    process.finish()
    ended = await agent.ended(answer["payload"]["id"])
    left = await agent.zip(f"/retrieve/{ended['id']}")
    listed = [line.split("  ")[1] for line in left["inputs.sha256"].decode().splitlines()]
    assert (listed, ended["result"]["inputs"]) == (["deep/data", "run.sh"], 2)
    ours = {"stdout.log", "stderr.log", "ferryman.json", "inputs.sha256"}
    assert left.keys() - ours == {"new", "inputs/17/more"} | kept
    receipt = json.loads(left["ferryman.json"])
    assert (receipt["files"], receipt["inputs"]) == (2 + len(kept), 2)


@each("most", [0, SMALL])
async def test_inputs_that_are_not_those_announced_or_cannot_be_used(agent, monkeypatch, most):
    monkeypatch.setattr(bulk, "MAX_SMALL", most)
    for wrong, code in (
        ({"size": 3}, "wrong_length"),
        ({"size": 10**6}, "wrong_length"),
        ({"sha256": "0" * 64}, "invalid_bundle"),
    ):
        _, body = await with_inputs(agent, zipped({"x": b"y"}), **wrong)
        assert body["code"] == code, wrong
        await agent.until_holds(*FOLDERS)
    unsafe = "the inputs cannot be used"
    for key, inputs, reason, why in (
        ("1.1", b"no zip at all", "invalid_bundle", unsafe),
        ("2.1", zipped({"../x": b""}), "invalid_bundle", unsafe),
        ("3.1", zipped({"x": b"", "x/y": b""}), "invalid_bundle", unsafe),
        ("4.1", zipped({"x": bytes(2 << 20)}), "disk_limit", "the bundle with its inputs"),
    ):
        _, answer = await with_inputs(agent, inputs, key)
        ended = await agent.ended(answer["payload"]["id"])
        assert (ended["reason"], ended["interrupted"]) == (reason, False), inputs[:20]
        assert why in ended["message"]
    await agent.until_holds(*FOLDERS)  # its files go after its end


# -- a job-orchestrator server sends nothing but files


@each("slots, services, service", [(1, ["docking"], "docking"), (20, ["a", "b"], "default")])
async def test_plain_files_are_a_payload_with_a_slots_share_of_the_host_for_a_week(
    tmp_path, slots, services, service
) -> None:
    files = {"run.sh": b"true", "data/in.pdb": b"ATOM"}
    async with calling(tmp_path / service, slots=slots, services=services) as agent:
        status, payload = await agent.submit_plain(files)
        assert status == 200, payload
        six = {"status": "Prepared", "loc": "", "pid": 0, "killed": False, "input": {}}
        assert six.items() <= payload.items()
        process = await agent.sandbox.process(f"{payload['id']}.1")
        assert (await agent.submit_plain(files))[1]["id"] != payload["id"]
        env = process.launch.env
        assert (process.launch.timeout_s, env["FERRYMAN_SERVICE"]) == (7 * 86_400, service)
        assert int(env["FERRYMAN_MEMORY_BYTES"]) >= 2 << 30
        assert slots > 1 or float(env["FERRYMAN_CPUS"]) == len(os.sched_getaffinity(0))
        assert process.read("data/in.pdb") == b"ATOM"
        process.finish()
        ended = await agent.ended(payload["id"])
        assert (ended["status"], ended["result"]["inputs"]) == ("Completed", 0)
        left = await agent.zip(f"/retrieve/{payload['id']}")
        assert files.items() <= left.items(), "that server gives out what it gets"
        assert "inputs.sha256" not in left


async def test_plain_files_that_are_no_bundle_are_refused(agent) -> None:
    run, empty = {"run.sh": b"true"}, b""
    unsafe = ({"../x": empty}, {"/etc/x": empty}, {"a": empty, "a/b": empty})
    for wrong in ({"main.sh": empty}, *(run | files for files in unsafe)):
        status, answer = await agent.submit_plain(wrong)
        assert (status, answer["code"], bool(answer["message"])) == (400, "invalid_bundle", True)
    await agent.until_holds(*FOLDERS)
