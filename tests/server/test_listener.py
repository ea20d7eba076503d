"""Connections that send or take too slowly are closed, and others are not; files that the kernel
copies to them.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import ClientSession, web
from structlog.testing import capture_logs

from shared.http import kernel_copy
from shared.http.authentication import PRINCIPAL
from shared.http.connections import connection_limits
from shared.http.file_response import send_file
from shared.http.listener import Listener
from shared.http.protocol import SMALL, Connection, Deadlines
from shared.http.sockets import listen
from shared.principals import ANONYMOUS, LOCAL
from tests.kit.each import each

LATER = 600.0
SOON = 0.05
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
REFUSED = b"POST /refuse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 64000000\r\n\r\n"
TAKE = b"POST /take HTTP/1.1\r\nHost: localhost\r\n"
BIG = 32 << 20
DATA = bytes(range(256)) * 4096 * 20
DIGEST = hashlib.sha256(DATA).hexdigest()


class App:
    """A small application that listens."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.known = True
        self.rest_s = 0.0
        self.taken = 0
        self.transport: asyncio.Transport | None = None
        self.file, self.url, self.port = Path(), "", 0
        self.ended = asyncio.Event()
        self.problem: BaseException | None = None
        self.sent = 0

    async def get(self, _: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def refuse(self, request: web.Request) -> web.Response:
        request[PRINCIPAL] = LOCAL if self.known else ANONYMOUS
        assert isinstance(request.transport, asyncio.Transport)
        self.transport = request.transport
        response = web.Response(status=413, text="no")
        response.force_close()
        return response

    async def take(self, request: web.Request) -> web.Response:
        if self.rest_s:
            assert isinstance(request.protocol, Connection)
            request.protocol._pause_reading(self.rest_s)
        return web.Response(text=str(len(await request.read())))

    async def big(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with self.noted():
            for _ in range(BIG >> 18):
                await response.write(bytes(1 << 18))
                self.taken += 1 << 18
        return response

    async def send(self, request: web.Request) -> web.StreamResponse:
        with self.noted():
            answer = await send_file(request, self.file, "a.zip", DIGEST)
            self.sent = answer.body_length
            return answer

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """How an answer ends."""
        try:
            yield
        except BaseException as problem:
            self.problem = problem
            raise
        finally:
            self.ended.set()

    async def held(self, request: web.Request) -> web.StreamResponse:
        """Sent, and not finished until the test says so."""
        response = web.StreamResponse(headers={"Content-Length": "5"})
        await response.prepare(request)
        await response.write(b"hello")
        await self.waiting.wait()
        return response

    async def wait(self, request: web.Request) -> web.Response:
        task = asyncio.current_task()
        assert isinstance(request.protocol, Connection)
        assert task is not None
        request.protocol.cancel_on_disconnect(task)
        self.waiting.set()
        with self.noted():
            await asyncio.Event().wait()
        raise AssertionError


@contextlib.asynccontextmanager
async def serving(**deadlines: float) -> AsyncIterator[tuple[App, int]]:
    app, application = App(), web.Application(client_max_size=1 << 30)
    application.router.add_get("/", app.get)
    application.router.add_get("/big", app.big)
    application.router.add_get("/file", app.send)
    application.router.add_get("/wait", app.wait)
    application.router.add_get("/held", app.held)
    application.router.add_post("/refuse", app.refuse)
    application.router.add_post("/take", app.take)
    sock = listen("127.0.0.1", 0)
    given = {"head_s": LATER, "keepalive_s": LATER, "send_s": LATER} | deadlines
    listener = Listener(application, sock, connection_limits(1024), Deadlines(**given), 0.1)
    app.port = sock.getsockname()[1]
    app.url = f"http://127.0.0.1:{app.port}/file"
    await listener.start()
    try:
        yield app, app.port
    finally:
        await listener.close()


@contextlib.asynccontextmanager
async def sending(tmp_path: Path, **deadlines: float) -> AsyncIterator[App]:
    """A file, of which nothing stays open."""
    async with serving(**deadlines) as (app, _):
        app.file = tmp_path / "file"
        app.file.write_bytes(DATA)
        yield app
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            assert one.readlink() != app.file
    assert kernel_copy._sending == 0


@contextlib.asynccontextmanager
async def peer_that_stops_reading(port: int, path: bytes, most: int = 0) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", port))
        await loop.sock_sendall(line, GET.replace(b"/ ", path + b" "))
        got = 0
        while got < most:  # the file has begun
            got += len(await loop.sock_recv(line, 1_000))
        yield


@contextlib.asynccontextmanager
async def connected(
    port: int, sent: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which this was sent before it is accepted, from when its time counts."""
    early = socket.create_connection(("127.0.0.1", port))
    early.sendall(sent)
    reader, writer = await asyncio.open_connection(sock=early)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@each("sent", [b"", b"GET / HTTP/1.1\r\nHos"])
async def test_a_head_that_does_not_come_in_time_ends_the_connection(sent):
    async with serving(head_s=SOON) as (_, port):
        with capture_logs() as logs:
            async with connected(port, sent) as (reader, _):
                answer = await reader.read()
    assert b" 408 " in answer
    (line,) = [one for one in logs if one["event"] == "request.malformed"]
    assert f"X-Request-ID: {line['request_id']}\r\n".encode() in answer


async def test_a_head_that_trickles_does_not_win_time():
    head = b"GET / HTTP/1.1\r\nX: "
    async with serving(head_s=SOON) as (_, port), connected(port, head) as (reader, writer):
        end = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            for _ in range(5_000):  # with a deadline for each byte it would never end
                writer.write(b"y")
                await writer.drain()
                await asyncio.wait([end], timeout=SOON / 10)
                if end.done():
                    break
        assert end.done()
        with contextlib.suppress(ConnectionError):
            await end


async def test_the_second_head_has_its_deadline_too():
    """Also one that begins before the answer to the first is finished."""
    held = GET.replace(b"/", b"/held", 1)
    async with serving(head_s=SOON) as (app, port), connected(port, held) as (reader, writer):
        assert b"hello" in await reader.readuntil(b"hello")
        writer.write(b"GET /")
        async with connected(port, GET) as (other, _):  # that was read by now
            assert b"hello" in await other.readuntil(b"hello")
        app.waiting.set()
        assert b" 408 " in await reader.read()


async def test_an_idle_connection_is_kept_for_a_while_and_closed_without_a_word():
    async with serving(keepalive_s=SOON) as (_, port), connected(port, GET) as (reader, _):
        assert (await reader.read()).count(b"HTTP/1.1") == 1


async def test_a_body_may_take_longer_than_a_head():
    begun = TAKE + b"Content-Length: 4\r\n\r\nab"
    async with (
        serving(head_s=SOON, keepalive_s=SOON) as (_, port),
        connected(port) as (idle, _),
        connected(port, begun) as (reader, writer),
    ):
        await idle.read()  # the deadline of heads is over
        writer.write(b"cd")
        assert await reader.readuntil(b"4")


async def test_a_wait_ends_when_its_caller_is_gone():
    async with serving() as (app, port):
        async with connected(port, GET.replace(b"/ ", b"/wait ")):
            await app.waiting.wait()
        await app.ended.wait()


async def test_the_rest_of_a_refused_body_is_dropped_and_the_answer_still_arrives():
    async with serving() as (_, port), connected(port, REFUSED) as (reader, writer):
        for _ in range(64):
            writer.write(bytes(1_000_000))
            await writer.drain()
        assert b" 413 " in await reader.read()


async def test_a_peer_that_is_gone_as_it_is_refused_is_no_error(monkeypatch, caplog):
    gone = Mock(side_effect=OSError(errno.ENOTCONN, "Transport endpoint is not connected"))
    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", gone)
    async with serving() as (_, port), connected(port, REFUSED) as (reader, _):
        assert b" 413 " in await reader.readuntil(b" 413 ")
    assert [one.getMessage() for one in caplog.records] == []


async def test_without_a_token_not_even_the_rest_is_read():
    async with serving(linger_s=LATER) as (app, port):
        app.known = False
        async with connected(port, REFUSED) as (reader, _):
            assert b" 413 " in await reader.read()
            assert app.transport is not None
            assert not app.transport.is_reading()


async def test_bytes_that_are_costly_to_read_do_not_hold_up_others(monkeypatch):
    """A body in chunks of one byte: the loop's own clock says that each read took 10 ms."""
    rests: list[float] = []
    monkeypatch.setattr(Connection, "_pause_reading", lambda _, seconds: rests.append(seconds))
    async with serving() as (_, port), connected(port) as (reader, writer):
        loop = asyncio.get_running_loop()
        real, ticks = loop.time, iter(range(1_000_000))
        monkeypatch.setattr(loop, "time", lambda: real() + next(ticks) / 100)
        writer.write(TAKE + b"Transfer-Encoding: chunked\r\n\r\n")
        writer.write(b"1\r\nx\r\n" * 4_000 + b"0\r\n\r\n")
        assert await reader.readuntil(b"4000")
        costly = len(rests)
        assert costly >= 24_000 // SMALL
        assert rests[-1] > rests[0] / 2 > 0.01
        writer.write(TAKE + b"Content-Length: 100000\r\n\r\n")
        writer.write(bytes(100_000))
        assert await reader.readuntil(b"100000")
        assert len(rests) <= costly + 2  # its head at most: the rest need not be looked at


async def test_a_paused_connection_is_read_again_afterwards():
    begun = TAKE + b"Content-Length: 300000\r\n\r\n"
    async with serving() as (app, port):
        app.rest_s = SOON
        async with connected(port, begun) as (reader, writer):
            for _ in range(3):
                writer.write(bytes(100_000))
                await writer.drain()
            assert await reader.readuntil(b"300000")


@pytest.fixture
def by_kernel(monkeypatch) -> list[int]:
    """Bytes of each call of the kernel."""
    calls: list[int] = []
    real = os.sendfile

    def sendfile(*args: int) -> int:
        calls.append(real(*args))
        return calls[-1]

    monkeypatch.setattr("os.sendfile", sendfile)
    return calls


@each(
    "header, part",
    [({}, slice(None)), ({"Range": "bytes=1000000-9000000"}, slice(1_000_000, 9_000_001))],
)
async def test_a_file_is_sent_by_the_kernel(tmp_path, by_kernel, header, part):
    async with sending(tmp_path) as app, ClientSession() as session:
        for _ in range(2):  # the connection is good for another answer
            async with session.get(app.url, headers=header) as answer:
                assert await answer.read() == DATA[part]
            await app.ended.wait()
            app.ended.clear()
            assert app.sent >= len(DATA[part])  # what the metrics say
    assert sum(by_kernel) == 2 * len(DATA[part])
    by_kernel.clear()


@each("is_refused", [True, False])
async def test_what_the_kernel_cannot_send_or_too_much_at_once_goes_through_python(
    tmp_path, monkeypatch, by_kernel, is_refused
):
    refuses = Mock(side_effect=OSError(errno.EINVAL, "not with this file system"))
    with monkeypatch.context() as patch:
        if is_refused:
            patch.setattr("os.sendfile", refuses)
        else:
            patch.setattr(kernel_copy, "_AT_ONCE", 0)
        async with sending(tmp_path) as app, ClientSession() as session:
            answer = await session.get(app.url)
            assert await answer.read() == DATA
    assert (refuses.called, by_kernel) == (is_refused, [])


@each("path, most", [(b"/big", 0), (b"/file", 2_000)])
async def test_a_reader_that_stops_is_cut_off(tmp_path, by_kernel, path, most):
    """By the server: the kernel would notice it later, too."""
    async with sending(tmp_path, send_s=SOON) as app:
        with capture_logs() as lines:
            async with peer_that_stops_reading(app.port, path, most):
                await app.ended.wait()
    assert isinstance(app.problem, ConnectionError)
    assert [one["event"] for one in lines] == ["answer.cut_off"]
    taken = sum(by_kernel) if most else app.taken
    assert bool(most) <= taken <= 1 << 20  # nor does the kernel keep megabytes for it meanwhile


@each("how", [ConnectionError, asyncio.CancelledError])
async def test_a_reader_that_is_gone_or_a_stop_of_the_server_ends_an_answer(tmp_path, how):
    async with sending(tmp_path) as app:
        async with peer_that_stops_reading(app.port, b"/file", 2_000):
            if how is asyncio.CancelledError:
                (one,) = (one for one in asyncio.all_tasks() if "RequestHandler.start" in repr(one))
                one.cancel()
                await app.ended.wait()
        await app.ended.wait()
    assert isinstance(app.problem, how)


@each("at_once", [32, 0])
async def test_a_file_that_is_shorter_than_announced_ends_the_connection(
    tmp_path, monkeypatch, at_once
):
    monkeypatch.setattr(kernel_copy, "_AT_ONCE", at_once)
    twice = Mock(return_value=(2 * len(DATA), None))
    monkeypatch.setattr("shared.http.file_response._size_and_content", twice)
    async with sending(tmp_path) as app:
        with capture_logs() as lines:
            async with connected(app.port, GET.replace(b"/ ", b"/file ")) as (reader, _):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                await app.ended.wait()
    assert isinstance(app.problem, ConnectionError)
    assert "answer.too_short" in [one["event"] for one in lines]
