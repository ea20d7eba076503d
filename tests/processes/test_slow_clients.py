"""Slow clients: while there are hundreds, with few descriptors, `/health` is answered; and a slow
download is finished by a server that stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.programs import PATIENCE_S, Pair, Program, until

FILES = 300
MANY = 120
UPLOAD = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 9000\r\n\r\n--b\r\n"
BODY = (
    b'--b\r\nContent-Disposition: form-data; name="user_id"\r\n\r\n1\r\n'
    b'--b\r\nContent-Disposition: form-data; name="service"\r\n\r\nexample\r\n'
    b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\ntrue\r\n--b--\r\n'
)
SLOW = {
    "server": {
        "silent": "",
        "head": "GET /health HTTP/1.1\r\nHost: local",
        "body": f"POST /upload HTTP/1.1\r\nHost: localhost\r\n{UPLOAD}",
        "bytes": "POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n" + "1\r\nx\r\n" * 2_000,
        "refused": f"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n{UPLOAD}",
        "wait": "GET /download/1?wait=100 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "unread": "GET /swagger/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
    },
    "client_agent": {
        "silent": "",
        "head": "GET /health HTTP/1.1\r\nHost: local",
        "body": f"POST /submit HTTP/1.1\r\nHost: localhost\r\n{UPLOAD}",
        "wait": "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "bytes": "POST /submit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n" + "1\r\nx\r\n" * 2_000,
        "idle": "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    },
}


@contextlib.contextmanager
def started(name: str, tmp_path: Path) -> Iterator[Program]:
    table = {"server": "server", "client_agent": "agent"}[name]
    file = tmp_path / "settings.toml"
    file.write_text(
        f"[{table}]\n[agents.a]\nurl = 'http://127.0.0.1:9'\n[agent.sandboxing]\nnofile = 100\n"
    )
    found = Program(name, tmp_path, uuid.uuid4().hex, "--config", str(file))
    found.prefix = ("prlimit", f"--nofile=64:{FILES}")
    try:
        found.start()
        yield found
    finally:
        found.kill()


@contextlib.contextmanager
def slow(
    program: Program, what: str, count: int = MANY, source: str = "127.0.0.1"
) -> Iterator[None]:
    """So many connections that send this and then nothing, and never read."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.bind((source, 0))
            line.settimeout(20)
            line.connect(("127.0.0.1", program.port))
            with contextlib.suppress(ConnectionError):  # it may have been closed to make room
                line.sendall(what.encode())
        yield


def ask(program: Program, path: str, body: bytes | None = None) -> tuple[int, dict[str, object]]:
    line = http.client.HTTPConnection("127.0.0.1", program.port, timeout=20)
    try:
        kind = {"Content-Type": "multipart/form-data; boundary=b"} if body else {}
        line.request("POST" if body else "GET", path, body, kind)
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        line.close()


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_health_is_answered_whatever_hundreds_of_slow_clients_do(tmp_path, name):
    private = "/load" if name != "server" else "/api/v1/jobs"
    with started(name, tmp_path) as program:
        assert program.process is not None
        if name == "server":
            assert ask(program, "/upload", BODY)[0] == 201
        with contextlib.ExitStack() as stack:
            for what in SLOW[name].values():
                stack.enter_context(slow(program, what))
                assert ask(program, "/health")[0] == 200
            used = len(list(Path(f"/proc/{program.process.pid}/fd").iterdir()))
            assert used < FILES - 40  # the soft limit was raised, and a reserve is kept
        assert "Too many open files" not in program.log
        until(lambda: ask(program, private)[0] == 200, "it stays busy")


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
        server = pair.server.process
        assert server is not None
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            line.settimeout(PATIENCE_S)
            line.connect(("127.0.0.1", pair.server.port))
            line.sendall(
                f"GET /api/v1/jobs/{job}/result HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            head, _, body = line.recv(1 << 16).partition(b"\r\n\r\n")
            server.send_signal(signal.SIGTERM)
            until(lambda: "server.stopping" in pair.server.log, "it does not stop")

            def closed() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", pair.server.port)) != 0

            until(closed, "it still takes calls")
            assert server.poll() is None
            fields = {
                name.lower(): value.strip()
                for name, _, value in (one.partition(":") for one in head.decode().split("\r\n"))
            }
            digest, left = hashlib.sha256(body), int(fields["content-length"]) - len(body)
            while left:
                chunk = line.recv(1 << 16)
                assert chunk, f"{left} bytes are missing"
                digest.update(chunk)
                left -= len(chunk)
        assert fields["etag"] == f'"{digest.hexdigest()}"'
        assert server.wait(30) == 0
