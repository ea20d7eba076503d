"""What a server of ours sees of an agent of ours."""

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
from tests.support.agent import LIMITS, SERVER
from tests.support.agent_http import HELLO, Caller, calling


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


def folders(tmp_path, *names):
    return {name: len(list((tmp_path / "agent" / name).iterdir())) for name in names}


# -- taking


async def test_an_order_is_run_as_ordered(agent):
    status, told = await agent.submit("17.2", timeout_s=90.0, service="docking")
    assert status == 200
    doc = PayloadDoc.model_validate(told)
    assert (doc.status, doc.server, doc.key) == ("Prepared", SERVER, "17.2")
    process = await agent.sandbox.process("17.2")
    assert process.launch.timeout_s == 90.0
    assert process.launch.env["FERRYMAN_SERVICE"] == "docking"
    assert process.launch.env["FERRYMAN_MEMORY_BYTES"] == str(LIMITS.memory)
    assert process.read("run.sh") == HELLO["run.sh"]
    process.finish()


async def test_a_repeated_order_is_harmless_in_every_state(agent, tmp_path):
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
    assert folders(tmp_path, "bundles", "staging", "results") == {
        "bundles": 0,
        "staging": 0,
        "results": 0,
    }


async def test_of_orders_at_once_with_one_key_one_wins_and_all_hear_of_it(agent, tmp_path):
    answers = await asyncio.gather(*(agent.submit() for _ in range(8)))
    assert {status for status, _ in answers} == {200}
    assert len({told["id"] for _, told in answers}) == 1
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
    status, told = await agent.submit("2.1", of_bob)
    assert (status, told["code"]) == (409, "digest_mismatch")
    assert "id" not in told
    assert agent.sandbox.starts == {"2.1": 1}
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}
    await agent.call("DELETE", f"/payloads/{payload_id}")
    status, told = await agent.submit("2.1", of_bob)
    assert (status, told["code"]) == (409, "digest_mismatch")


async def test_a_payload_names_the_bundle_that_it_was_submitted_with(agent):
    _, digest = agent.bundle()
    _, told = await agent.submit()
    assert told["bundle_digest"] == digest
    _, settled = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    assert settled["payload"]["bundle_digest"] == digest
    (await agent.sandbox.process("1.1")).finish()


async def test_more_files_than_a_bundle_may_have_are_refused_before_they_are_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(submit, "MAX_FILES", 3)
    async with calling(tmp_path) as agent:
        status, told = await agent.submit_plain(dict.fromkeys(["run.sh", "a", "b", "c"], b"x"))
        assert (status, told["code"]) == (413, "too_many_files")
        assert "more than 3 files" in told["message"]
        assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}


def test_no_server_takes_more_files_than_an_agent_can_unpack():
    with pytest.raises(ValueError, match=f"less than or equal to {MAX_FILES}"):
        ServerTable(max_files=MAX_FILES + 1)


async def test_an_older_attempt_than_one_known_is_stale(agent):
    await agent.submit("1.2")
    status, told = await agent.submit("1.1")
    assert (status, told["code"]) == (409, "stale_attempt")


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
async def test_what_is_not_as_ordered_is_refused_and_leaves_nothing(agent, tmp_path, changed, code):
    status, told = await agent.submit(**changed)
    assert 400 <= status < 500
    assert told["code"] == code
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}
    assert (await agent.call("GET", "/payloads"))[1]["payloads"] == []


async def test_a_bundle_that_is_no_bundle_is_refused(agent, tmp_path):
    order = agent.order("1.1", b"not a zip", "0" * 64)
    status, told = await agent.post_order(order, b"not a zip")
    assert (status, told["code"]) == (400, "invalid_bundle")
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}


async def test_an_order_that_is_no_order_is_refused(agent):
    status, told = await agent.post_order("{}", b"x")
    assert (status, told["code"]) == (400, "invalid_order")
    assert "server" in told["message"]


async def test_a_body_that_is_no_form_is_refused(agent):
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
    while folders(tmp_path, "staging") != {"staging": 0}:
        await agent.call("GET", "/")
    assert folders(tmp_path, "bundles") == {"bundles": 0}
    assert (await agent.submit("1.1"))[0] == 200
    (await agent.sandbox.process("1.1")).finish()


async def test_what_is_no_route_is_told_as_json(agent):
    assert (await agent.call("GET", "/nowhere"))[0] == 404
    assert (await agent.call("GET", "/submit"))[0] == 405
    status, told = await agent.call("GET", "/retrieve/x")
    assert (status, told["code"]) == (404, "no_such_route")


async def test_a_service_that_is_not_offered_is_refused(tmp_path):
    async with calling(tmp_path, services=["example", "docking"]) as agent:
        status, told = await agent.submit(service="folding")
        assert (status, told["code"]) == (403, "not_offered")
        assert (await agent.submit())[0] == 200
        (await agent.sandbox.process("1.1")).finish()


async def test_a_bundle_over_the_limit_is_413_before_it_is_stored(tmp_path):
    async with calling(tmp_path, max_upload=1000) as agent:
        status, told = await agent.submit(files={"run.sh": b"x" * 2000})
        assert (status, told["code"]) == (413, "too_large")
        assert "max_upload" in told["message"]


async def test_a_disk_near_its_floor_takes_nothing_and_says_so(tmp_path):
    async with calling(tmp_path, min_free=1 << 60) as agent:
        async with agent.http.post("/submit", data={"a": "b"}) as response:
            told = await response.json()
        assert (response.status, told["code"]) == (507, "disk_full")
        assert int(response.headers["Retry-After"]) > 0
        status, health = await agent.call("GET", "/health")
        assert (status, health["status"]) == (200, "ok")  # its results can be fetched
        assert "must stay free" in health["message"]


# -- settling


async def test_settling_tells_the_payload_of_a_key(agent):
    _, first = await agent.submit()
    await agent.sandbox.process("1.1")
    status, told = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    settled = Settled.model_validate(told)
    assert status == 200
    assert settled.payload is not None
    assert (settled.payload.id, settled.payload.status) == (first["id"], "Running")


async def test_settling_an_unknown_key_is_a_promise_that_survives_a_restart(tmp_path):
    async with calling(tmp_path) as agent:
        _, told = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
        assert told == {"payload": None}
    async with calling(tmp_path) as agent:
        status, told = await agent.submit("1.1")
        assert (status, told["code"]) == (409, "key_refused")
        assert (await agent.submit("1.2"))[0] == 200
        (await agent.sandbox.process("1.2")).finish()


class Halting:
    """An order whose body stops halfway."""

    def __init__(self, agent: Caller) -> None:
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
        """The answer to come, once the order is there, and the bundle is not."""
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
async def test_settling_refuses_an_order_that_does_not_come_further(
    agent, tmp_path, query, monkeypatch
):
    halting = Halting(agent)
    posting = await halting.begin(monkeypatch)
    settle = agent.call("POST", f"/keys/{SERVER}/1.1/settle{query}")
    settling = asyncio.ensure_future(settle)
    if not query:  # whoever cancels need not wait
        await agent.clock.until_asleep(STALLED_S)
        await agent.clock.advance(STALLED_S)
    assert (await settling)[1] == {"payload": None}
    halting.go_on.set()
    status, told = await posting
    assert (status, told["code"]) == (409, "key_refused")
    assert folders(tmp_path, "bundles", "staging") == {"bundles": 0, "staging": 0}
    assert not agent.sandbox.starts


async def test_settling_waits_for_an_order_that_comes_to_its_end_meanwhile(agent, monkeypatch):
    halting = Halting(agent)
    posting = await halting.begin(monkeypatch)
    settling = asyncio.ensure_future(agent.call("POST", f"/keys/{SERVER}/1.1/settle"))
    waiting = asyncio.ensure_future(agent.clock.until_asleep(STALLED_S))
    await asyncio.wait({settling, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    halting.go_on.set()
    status, told = await posting
    assert (status, told["status"]) == (200, "Prepared")
    assert (await settling)[1]["payload"]["id"] == told["id"]
    (await agent.sandbox.process("1.1")).finish()


async def test_settling_promises_nothing_of_an_order_that_is_being_stored(agent, monkeypatch):
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
    status, told = await posting
    assert (status, told["status"]) == (200, "Prepared")
    _, settled = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    assert settled["payload"]["id"] == told["id"]
    (await agent.sandbox.process("1.1")).finish()


async def test_settling_with_kill_answers_when_it_is_dead(agent):
    await agent.submit()
    process = await agent.sandbox.process("1.1")
    _, told = await agent.call("POST", f"/keys/{SERVER}/1.1/settle?kill=1")
    assert told["payload"]["status"] == "Killed"
    assert not process.alive


async def test_settling_a_tombstone_tells_that_it_was_there(agent):
    payload_id = await agent.completed()
    await agent.call("DELETE", f"/payloads/{payload_id}")
    _, told = await agent.call("POST", f"/keys/{SERVER}/1.1/settle?kill=1")
    assert (told["payload"]["id"], told["payload"]["status"]) == (payload_id, "Cleaned")


async def test_a_key_that_is_none_cannot_be_settled(agent):
    status, told = await agent.call("POST", f"/keys/{SERVER}/one/settle")
    assert (status, told["code"]) == (400, "invalid_key")


# -- results


async def test_a_result_comes_with_its_length_and_digest_and_in_ranges(agent):
    payload_id = await agent.completed()
    async with agent.http.get(f"/retrieve/{payload_id}") as response:
        data = await response.read()
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert response.headers["Repr-Digest"] == f"sha-256=:{digest}:"
        assert int(response.headers["Content-Length"]) == len(data)
    _, told = await agent.call("POST", f"/keys/{SERVER}/1.1/settle")
    assert told["payload"]["result"] == {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    headers = {"Range": "bytes=10-"}
    async with agent.http.get(f"/retrieve/{payload_id}", headers=headers) as response:
        assert response.status == 206
        assert await response.read() == data[10:]


async def test_retrieve_waits_for_the_end_when_asked(agent):
    _, told = await agent.submit()
    process = await agent.sandbox.process("1.1")
    waiting = asyncio.ensure_future(agent.http.get(f"/retrieve/{told['id']}?wait=30"))
    await agent.clock.settle()
    assert not waiting.done()
    process.finish()
    async with await waiting as response:
        assert response.content_type == "application/zip"


async def test_retrieve_answers_when_the_wait_is_over(agent):
    _, told = await agent.submit()
    process = await agent.sandbox.process("1.1")
    waiting = asyncio.ensure_future(agent.call("GET", f"/retrieve/{told['id']}?wait=30"))
    await agent.clock.until_asleep(30)
    await agent.clock.advance(30)
    status, told = await waiting
    assert (status, told["status"]) == (200, "Running")
    process.finish()


async def test_a_completed_payload_that_is_killed_stays_completed_with_its_result(agent):
    payload_id = await agent.completed()
    status, told = await agent.call("POST", f"/kill/{payload_id}")
    assert (status, told["status"]) == (200, "Completed")
    assert "run.sh" in await agent.zip(f"/retrieve/{payload_id}")


# -- acknowledging


async def test_what_is_acknowledged_is_gone_and_repeats_are_harmless(agent, tmp_path):
    payload_id = await agent.completed()
    for _ in range(2):
        assert await agent.call("DELETE", f"/payloads/{payload_id}") == (204, None)
    assert folders(tmp_path, "bundles", "results", "logs") == {
        "bundles": 0,
        "results": 0,
        "logs": 0,
    }
    assert (await agent.call("GET", f"/retrieve/{payload_id}"))[1]["status"] == "Cleaned"
    assert (await agent.call("GET", f"/retrieve_partial/{payload_id}"))[0] == 404
    assert await agent.call("DELETE", "/payloads/99") == (204, None)


async def test_what_runs_cannot_be_acknowledged(agent):
    _, told = await agent.submit()
    await agent.sandbox.process("1.1")
    status, refusal = await agent.call("DELETE", f"/payloads/{told['id']}")
    assert (status, refusal["code"]) == (409, "not_ended")


# -- the list


async def test_the_list_comes_page_by_page_and_tells_what_changes_meanwhile(agent, monkeypatch):
    ids = [await agent.completed(f"{number}.1") for number in range(1, 6)]
    pages: list[int] = []
    real = Payloads.changed_after

    async def two_at_a_time(self, after, server):
        rows = await real(self, after, server, 2)
        if not pages:
            await agent.call("DELETE", f"/payloads/{ids[4]}")
            _, told = await agent.submit("9.1")
            ids.append(told["id"])
        pages.append(len(rows))
        return rows

    monkeypatch.setattr(routes, "BATCH", 2)
    monkeypatch.setattr(Payloads, "changed_after", two_at_a_time)
    _, told = await agent.call("GET", f"/payloads?server={SERVER}")
    listed = PayloadList.model_validate(told)
    assert [one.id for one in listed.payloads] == [*ids[:4], ids[5]]
    assert pages == [2, 2, 1]
    (await agent.sandbox.process("9.1")).finish()


async def test_the_list_of_an_agent_that_holds_nothing_is_empty(agent):
    assert await agent.call("GET", "/payloads") == (200, {"seq": 0, "payloads": []})


# -- health and tokens


async def test_its_health_names_it_and_what_it_offers(tmp_path):
    async with calling(tmp_path, services=["example"]) as agent:
        await agent.submit()
        await agent.sandbox.process("1.1")
        _, told = await agent.call("GET", "/health")
        health = AgentHealth.model_validate(told)
        assert (health.agent, health.slots, health.running) == ("node-1", 2, 1)
        assert health.services == ["example"]
        assert health.version
        assert health.sandbox is not None
        assert health.sandbox["backend"] == "fake"


async def test_a_broken_sandbox_is_told_and_nothing_is_taken_until_it_is_mended(agent):
    agent.sandbox.broken = "no user namespaces: sysctl user.max_user_namespaces"
    _, told = await agent.submit()
    assert (await agent.ended(told["id"]))["interrupted"]
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


async def test_with_tokens_only_who_shows_one_is_answered(tmp_path):
    async with calling(
        tmp_path, tokens=["a-secret-of-agents", "another-secret-of-agents"]
    ) as agent:
        assert (await agent.call("GET", "/payloads"))[0] == 200
        for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            status, told = await agent.call("GET", "/payloads", headers=headers)
            assert (status, told["code"]) == (401, "unauthorized")
            status, _ = await agent.call("POST", "/submit", data=b"x", headers=headers)
            assert status == 401
            assert (await agent.call("GET", "/health", headers=headers))[0] == 200
