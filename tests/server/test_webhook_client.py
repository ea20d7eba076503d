"""The client of webhooks against real sockets, and the machines that it does not reach."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
from typing import Any

import pytest

from server.domain.webhook_targets import AllowedTargets, webhook_target
from server.domain.webhooks import Delivery, Try
from server.webhooks import client as module
from server.webhooks.client import HttpWebhookClient
from shared.clock import RealClock
from tests.kit.webhook_receiver import receiving

DELIVERY = Delivery(
    id=1,
    job_id=7,
    principal="ann",
    url="",
    event="job.completed",
    body='{"type":"job.completed"}',
    state="pending",
    message="",
    tries=3,
    next_at=0,
    created_at=0,
    ended_at=None,
)


def names(**addresses: str | list[str]) -> Any:
    """A name server; it says for each look-up of a name the next of its addresses."""

    def lookup(host: str, port: int) -> list[tuple[Any, ...]]:
        found = addresses.get(host.replace(".", "_"))
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        text = found.pop(0) if isinstance(found, list) else found
        return socket.getaddrinfo(text, port, type=socket.SOCK_STREAM)

    return lookup


async def post(url: str, allow: tuple[str, ...] = (), lookup: Any = None) -> Try:
    client = HttpWebhookClient(AllowedTargets(allow), RealClock(), lookup)
    try:
        return await client.post(dataclasses.replace(DELIVERY, url=url), "v1,x", "msg_1", 17)
    finally:
        await client.close()


async def test_a_webhook_is_posted_with_its_headers():
    async with receiving() as receiver:
        done = await post(receiver.url("/a?b=c"), ("127.0.0.1",))
        (received,) = receiver.received
    assert (done.number, done.status, done.problem, done.is_final) == (3, 204, None, False)
    assert received.path == "/a?b=c"
    assert received.body == DELIVERY.body.encode()
    assert received.headers["webhook-id"] == "msg_1"
    assert received.headers["webhook-timestamp"] == "17"
    assert received.headers["webhook-signature"] == "v1,x"
    assert received.headers["Content-Type"] == "application/json"
    assert received.headers["User-Agent"].startswith("ferryman/")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
async def test_this_machine_is_not_reached(host):
    async with receiving() as receiver:
        done = await post(f"http://{host}:{receiver.port}/")
        assert not receiver.received
    assert done.is_final
    assert done.status is None
    assert done.problem is not None
    assert "is not a public address" in done.problem


async def test_a_name_that_leads_inwards_is_not_followed():
    async with receiving() as receiver:
        url = f"http://evil.example:{receiver.port}/"
        done = await post(url, (), names(evil_example="127.0.0.1"))
        assert not receiver.received
    assert done.is_final
    assert done.problem is not None
    assert done.problem.startswith("evil.example leads to what is not a public address")
    assert "127.0.0.1" not in done.problem


async def test_a_name_that_leads_elsewhere_a_moment_later_is_not_followed():
    """Rebinding: public when it is looked at, inwards when it is connected to."""
    lookup = names(evil_example=["8.8.8.8", "127.0.0.1"])
    async with receiving() as receiver:
        url = f"http://evil.example:{receiver.port}/"
        client = HttpWebhookClient(AllowedTargets(()), RealClock(), lookup)
        assert await client.refusal(webhook_target(url)) is None
        done = await client.post(dataclasses.replace(DELIVERY, url=url), "v1,x", "msg_1", 17)
        await client.close()
        assert not receiver.received
    assert done.is_final


async def test_a_host_that_is_allowed_by_name_is_reached_at_its_port_only():
    lookup = names(hooks_internal="127.0.0.1")
    async with receiving() as receiver:
        word = f"hooks.internal:{receiver.port}"
        done = await post(receiver.url(host="hooks.internal"), (word,), lookup)
        assert done.problem is None
        done = await post("http://hooks.internal:1/", (word,), lookup)
        assert done.is_final


async def test_an_upload_learns_early_that_its_address_leads_inwards():
    lookup = names(evil_example="10.0.0.1", good_example="8.8.8.8")
    client = HttpWebhookClient(AllowedTargets(("192.168.0.0/16",)), RealClock(), lookup)
    refusals = [
        await client.refusal(webhook_target(url))
        for url in (
            "http://evil.example/",
            "http://good.example/",
            "http://unknown.example/",
            "http://192.168.0.1/",
            "http://127.0.0.1/",
        )
    ]
    assert [why is not None for why in refusals] == [True, False, False, False, True]
    await client.close()


async def test_a_name_server_that_hangs_keeps_an_upload_for_a_moment_only(monkeypatch):
    monkeypatch.setattr(module, "_LOOKUP_S", 0.01)
    release = threading.Event()

    def lookup(_host: str, _port: int) -> list[tuple[Any, ...]]:
        release.wait()
        return []

    client = HttpWebhookClient(AllowedTargets(()), RealClock(), lookup)
    try:
        assert await client.refusal(webhook_target("http://slow.example/")) is None
    finally:
        release.set()
        await client.close()


async def test_redirects_are_not_followed():
    async with receiving() as receiver:
        receiver.answers[:] = [(307, {"Location": receiver.url("/secret")})]
        done = await post(receiver.url("/a"), ("127.0.0.1",))
        assert [one.path for one in receiver.received] == ["/a"]
    assert done.problem == "answered 307 Temporary Redirect: redirects are not followed"
    assert not done.is_final


async def test_what_a_receiver_says_about_the_next_try():
    async with receiving(
        (503, {"Retry-After": "120"}), (429, {"Retry-After": "soon"}), 410
    ) as receiver:
        done = [await post(receiver.url(), ("127.0.0.1",)) for _ in range(3)]
    assert [one.retry_after_s for one in done] == [120, None, None]
    assert [one.is_final for one in done] == [False, False, True]


async def test_a_receiver_that_does_not_answer_is_left_after_a_while(monkeypatch):
    monkeypatch.setattr(module, "_TOTAL_S", 0.05)
    async with receiving() as receiver:
        receiver.hold.clear()
        done = await post(receiver.url(), ("127.0.0.1",))
    assert (done.status, done.problem) == (None, "no answer within 0.05 s")


async def test_of_an_endless_answer_only_its_beginning_is_read():
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65_536)
                sent += 65_536
                await writer.drain()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    done = await post(f"http://127.0.0.1:{port}/", ("127.0.0.1",))
    server.close()
    assert done.problem is None
    assert sent < 20_000_000


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "the connection was cut off"),
        (b"220 mail.example.org ESMTP\r\n", "what was answered is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "what was answered is not HTTP"),
    ],
)
async def test_what_does_not_speak_http_is_said_so_and_not_repeated(answer, problem):
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    done = await post(f"http://127.0.0.1:{port}/", ("127.0.0.1",))
    server.close()
    assert (done.status, done.problem) == (None, problem)


async def test_what_goes_wrong_before_an_answer_is_said():
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
