"""Slow clients: while there are hundreds, with few descriptors, `/health` is answered; and a slow
download is finished by a server that stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import socket
import uuid
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest

from tests.kit.programs import PATIENCE_S, Pair, Program, call, until, upload

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


def program(name: str, tmp_path: Path) -> Program:
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
    running = program(name, tmp_path)
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


SETTINGS = """
[services.example]
limits = { disk = "64MiB", memory = "64MiB" }
"""
RESULT = 16_000_000
"""More than the kernel holds on the way, so that the server is still sending."""


def test_sigterm_finishes_a_download_in_flight(tmp_path: Path) -> None:
    with Pair(tmp_path, SETTINGS).running() as pair:
        job = pair.submit(f"head -c {RESULT} /dev/urandom > big")
        pair.until(job, "Completed")
        path = f"/api/v1/jobs/{job}/result"
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            line.settimeout(PATIENCE_S)
            line.connect(("127.0.0.1", pair.server.port))
            line.sendall(head(f"GET {path}").encode())
            answer = HTTPResponse(line)
            answer.begin()
            pair.server.send(signal.SIGTERM)
            until(lambda: "server.stopping" in pair.server.log, "it does not stop")

            def closed() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", pair.server.port)) != 0

            until(closed, "it still takes calls")
            assert pair.server.runs
            digest = hashlib.sha256(answer.read()).hexdigest()  # fails where bytes are missing
        assert answer.headers["ETag"] == f'"{digest}"'
        assert pair.server.wait() == 0
