"""The real server program: how it ends, and what it says when the machine is short of something."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit import programs
from tests.kit.disks import mounted
from tests.kit.programs import Program, until

BODY = (
    b'--b\r\nContent-Disposition: form-data; name="user_id"\r\n\r\n1\r\n'
    b'--b\r\nContent-Disposition: form-data; name="service"\r\n\r\nexample\r\n'
    b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\ntrue\r\n'
)
END = b"--b--\r\n"
MORE = b'--b\r\nContent-Disposition: form-data; name="f"; filename="big"\r\n\r\n'
BIG = MORE + bytes(3 << 20)
"""A part too large to be kept in memory."""
SETTINGS = """
[services.example]
limits = { disk = "32MiB", memory = "64MiB" }
"""


def program(folder: Path, *flags: str) -> Program:
    # An agent that is not there: jobs stay queued.
    return Program("server", folder, uuid.uuid4().hex, "--agent-url", "http://127.0.0.1:9", *flags)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Program]:
    found = program(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.kill()


def call(server: Program, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    kind = {"Content-Type": "multipart/form-data; boundary=b"} if body else {}
    status, answer = programs.call(server.url, method, path, body, kind)
    return status, json.loads(answer)


def upload(server: Program, padding: int = 0) -> tuple[int, dict[str, Any]]:
    extra = MORE + os.urandom(padding) + b"\r\n" if padding else b""
    return call(server, "POST", "/upload", BODY + extra + END)


def begun(server: Program, length: int) -> socket.socket:
    """An upload of so many bytes that has begun: its first part and a large one were sent."""
    sending = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    kind = "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    before = len(files(server))
    sending.sendall((head + kind).encode() + BODY + BIG)
    until(lambda: len(files(server)) > before, "the upload has not begun")
    return sending


def files(server: Program) -> list[Path]:
    kinds = ("staging", "bundles", "results")
    return [p for kind in kinds for p in (server.data / kind).rglob("*") if p.is_file()]


def test_sigterm_finishes_an_upload_in_flight_and_ends_waits(server: Program) -> None:
    server.start()
    assert upload(server)[0] == 201
    assert server.process is not None
    with (
        socket.create_connection(("127.0.0.1", server.port)) as waiting,
        begun(server, len(BODY + BIG + b"\r\n" + END)) as sending,
    ):
        waiting.sendall(b"GET /download/1?wait=100 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.process.send_signal(signal.SIGTERM)
        assert b" 200 " in waiting.recv(4096)  # answered at once with its state
        sending.sendall(b"\r\n" + END)
        assert b" 201 " in sending.recv(4096)
    assert server.process.wait(30) == 0
    server.start()
    assert call(server, "GET", "/api/v1/jobs/2")[1]["status"] == "Queued"


def test_what_does_not_end_within_the_shutdown_grace_is_broken_off_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    config = tmp_path / "ferryman.toml"
    config.write_text('[server]\nshutdown_grace = "0.3s"\n')
    server = program(tmp_path, "--config", str(config))
    server.start()
    assert server.process is not None
    with begun(server, 99_999_999) as sending:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert "server.cut_off" in server.log
        with suppress(ConnectionResetError):
            assert b" 201 " not in sending.recv(4096)
    assert files(server) == []


def test_kill_9_in_the_middle_of_an_upload_leaves_nothing(server: Program) -> None:
    server.start()
    with begun(server, 9_000_000):
        server.kill()
    server.start()
    until(lambda: files(server) == [], "half an upload is left")
    assert call(server, "GET", "/api/v1/jobs")[1]["items"] == []


def test_a_full_disk_is_507_and_loses_nothing(tmp_path: Path) -> None:
    config = tmp_path / "f.toml"
    config.write_text('[server]\nmin_free = "1MiB"\ncleaner_interval = "0.2s"\n')
    server = program(tmp_path, "--config", str(config))
    with mounted(server.data, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
        try:
            server.start()
            assert upload(server)[0] == 201
            kept = set(files(server))
            status, reply = upload(server, 16 << 20)
            assert (status, reply["code"]) == (507, "disk_full")
            filler = server.data / "filler"
            with suppress(OSError), filler.open("wb") as out:
                while True:
                    out.write(b"x" * 65_536)
                    out.flush()
            status, reply = upload(server)
            assert status == 507, reply
            assert set(files(server)) == kept
            status, reply = call(server, "GET", "/health")
            assert status == 503
            assert "the disk is full" in reply["message"]
            assert call(server, "GET", "/api/v1/jobs/1")[1]["status"] == "Queued"
            filler.unlink()
            assert upload(server)[0] == 201
            until(lambda: call(server, "GET", "/health")[0] == 200, "health remembers")
        finally:
            server.kill()


def test_too_many_open_files_are_survived(server: Program) -> None:
    server.start()
    assert upload(server)[0] == 201
    assert server.process is not None
    used = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
    hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 12, hard))
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
    until(lambda: "Too many open files" in server.log, "it has enough files")
    for line in idle:
        line.close()
    until(lambda: upload(server)[0] == 201, "it does not recover")
    assert call(server, "GET", "/api/v1/jobs/1")[1]["status"] == "Queued"


def test_a_server_whose_database_is_away_says_so_and_begins_afresh_if_told(server: Program) -> None:
    server.start()
    assert upload(server)[0] == 201
    server.kill(signal.SIGKILL)
    for path in server.data.glob("ferryman.sqlite*"):
        path.unlink()
    stored = files(server)
    server.begin()
    assert server.process is not None
    assert server.process.wait(60) == 74
    assert "is missing (is its disk mounted?)" in server.log
    assert files(server) == stored
    server._flags += ("--new-database",)
    server.start()
    assert upload(server)[1]["id"] > 1_000_000
    assert server.kill(signal.SIGTERM) == 0
