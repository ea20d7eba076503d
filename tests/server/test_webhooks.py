"""Webhooks over HTTP with a real receiver; their client and the machines it does not reach."""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from server.domain.webhooks import AllowedTargets, Delivery, Try, webhook_target
from server.webhooks import client as module
from server.webhooks.client import HttpWebhookClient
from shared.clock import RealClock
from shared.principals import Principal, Role
from tests.kit.waiting import eventually
from tests.kit.warm import Place
from tests.kit.webhook_receiver import Received, receiving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = '[server]\nwebhook_allow = ["127.0.0.0/8"]\n'
OPERATOR, ANN, BOB = (letter * 20 for letter in "oab")
PRINCIPALS = {
    OPERATOR: Principal("op", Role.OPERATOR),
    ANN: Principal("ann", Role.USER, "7"),
    BOB: Principal("bob", Role.USER, "8"),
}
SECRET = "/api/v1/webhook-secret"


async def delivered(place: Place, job: int, state: str = "delivered", tries: int = 1) -> Any:
    """The newest webhook of the job, once it is in the state."""

    def wanted(found: Any) -> bool:
        newest = (found["webhooks"] or [{}])[-1]
        # A try counts when it starts, its answer is noted after it.
        return newest.get("state") == state and len(newest["tried"]) >= tries

    found = await eventually(lambda: place.api("GET", f"/jobs/{job}"), wanted)
    return found["webhooks"][-1]


def verified(received: Received, secret: str) -> Any:
    return Webhook(secret).verify(received.body, dict(received.headers))


async def test_the_end_of_a_job_is_posted_to_its_address_with_a_signature(place):
    async with receiving() as receiver:
        address = receiver.url("/hook?for=7")
        job = await place.upload(callback_url=address, name="fold", meta='{"run": "r1"}')
        (received,) = await receiver.arrived(1)
        _, secret = await place.ask("GET", SECRET)
        assert secret["principal"] == "op"
        body = verified(received, secret["secrets"][0])
        assert (received.path, body["type"]) == ("/hook?for=7", "job.completed")
        assert received.headers["Content-Type"] == "application/json"
        assert received.headers["User-Agent"].startswith("ferryman/")
        shown = await place.job(job)
        same = ("id", "status", "message", "user_id", "service", "name", "tags", "meta", "attempt")
        for name in (*same, "run", "reason", "exit_code", "created_at", "started_at", "ended_at"):
            assert body["data"][name] == shown[name], name
        assert body["data"]["meta"] == {"run": "r1"}
        assert body["timestamp"] == shown["ended_at"]
        assert shown["callback_url"] == address
        log = await delivered(place, job)
        assert (log["event"], log["tries"], log["tried"][0]["status"]) == ("job.completed", 1, 204)
        assert log["next_at"] is None
        assert log["ended_at"]
        # A job that is deleted takes its deliveries along.
        assert (await place.ask("DELETE", f"/api/v1/jobs/{job}"))[0] == 204
        assert await place.server.context.stages.webhooks.of_job(job) == []


async def test_a_failed_delivery_is_tried_again_unless_the_receiver_is_gone(place, monkeypatch):
    monkeypatch.setattr("server.domain.webhooks._DELAYS_S", (0.01, 3_600))
    async with receiving((503, {}), 500) as receiver:
        job = await place.upload(callback_url=receiver.url())
        first, second = await receiver.arrived(2)
        log = await delivered(place, job, "pending", 2)
        assert log["message"] == "answered 500 Internal Server Error"
        assert [one["status"] for one in log["tried"]] == [503, 500]
        assert log["next_at"] > log["tried"][1]["at"]
        assert first.body == second.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
    async with receiving(410) as receiver:
        job = await place.upload(callback_url=receiver.url())
        log = await delivered(place, job, "failed")
        assert log["message"] == "answered 410 Gone: the receiver wants no more"


async def test_each_principal_has_a_secret_of_its_own_which_it_replaces(place):
    async def secrets(token: str, method: str = "GET", query: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        status, found = await place.ask(method, SECRET + query, headers=headers)
        return found["secrets"] if status == 200 else status

    async with receiving() as receiver:
        (old,) = await secrets(ANN)
        new, former = await secrets(ANN, "POST")
        assert former == old != new
        ann = {"Authorization": f"Bearer {ANN}"}
        await place.posted(headers=ann, user_id="7", callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        for secret in (new, old):
            verified(received, secret)
        assert await secrets(BOB, query="?principal=ann") == 403
        assert await secrets(BOB, "POST", "?principal=ann") == 403
        assert await secrets(OPERATOR, query="?principal=ann") == [new, old]
        assert len({(await secrets(token))[0] for token in PRINCIPALS}) == 3


async def test_timestamps_are_of_the_clock_that_receivers_compare_with(place):
    """The server's own time follows a jump slowly; signatures would be refused as too old."""
    clock = place.warm.clock
    async with receiving() as receiver:
        clock.jump(3 * 86_400)
        await place.upload(callback_url=receiver.url())
        (received,) = await receiver.arrived(1)
        sent_at = int(received.headers["webhook-timestamp"])
        assert abs(sent_at - clock.now() / 1_000_000) < 20
        clock.jump(-3 * 86_400)


# -- the client


def delivery(url: str) -> Delivery:
    given: dict[str, Any] = {"event": "job.completed", "next_at": 0, "created_at": 0}
    given |= {"principal": "ann", "body": "{}", "message": "", "ended_at": None}
    return Delivery(id=1, job_id=7, url=url, state="pending", tries=3, **given)


def names(**addresses: str | list[str]) -> Any:
    """A name server; it says for each look-up of a name the next of its addresses."""

    def lookup(host: str, port: int) -> list[tuple[Any, ...]]:
        found = addresses.get(host.replace(".", "_"))
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        text = found.pop(0) if isinstance(found, list) else found
        return socket.getaddrinfo(text, port, type=socket.SOCK_STREAM)

    return lookup


@contextlib.asynccontextmanager
async def client_of(*allow: str, lookup: Any = None) -> AsyncIterator[HttpWebhookClient]:
    client = HttpWebhookClient(AllowedTargets(allow), RealClock())
    client._lookup = lookup or client._lookup
    try:
        yield client
    finally:
        await client.close()


async def post(url: str, allow: tuple[str, ...] = (), lookup: Any = None) -> Try:
    async with client_of(*allow, lookup=lookup) as client:
        return await client.post(delivery(url), "v1,x", "msg_1", 17)


async def test_this_machine_is_not_reached_by_address_or_by_a_name_that_leads_there_later():
    async with receiving() as receiver:
        for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"):
            done = await post(f"http://{host}:{receiver.port}/")
            assert (done.is_final, done.status) == (True, None), host
            assert "is not a public address" in str(done.problem), host
        url = f"http://evil.example:{receiver.port}/"
        done = await post(url, (), names(evil_example="127.0.0.1"))
        assert done.is_final
        assert str(done.problem).startswith("evil.example leads to what is not a public address")
        assert "127.0.0.1" not in str(done.problem)
        # Rebinding: public when it is looked at, inwards when it is connected to.
        lookup = names(evil_example=["8.8.8.8", "127.0.0.1"])
        async with client_of(lookup=lookup) as client:
            assert await client.refusal(webhook_target(url)) is None
            assert (await client.post(delivery(url), "v1,x", "msg_1", 17)).is_final
        assert not receiver.received
        # A host that is allowed by name is reached at its port only.
        lookup, word = names(hooks_internal="127.0.0.1"), f"hooks.internal:{receiver.port}"
        done = await post(receiver.url(host="hooks.internal"), (word,), lookup)
        assert done.problem is None
        assert (await post("http://hooks.internal:1/", (word,), lookup)).is_final


async def test_an_upload_learns_early_that_its_address_leads_inwards(monkeypatch):
    """A name server that hangs keeps it for a moment only."""
    lookup = names(evil_example="10.0.0.1", good_example="8.8.8.8")
    async with client_of("192.168.0.0/16", lookup=lookup) as client:
        reached = ("good.example", "unknown.example", "192.168.0.1")
        for host in (*reached, "evil.example", "127.0.0.1"):
            why = await client.refusal(webhook_target(f"http://{host}/"))
            assert (why is None) is (host in reached), host
    monkeypatch.setattr(module, "_LOOKUP_S", 0.01)
    release = threading.Event()
    async with client_of(lookup=lambda *_: release.wait() and []) as client:
        try:
            assert await client.refusal(webhook_target("http://slow.example/")) is None
        finally:
            release.set()


async def test_what_a_receiver_answers_says_whether_and_when_it_is_tried_again(monkeypatch):
    answers = (503, {"Retry-After": "120"}), (429, {"Retry-After": "soon"}), 410
    async with receiving(*answers) as receiver:
        done = [await post(receiver.url(), ("127.0.0.1",)) for _ in range(3)]
        assert [one.retry_after_s for one in done] == [120, None, None]
        assert [one.is_final for one in done] == [False, False, True]
        receiver.received.clear()
        receiver.answers[:] = [(307, {"Location": receiver.url("/secret")})]
        moved = await post(receiver.url("/a"), ("127.0.0.1",))
        assert [one.path for one in receiver.received] == ["/a"]
        assert moved.problem == "answered 307 Temporary Redirect: redirects are not followed"
        assert not moved.is_final
        monkeypatch.setattr(module, "_TOTAL_S", 0.05)
        receiver.hold.clear()
        late = await post(receiver.url(), ("127.0.0.1",))
        assert (late.status, late.problem) == (None, "no answer within 0.05 s")


@contextlib.asynccontextmanager
async def answering(said: Iterable[bytes]) -> AsyncIterator[str]:
    """The address of something that reads the head of a request, says this and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for data in said:
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


NO_HTTP = "what was answered is not HTTP"


async def test_what_is_no_answer_is_said_and_not_repeated_and_of_an_endless_one_little_is_read():
    for said, problem in (
        (b"", "the connection was cut off"),
        (b"220 mail.example.org ESMTP\r\n", NO_HTTP),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, NO_HTTP),
    ):
        async with answering([said]) as url:
            done = await post(url, ("127.0.0.1",))
        assert (done.status, done.problem) == (None, problem)
    sent, head = itertools.count(), b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n"
    async with answering(itertools.chain([head], (b"x" * 65_536 for _ in sent))) as url:
        assert (await post(url, ("127.0.0.1",))).problem is None
    assert next(sent) < 300
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        done = await post(f"http://127.0.0.1:{port}/", ("127.0.0.1",))
        assert done.problem == "could not connect: Connection refused"
        assert not done.is_final
    done = await post("http://nowhere.example/", (), names())
    assert done.problem == "the name is not known"
    async with receiving() as receiver:
        done = await post(f"https://127.0.0.1:{receiver.port}/", ("127.0.0.1",))
        assert done.problem == "TLS could not be started"
