"""Files that the kernel copies to connections."""

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from structlog.testing import capture_logs

from shared.http import kernel_copy
from shared.http.connections import connection_limits
from shared.http.file_response import send_file
from shared.http.listener import Listener
from shared.http.protocol import Deadlines
from shared.http.sockets import listen

DATA = bytes(range(256)) * 4096 * 20
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
DIGEST = hashlib.sha256(DATA).hexdigest()


class App:
    """Sends one file."""

    def __init__(self, path: Path) -> None:
        self.path, self.url, self.port = path, "", 0
        self.size = len(DATA)
        self.ended = asyncio.Event()
        self.problem: BaseException | None = None
        self.sent = 0

    async def get(self, request: web.Request) -> web.StreamResponse:
        try:
            answer = await send_file(request, self.path, "a.zip", DIGEST, (5, self.size))
            self.sent = answer.body_length
            return answer
        except BaseException as problem:
            self.problem = problem
            raise
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, send_s: float = 600.0) -> AsyncIterator[App]:
    app, application = App(tmp_path / "file"), web.Application()
    app.path.write_bytes(b"other" + DATA + b"more")
    application.router.add_get("/", app.get)
    sock = listen("127.0.0.1", 0)
    app.port = sock.getsockname()[1]
    app.url = f"http://127.0.0.1:{app.port}/"
    listener = Listener(application, sock, connection_limits(1024), Deadlines(send_s=send_s), 0.1)
    await listener.start()
    before = descriptors(app)
    try:
        yield app
    finally:
        await listener.close()
    assert descriptors(app) <= before
    assert kernel_copy._sending == 0


def descriptors(app: App) -> int:
    """How many of this process are open for the file."""
    count = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += one.readlink() == app.path
    return count


@contextlib.asynccontextmanager
async def peer_that_stops_reading(app: App) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", app.port))
        await loop.sock_sendall(line, GET)
        got = 0
        while got < 2_000:  # the file has begun
            got += len(await loop.sock_recv(line, 1_000))
        yield


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


@pytest.mark.parametrize(
    ("header", "part"),
    [({}, slice(None)), ({"Range": "bytes=1000000-9000000"}, slice(1_000_000, 9_000_001))],
    ids=["whole", "range"],
)
async def test_a_section_of_a_file_is_sent_by_the_kernel(tmp_path, by_kernel, header, part):
    async with serving(tmp_path) as app, ClientSession() as session:
        for _ in range(2):  # the connection is good for another answer
            app.ended.clear()
            async with session.get(app.url, headers=header) as answer:
                assert await answer.read() == DATA[part]
            await app.ended.wait()
            assert app.sent >= len(DATA[part])  # what the metrics say
    assert sum(by_kernel) == 2 * len(DATA[part])


async def test_what_the_kernel_cannot_send_goes_through_python(tmp_path, monkeypatch):
    def sendfile(*_: int) -> int:
        raise OSError(errno.EINVAL, "not with this file system")

    monkeypatch.setattr("os.sendfile", sendfile)
    async with (
        serving(tmp_path) as app,
        ClientSession() as session,
        session.get(app.url) as answer,
    ):
        assert await answer.read() == DATA


async def test_more_than_some_answers_at_once_go_through_python(tmp_path, monkeypatch, by_kernel):
    monkeypatch.setattr(kernel_copy, "_AT_ONCE", 0)
    async with (
        serving(tmp_path) as app,
        ClientSession() as session,
        session.get(app.url) as answer,
    ):
        assert await answer.read() == DATA
    assert by_kernel == []


async def test_a_reader_that_stops_is_cut_off(tmp_path, by_kernel):
    async with serving(tmp_path, send_s=0.05) as app:
        with capture_logs() as lines:
            async with peer_that_stops_reading(app):
                await app.ended.wait()
    assert isinstance(app.problem, ConnectionError)
    assert [one["event"] for one in lines] == ["answer.cut_off"]
    assert 0 < sum(by_kernel) <= 1 << 20  # nor does the kernel keep megabytes for it meanwhile


async def test_a_reader_that_is_gone_ends_its_answer(tmp_path, by_kernel):
    async with serving(tmp_path) as app:
        async with peer_that_stops_reading(app):
            pass
        await app.ended.wait()
    assert isinstance(app.problem, ConnectionError)
    assert by_kernel


async def test_a_stop_of_the_server_ends_an_answer_that_is_not_read(tmp_path):
    async with serving(tmp_path) as app, peer_that_stops_reading(app):
        [connection] = [
            task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task)
        ]
        connection.cancel()
        await app.ended.wait()
    assert isinstance(app.problem, asyncio.CancelledError)


@pytest.mark.parametrize("at_once", [32, 0], ids=["kernel", "python"])
async def test_a_file_that_is_shorter_than_announced_ends_the_connection(
    tmp_path, monkeypatch, at_once
):
    monkeypatch.setattr(kernel_copy, "_AT_ONCE", at_once)
    monkeypatch.setattr(
        "shared.http.file_response._size_and_content", lambda *_: (2 * len(DATA), None)
    )
    async with serving(tmp_path) as app:
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
            writer.write(GET)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await app.ended.wait()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert isinstance(app.problem, ConnectionError)
    assert "answer.too_short" in [one["event"] for one in lines]
