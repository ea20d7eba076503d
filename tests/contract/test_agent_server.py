"""The agent's HTTP API, as a Ferryman server uses it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading

import pytest

from client_agent.api import routes
from client_agent.intake import submit
from client_agent.intake.submission import STALLED_S, Submission
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from server.settings.tables import ServerTable
from shared.files.bundles.reader import MAX_FILES
from shared.wire import AgentHealth, PayloadDoc, PayloadList, Settled
from tests.kit.agent import LIMITS, SERVER
from tests.kit.agent_http import HELLO, AgentClient, calling
from tests.kit.waiting import until_holds


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


def folders(tmp_path, *names):
    return {name: len(list((tmp_path / "agent" / name).iterdir())) for name in names}


# -- submitting


async def test_an_order_is_run_as_ordered(agent):
    status, payload = await agent.submit("17.2", timeout_s=90.0, service="docking")
    assert status == 200
    doc = PayloadDoc.model_validate(payload)
    assert (doc.status, doc.server, doc.key) == ("Prepared", SERVER, "17.2")
    process = await agent.sandbox.process("17.2")
    assert process.launch.timeout_s == 90.0
    assert process.launch.env["FERRYMAN_SERVICE"] == "docking"
    assert process.launch.env["FERRYMAN_MEMORY_BYTES"] == str(LIMITS.memory)
    assert process.read("run.sh") == HELLO["run.sh"]
    process.finish()


async def test_a_repeated_submit_is_harmless_in_every_state(agent, tmp_path):
    _, first = await agent.submit()
    process = await agent.sandbox.process("1.1")
    status, again = await agent.submit()
    assert (status, again["id"], again["status"]) == (200, first["id"], "Running")
    process.finish()
    await agent.ended(first["id"])
    assert (await agent.submit())[1]["status"] == "Completed"
    await agent.call("DELETE", f"/payloads/{first['id']}")
    assert (await agent.submit())[1]["status"] == "Cleaned"
    assert agent.sandbox.starts == {"1.1": 1}
    for name in ("bundles", "staging", "results"):
        await until_holds(tmp_path / "agent" / name)


async def test_submits_of_one_key_at_once_give_all_the_same_payload(agent, tmp_path):
    answers = await asyncio.gather(*(agent.submit() for _ in range(8)))
    assert {status for status, _ in answers} == {200}
    assert len({body["id"] for _, body in answers}) == 1
    (await agent.sandbox.process("1.1")).finish()
    await agent.ended(answers[0][1]["id"])
    assert agent.sandbox.starts == {"1.1": 1}


async def test_the_body_of_a_large_repeat_is_not_read(agent):
    files = {"run.sh": b"true", "big": b"x" * (1 << 20)}
    data, digest = agent.bundle(files)
    order = agent.order("1.1", data, digest)
    _, first = await agent.post_order(order, data)
    read = 0

    async def body():
        nonlocal read
        head = (
            b'--B\r\nContent-Disposition: form-data; name="order"\r\n\r\n'
            + order.model_dump_json().encode()
            + b'\r\n--B\r\nContent-Disposition: form-data; name="bundle"; filename="b"\r\n\r\n'
        )
        yield head
        read += 1
        yield data[: 1 << 16]
        await never.wait()
        read += 1
        yield data[1 << 16 :]

    never = asyncio.Event()
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    async with agent.http.post("/submit", data=body(), headers=headers) as response:
        again = await response.json()
    assert (response.status, again["id"]) == (200, first["id"])
    assert read <= 1


@pytest.mark.parametrize("large", [False, True])
async def test_a_key_that_is_known_with_another_bundle_gets_nothing_of_it(agent, tmp_path, large):
    """As after a server was restored from a backup, and used its numbers again."""
    payload_id = await agent.completed("2.1", {"run.sh": b"echo of alice"})
    of_bob = {"run.sh": b"echo of bob", "data": bytes(1 << 20 if large else 1)}
    status, payload = await agent.submit("2.1", of_bob)
    assert (status, payload["code"]) == (409, "digest_mismatch")
    assert "id" not in payload
    assert agent.sandbox.starts == {"2.1": 1}
    for name in ("bundles", "staging"):
        await until_holds(tmp_path / "agent" / name)
    await agent.call("DELETE", f"/payloads/{payload_id}")
    status, payload = await agent.submit("2.1", of_bob)
    assert (status, payload["code"]) == (409, "digest_mismatch")


async def test_a_payload_names_the_bundle_that_it_was_submitted_with(agent):
    _, digest = agent.bundle()
    _, payload = await agent.submit()
    assert payload["bundle_digest"] == digest
    _, settled = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    assert settled["payload"]["bundle_digest"] == digest
    (await agent.sandbox.process("1.1")).finish()


async def test_more_files_than_a_bundle_may_have_are_refused_before_they_are_stored(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(submit, "MAX_FILES", 3)
    async with calling(tmp_path) as agent:
        status, payload = await agent.submit_plain(dict.fromkeys(["run.sh", "a", "b", "c"], b"x"))
        assert (status, payload["code"]) == (413, "too_many_files")
        assert "more than 3 files" in payload["message"]
        assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}


def test_no_server_takes_more_files_than_an_agent_can_unpack():
    with pytest.raises(ValueError, match=f"less than or equal to {MAX_FILES}"):
        ServerTable(max_files=MAX_FILES + 1)


async def test_an_older_attempt_than_one_known_is_stale(agent):
    await agent.submit("1.2")
    status, payload = await agent.submit("1.1")
    assert (status, payload["code"]) == (409, "stale_attempt")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"bundle_digest": "0" * 64}, "invalid_bundle"),
        ({"bundle_size": 10}, "too_large"),
        ({"bundle_size": 10_000}, "invalid_bundle"),
        ({"key": "one"}, "invalid_order"),
        ({"timeout_s": 1.0, "key": "1"}, "invalid_order"),
    ],
)
async def test_a_bundle_that_does_not_match_its_order_is_refused_and_leaves_nothing(
    agent, tmp_path, changed, code
):
    status, payload = await agent.submit(**changed)
    assert 400 <= status < 500
    assert payload["code"] == code
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}
    assert (await agent.call("GET", "/payloads"))[1]["payloads"] == []


async def test_a_bundle_that_is_not_a_zip_is_refused(agent, tmp_path):
    order = agent.order("1.1", b"not a zip", "0" * 64)
    status, payload = await agent.post_order(order, b"not a zip")
    assert (status, payload["code"]) == (400, "invalid_bundle")
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}


async def test_an_invalid_order_is_refused(agent):
    status, payload = await agent.post_order("{}", b"x")
    assert (status, payload["code"]) == (400, "invalid_order")
    assert "server" in payload["message"]


async def test_a_body_that_is_not_a_form_is_refused(agent):
    status, _ = await agent.call("POST", "/submit", data=b"x")
    assert status == 415


async def test_an_upload_that_is_cut_short_leaves_nothing(agent, tmp_path):
    data, digest = agent.bundle({"run.sh": b"true", "big": b"x" * (4 << 20)})
    order = agent.order("1.1", data, digest).model_dump_json().encode()
    port = int(agent.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n"
        b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
        b'--B\r\nContent-Disposition: form-data; name="order"\r\n\r\n' + order + b"\r\n--B\r\n"
        b'Content-Disposition: form-data; name="bundle"; filename="b"\r\n\r\n' + data[: 3 << 20]
    )
    await writer.drain()
    while folders(tmp_path, "staging") == {"staging": 0}:
        await agent.call("GET", "/")
    writer.close()
    await writer.wait_closed()
    await until_holds(tmp_path / "agent" / "staging")
    assert folders(tmp_path, "bundles") == {"bundles": 0}
    assert (await agent.submit("1.1"))[0] == 200
    (await agent.sandbox.process("1.1")).finish()


async def test_an_unknown_route_is_refused_as_json(agent):
    assert (await agent.call("GET", "/nowhere"))[0] == 404
    assert (await agent.call("GET", "/submit"))[0] == 405
    status, body = await agent.call("GET", "/retrieve/x")
    assert (status, body["code"]) == (404, "no_such_route")


async def test_a_service_that_is_not_offered_is_refused(tmp_path):
    async with calling(tmp_path, services=["example", "docking"]) as agent:
        status, payload = await agent.submit(service="folding")
        assert (status, payload["code"]) == (403, "not_offered")
        assert (await agent.submit())[0] == 200
        (await agent.sandbox.process("1.1")).finish()


async def test_a_bundle_over_the_limit_is_413_before_it_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "MAX_BUNDLE", 1000)
    async with calling(tmp_path) as agent:
        status, payload = await agent.submit(files={"run.sh": b"x" * 2000})
        assert (status, payload["code"]) == (413, "too_large")
        assert "the limit is 1000" in payload["message"]


async def test_an_agent_with_too_little_free_space_refuses_submits(tmp_path):
    async with calling(tmp_path, min_free=1 << 60) as agent:
        async with agent.http.post("/submit", data={"a": "b"}) as response:
            body = await response.json()
        assert (response.status, body["code"]) == (507, "disk_full")
        assert int(response.headers["Retry-After"]) > 0
        status, health = await agent.call("GET", "/health")
        assert (status, health["status"]) == (200, "ok")  # its results can be fetched
        assert "must stay free" in health["message"]


# -- settling


async def test_settling_a_known_key_gives_its_payload(agent):
    _, first = await agent.submit()
    await agent.sandbox.process("1.1")
    status, body = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    settled = Settled.model_validate(body)
    assert status == 200
    assert settled.payload is not None
    assert (settled.payload.id, settled.payload.status) == (first["id"], "Running")


async def test_settling_an_unknown_key_refuses_it_even_after_a_restart(tmp_path):
    async with calling(tmp_path) as agent:
        _, body = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
        assert body == {"payload": None}
    async with calling(tmp_path) as agent:
        status, body = await agent.submit("1.1")
        assert (status, body["code"]) == (409, "key_refused")
        assert (await agent.submit("1.2"))[0] == 200
        (await agent.sandbox.process("1.2")).finish()


class StalledSubmit:
    """A submit whose body stops halfway."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent
        self._data, digest = agent.bundle()
        self._order = agent.order("1.1", self._data, digest).model_dump_json().encode()
        self.go_on = asyncio.Event()

    async def _body(self):
        yield (
            b'--B\r\nContent-Disposition: form-data; name="order"\r\n\r\n'
            + self._order
            + b'\r\n--B\r\nContent-Disposition: form-data; name="bundle"; filename="b"\r\n\r\n'
        )
        yield self._data[:10]
        await self.go_on.wait()
        yield self._data[10:] + b"\r\n--B--\r\n"

    async def begin(self, monkeypatch):
        """The pending reply, once the order has arrived, and the bundle has not."""
        there, real = asyncio.Event(), Submission.field

        def field(*args):
            real(*args)
            there.set()

        monkeypatch.setattr(Submission, "field", field)
        headers = {"Content-Type": "multipart/form-data; boundary=B"}
        posting = self._agent.call("POST", "/submit", data=self._body(), headers=headers)
        answer = asyncio.ensure_future(posting)
        await there.wait()
        return answer


@pytest.mark.parametrize("query", ["", "?kill=1"])
async def test_settling_refuses_a_submit_that_has_stalled(agent, tmp_path, query, monkeypatch):
    stalled = StalledSubmit(agent)
    posting = await stalled.begin(monkeypatch)
    settle = agent.call("POST", f"/keys/{SERVER}/1.1/settle{query}")
    settling = asyncio.ensure_future(settle)
    if not query:  # a cancel does not wait
        await agent.clock.until_asleep(STALLED_S)
        await agent.clock.advance(STALLED_S)
    assert (await settling)[1] == {"payload": None}
    stalled.go_on.set()
    status, payload = await posting
    assert (status, payload["code"]) == (409, "key_refused")
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}
    assert not agent.sandbox.starts


async def test_settling_waits_for_a_submit_that_ends_meanwhile(agent, monkeypatch):
    stalled = StalledSubmit(agent)
    posting = await stalled.begin(monkeypatch)
    settling = asyncio.ensure_future(agent.call("POST", f"/keys/{SERVER}/1.1/settle"))
    waiting = asyncio.ensure_future(agent.clock.until_asleep(STALLED_S))
    await asyncio.wait({settling, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    stalled.go_on.set()
    status, payload = await posting
    assert (status, payload["status"]) == (200, "Prepared")
    assert (await settling)[1]["payload"]["id"] == payload["id"]
    (await agent.sandbox.process("1.1")).finish()


async def test_settling_does_not_refuse_a_submit_that_is_being_stored(agent, monkeypatch):
    """On a slow disk that may take longer than its server waits for the answer."""
    storing, go_on = threading.Event(), threading.Event()
    real = Folders.seal_bundle

    def slow(self, staged):
        storing.set()
        go_on.wait(30)
        return real(self, staged)

    monkeypatch.setattr(Folders, "seal_bundle", slow)
    posting = asyncio.ensure_future(agent.submit())
    try:
        while not storing.is_set():
            await agent.call("GET", "/")
        for _ in range(2):
            settle = agent.http.post(f"/keys/{SERVER}/1.1/settle")
            settling = asyncio.ensure_future(settle)
            waiting = asyncio.ensure_future(agent.clock.until_asleep(STALLED_S))
            await asyncio.wait({settling, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await agent.clock.advance(STALLED_S)
            async with await settling as response:
                assert response.status == 409
                assert (await response.json())["code"] == "submit_in_progress"
                assert int(response.headers["Retry-After"]) > 0
    finally:
        go_on.set()
    status, payload = await posting
    assert (status, payload["status"]) == (200, "Prepared")
    _, settled = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    assert settled["payload"]["id"] == payload["id"]
    (await agent.sandbox.process("1.1")).finish()


async def test_settling_with_kill_replies_when_it_is_dead(agent):
    await agent.submit()
    process = await agent.sandbox.process("1.1")
    _, body = await agent.call("POST", f"/keys/{SERVER}/1.1/settle?kill=1")
    assert body["payload"]["status"] == "Killed"
    assert not process.alive


async def test_settling_the_key_of_a_tombstone_gives_it(agent):
    payload_id = await agent.completed()
    await agent.call("DELETE", f"/payloads/{payload_id}")
    _, body = await agent.call("POST", f"/keys/{SERVER}/1.1/settle?kill=1")
    assert (body["payload"]["id"], body["payload"]["status"]) == (payload_id, "Cleaned")


async def test_an_invalid_key_cannot_be_settled(agent):
    status, body = await agent.call("POST", f"/keys/{SERVER}/one/settle")
    assert (status, body["code"]) == (400, "invalid_key")


# -- results


async def test_a_result_comes_with_its_length_and_digest_and_in_ranges(agent):
    payload_id = await agent.completed()
    async with agent.http.get(f"/retrieve/{payload_id}") as response:
        data = await response.read()
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert response.headers["Repr-Digest"] == f"sha-256=:{digest}:"
        assert int(response.headers["Content-Length"]) == len(data)
    _, body = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    assert body["payload"]["result"] == {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "stdout_bytes": 0,
        "stderr_bytes": 0,
        "children": 0,
    }
    headers = {"Range": "bytes=10-"}
    async with agent.http.get(f"/retrieve/{payload_id}", headers=headers) as response:
        assert response.status == 206
        assert await response.read() == data[10:]


async def test_retrieve_waits_for_the_end_when_asked(agent):
    _, payload = await agent.submit()
    process = await agent.sandbox.process("1.1")
    waiting = asyncio.ensure_future(agent.http.get(f"/retrieve/{payload['id']}?wait=30"))
    await agent.clock.settle()
    assert not waiting.done()
    process.finish()
    async with await waiting as response:
        assert response.content_type == "application/zip"


async def test_retrieve_replies_when_the_wait_is_over(agent):
    _, body = await agent.submit()
    process = await agent.sandbox.process("1.1")
    waiting = asyncio.ensure_future(agent.call("GET", f"/retrieve/{body['id']}?wait=30"))
    await agent.clock.until_asleep(30)
    await agent.clock.advance(30)
    status, body = await waiting
    assert (status, body["status"]) == (200, "Running")
    process.finish()


async def test_a_completed_payload_that_is_killed_stays_completed_with_its_result(agent):
    payload_id = await agent.completed()
    status, body = await agent.call("POST", f"/kill/{payload_id}")
    assert (status, body["status"]) == (200, "Completed")
    assert "run.sh" in await agent.zip(f"/retrieve/{payload_id}")


# -- acknowledging


async def test_an_acknowledged_payload_is_cleaned_and_repeats_are_harmless(agent, tmp_path):
    payload_id = await agent.completed()
    for _ in range(2):
        assert await agent.call("DELETE", f"/payloads/{payload_id}") == (204, None)
    for name in ("bundles", "results", "logs"):
        await until_holds(tmp_path / "agent" / name)
    assert (await agent.call("GET", f"/retrieve/{payload_id}"))[1]["status"] == "Cleaned"
    assert (await agent.call("GET", f"/retrieve_partial/{payload_id}"))[0] == 404
    assert await agent.call("DELETE", "/payloads/99") == (204, None)


async def test_a_running_payload_cannot_be_acknowledged(agent):
    _, payload = await agent.submit()
    await agent.sandbox.process("1.1")
    status, refusal = await agent.call("DELETE", f"/payloads/{payload['id']}")
    assert (status, refusal["code"]) == (409, "not_ended")


# -- the list


async def test_the_list_is_sent_in_pages_and_has_what_changes_meanwhile(agent, monkeypatch):
    ids = [await agent.completed(f"{number}.1") for number in range(1, 6)]
    pages: list[int] = []
    real = Payloads.changed_after

    async def two_at_a_time(self, after, server):
        rows = await real(self, after, server, 2)
        if not pages:
            await agent.call("DELETE", f"/payloads/{ids[4]}")
            _, body = await agent.submit("9.1")
            ids.append(body["id"])
        pages.append(len(rows))
        return rows

    monkeypatch.setattr(routes, "BATCH", 2)
    monkeypatch.setattr(Payloads, "changed_after", two_at_a_time)
    listed: list[int] = []
    after: int | None = 0
    while after is not None:
        _, body = await agent.call("GET", f"/payloads?server={SERVER}&after={after}")
        page = PayloadList.model_validate(body)
        listed += [one.id for one in page.payloads]
        after = page.next
    assert listed == [*ids[:4], ids[5]]
    assert pages == [2, 2, 1]
    (await agent.sandbox.process("9.1")).finish()


async def test_the_list_of_an_agent_that_holds_nothing_is_empty(agent):
    assert await agent.call("GET", "/payloads") == (
        200,
        {"seq": 0, "payloads": [], "next": None},
    )


# -- health and tokens


async def test_its_health_has_its_name_and_services(tmp_path):
    async with calling(tmp_path, services=["example"]) as agent:
        await agent.submit()
        await agent.sandbox.process("1.1")
        _, body = await agent.call("GET", "/health")
        health = AgentHealth.model_validate(body)
        assert (health.agent, health.slots, health.running) == ("node-1", 2, 1)
        assert health.services == ["example"]
        assert health.version
        assert health.sandbox is not None
        assert health.sandbox["backend"] == "fake"


async def test_with_a_broken_sandbox_it_is_unhealthy_and_refuses_submits(agent):
    agent.sandbox.broken = "no user namespaces: sysctl user.max_user_namespaces"
    _, payload = await agent.submit()
    assert (await agent.ended(payload["id"]))["interrupted"]
    status, health = await agent.call("GET", "/health")
    assert status == 503
    assert "max_user_namespaces" in health["message"]
    status, refusal = await agent.submit("2.1")
    assert (status, refusal["code"]) == (503, "sandbox_broken")
    agent.sandbox.broken = None
    await agent.clock.advance(11)
    assert (await agent.call("GET", "/health"))[0] == 200
    assert (await agent.submit("2.1"))[0] == 200
    (await agent.sandbox.process("2.1")).finish()


async def test_with_tokens_requests_need_one(tmp_path):
    async with calling(
        tmp_path, tokens=["a-secret-of-agents", "another-secret-of-agents"]
    ) as agent:
        assert (await agent.call("GET", "/payloads"))[0] == 200
        for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            status, body = await agent.call("GET", "/payloads", headers=headers)
            assert (status, body["code"]) == (401, "unauthorized")
            status, _ = await agent.call("POST", "/submit", data=b"x", headers=headers)
            assert status == 401
            assert (await agent.call("GET", "/health", headers=headers))[0] == 200
