"""Slow clients: while there are hundreds, with few descriptors, `/health` is answered; what readers
who read nothing hold in the server's memory is bounded, on any route.
"""

import contextlib
import io
import json
import os
import re
import select
import shutil
import socket
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.api.routes import ROUTES
from server.domain.jobs import Bundle, NewJob
from server.web.routes import ROUTES as PAGES
from shared.wire import Limits
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.programs import Program, call, until, upload
from tests.kit.store import Jobs

FILES = 300
MANY = 120
KIND = "Content-Type: multipart/form-data; boundary=b\r\n"
HALF = f"{KIND}Content-Length: 9000\r\n\r\n--b\r\n"
BYTES = f"{KIND}Transfer-Encoding: chunked\r\n\r\n" + "1\r\nx\r\n" * 2_000


def head(line: str, rest: str = "\r\n") -> str:
    return f"{line} HTTP/1.1\r\nHost: localhost\r\n{rest}"


SLOW = {
    "server": [
        *("", "GET /health HTTP/1.1\r\nHost: local"),
        *(head("POST /upload", HALF), head("POST /upload", BYTES), head("POST /nowhere", HALF)),
        *(head("GET /download/1?wait=100"), head("GET /swagger/swagger-ui-bundle.js")),
    ],
    "client_agent": [
        *("", "GET /health HTTP/1.1\r\nHost: local"),
        *(head("POST /submit", HALF), head("GET /events"), head("POST /submit", BYTES)),
        head("GET /"),
    ],
}
"""Silence, half a head, half a body, single bytes, a refusal, waits, what nobody reads."""


def with_few_files(name: str, tmp_path: Path) -> Program:
    table = {"server": "server", "client_agent": "agent"}[name]
    file = tmp_path / "settings.toml"
    file.write_text(
        f"[{table}]\n[agents.a]\nurl = 'http://127.0.0.1:9'\n[agent.sandboxing]\nnofile = 100\n"
    )
    found = Program(name, tmp_path, uuid.uuid4().hex, "--config", str(file))
    found.prefix = ("prlimit", f"--nofile=64:{FILES}")
    return found


@contextlib.contextmanager
def slow(port: int, what: str) -> Iterator[None]:
    """So many connections that send this and then nothing, and never read."""
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(20)
            line.connect(("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):  # it may have been closed to make room
                line.sendall(what.encode())
        yield


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_health_is_answered_whatever_hundreds_of_slow_clients_do(tmp_path, name):
    private = "/load" if name != "server" else "/api/v1/jobs"
    running = with_few_files(name, tmp_path)
    with running.running():
        if name == "server":
            assert upload(running.url, {"run.sh": "true"})[0] == 201
        with contextlib.ExitStack() as stack:
            for what in SLOW[name]:
                stack.enter_context(slow(running.port, what))
                assert call(running.url, "GET", "/health")[0] == 200
            used = len(list(Path(f"/proc/{running.pid}/fd").iterdir()))
            assert used < FILES - 40  # the soft limit was raised, and a reserve is kept
        assert "Too many open files" not in running.log
        until(lambda: call(running.url, "GET", private)[0] == 200, "it stays busy")


HELD = 256 << 10
"""Bytes of an answer that readers can hold memory with."""
BOUND = 100 << 20
"""For READERS."""
READERS = 200
BROWSER = "Accept: text/html,application/xhtml+xml\r\nSec-Fetch-Dest: iframe\r\n"
SSE = "Accept: text/event-stream\r\n"
ENDLESS = {"/live", "/live/{id}", "/live/{id}/log"}
"""They send what happens, as it happens: little at a time, and nothing happens here."""
FOUND = {
    "id": "1",
    "attempt": "1",
    "path": "page.html",
    "file": "swagger-ui-bundle.js",
    "name": "my_service",
    "delivery": "1",
    "token": "1",
}
"""What the paths of routes are filled with."""
QUERIES = {
    "/api/v1/jobs": "limit=500",
    "/api/v1/jobs/{id}/events": "limit=1000",
    "/api/v1/events": "limit=1000",
    "/api/v1/jobs/{id}/files": "limit=10000",
    "/api/v1/audit": "limit=1000",
    "/jobs/{id}/files/{path}": "view=text",
}
"""With which routes answer most."""
MORE = {
    "/download/{id} (part)": ("/download/1", "Range: bytes=1-\r\n"),
    "result (of children)": ("/api/v1/jobs/2/result?children=1", ""),
    "result (of an attempt)": ("/api/v1/jobs/1/result?attempt=1", ""),
    "logs (part)": ("/api/v1/jobs/1/logs", "Range: bytes=1-\r\n"),
    "logs (followed)": ("/api/v1/jobs/1/logs?follow=1", ""),
    "logs (events)": ("/api/v1/jobs/1/logs", SSE),
    "log (first lines)": ("/jobs/1/log?line=1", BROWSER),
    "log (search)": ("/jobs/1/log?search=31", BROWSER),
    "file (drawn)": ("/api/v1/jobs/1/files/picture.bin", ""),
}
"""Other answers of the same routes."""


def result(names: int, size: int) -> bytes:
    """A result that is large in each way in which it can be."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("page.html", b"<p>" * (size // 3))
        archive.writestr("picture.bin", os.urandom(size), zipfile.ZIP_STORED)
        archive.writestr("stdout.log", b"\x1b[31ma\x1b[32mb\x1b[0m\n" * (size // 17))
        archive.writestr("stderr.log", b"")
        for number in range(names):
            archive.writestr(f"{'folder' * 10}/{number}", b"")
        logs = {"stdout": "stdout.log", "stderr": "stderr.log"}
        archive.writestr("ferryman.json", json.dumps({"logs": logs}))
    return made.getvalue()


@pytest.fixture
async def program(tmp_path: Path) -> Program:
    """A server with a large answer wherever there can be one: job 1, batch 2, and many jobs."""
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        assert await caller.upload(tags="many") == 1
        assert await caller.upload(array="0-1") == 2
        await agent.until(lambda: len(agent.payloads) == 3)
        for held in list(agent.payloads.values()):
            large = held.key == "1.1"
            held.result = result(10_000, 8 << 20) if large else result(10, 1 << 20)
            held.status = "Completed"
            await agent.say(held)
        for job in (1, 2):
            assert (await caller.job(job))["status"] == "Completed"
        context = caller.server.context
        now = context.core.clock.now()
        for number in range(600):
            new = NewJob(
                bundle=Bundle("b", 100, "d"),
                limits=Limits(),
                timeout_s=60.0,
                created_at=now,
                user_id="7",
                service="gone",
                name=f"a job with a name {number}",
                tags=("many",),
                meta=json.dumps({"text": "x" * 1_000}),
            )
            await Jobs(context.core.database).insert(new, "accepted")
    shutil.move(tmp_path / "data", tmp_path / "server")
    file = tmp_path / "ferryman.toml"
    found = Program("server", tmp_path, uuid.uuid4().hex, "--config", str(file))
    # What is freed goes back to the kernel: what the process has is what it needs.
    found.prefix = ("env", "MALLOC_MMAP_THRESHOLD_=65536", "MALLOC_TRIM_THRESHOLD_=65536")
    return found


def memory(program: Program, what: str) -> int:
    """Bytes: VmRSS, what it has, or VmHWM, the most that it had."""
    text = Path(f"/proc/{program.pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", text)
    assert found
    return int(found[1]) << 10


def connections(program: Program) -> int:
    found = 0
    for one in Path(f"/proc/{program.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(one.readlink()).startswith("socket:")
    return found


def size_of(program: Program, path: str, headers: str) -> int:
    """Bytes of the whole answer."""
    pairs = dict(one.split(": ", 1) for one in headers.splitlines())
    status, body = call(program.url, "GET", path, headers=pairs)
    assert status < 500, (path, status)
    return len(body)


def held_by_readers(program: Program, path: str, headers: str, count: int) -> int:
    """Bytes that the server had more while so many had asked for it and read nothing."""
    usual = connections(program)
    before = memory(program, "VmRSS")
    Path(f"/proc/{program.pid}/clear_refs").write_text("5")  # VmHWM begins again
    with contextlib.ExitStack() as stack:
        waiting = select.poll()
        for _ in range(count):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(60)
            line.connect(("127.0.0.1", program.port))
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
            waiting.register(line, select.POLLIN)
        answered = 0
        while answered < count:
            ready = waiting.poll(60_000)
            assert ready, f"{path}: {answered} of {count} were answered"
            answered += len(ready)
            for descriptor, _ in ready:
                waiting.unregister(descriptor)
        found = memory(program, "VmHWM") - before
    until(lambda: connections(program) <= usual, f"{path}: connections stay open")
    return found


def routes() -> dict[str, tuple[str, str]]:
    """Each route that is read -> an address at which it answers much, and headers."""
    assets = {"version": "x", "path": "vendor/htmx.min.js"}
    found = {}
    api = [(one.path, "") for one in ROUTES if one.method == "GET"]
    pages = [(one.path, BROWSER) for one in PAGES if one.method == "GET"]
    for name, headers in api + pages:
        if name in ENDLESS:
            continue
        path = name.format_map(FOUND | assets if name.startswith("/assets/") else FOUND)
        query = QUERIES.get(name)
        found[name] = (f"{path}?{query}" if query else path, headers)
    return found | MORE


async def test_readers_of_large_contents_hold_little_memory(program: Program) -> None:
    with program.running():
        for what in (
            ("/jobs/1/rendered/page.html", BROWSER),
            ("/api/v1/jobs/1/files/page.html", ""),
            ("/api/v1/jobs/1/logs", ""),
            ("/download/1", ""),
        ):
            assert size_of(program, *what) > 4 << 20
            assert held_by_readers(program, *what, READERS // 4) < BOUND // 4, what


@pytest.mark.slow
async def test_200_readers_who_read_nothing_hold_little_memory_on_any_route(program) -> None:
    with program.running():
        sizes = {name: size_of(program, *where) for name, where in routes().items()}
        large = {name for name, size in sizes.items() if size > HELD}
        assert large >= {
            *("/download/{id}", "/api/v1/jobs/{id}/result", "/api/v1/jobs/{id}/logs"),
            *("/api/v1/jobs", "/api/v1/jobs/{id}/files", "/api/v1/jobs/{id}/files/{path}"),
            *("result (of children)", "result (of an attempt)"),
            *("/jobs/{id}/rendered/{path}", "/swagger/{file}"),
        }, sizes
        held = {}
        for name in sorted(large):
            held[name] = held_by_readers(program, *routes()[name], READERS) >> 20
        assert {name: size for name, size in held.items() if size > BOUND >> 20} == {}, held
