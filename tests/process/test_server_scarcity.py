"""A server with a real agent whose own disk is full: results wait, and none is lost."""

from __future__ import annotations

import io
import json
import signal
import socket
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.disks import fill, mounted
from tests.support.programs import Program, left_behind, until

SETTINGS = """
[server]
min_free = "1MiB"
[services.example]
limits = { disk = "32MiB", memory = "64MiB" }
"""
RESULT = 4_000_000
PATIENCE_S = 60.0


class Pair:
    """Server and agent."""

    def __init__(self, folder: Path) -> None:
        config = folder / "ferryman.toml"
        config.write_text(SETTINGS)
        mark = uuid.uuid4().hex
        self.agent = Program("client_agent", folder, mark)
        flags = ("--config", str(config), "--agent-url", self.agent.url)
        self.server = Program("server", folder, mark, *flags)

    def get(self, path: str) -> bytes:
        with urlopen(f"{self.server.url}{path}", timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def submit(self, script: str) -> int:
        parts = 'name="user_id"\r\n\r\n1', 'name="service"\r\n\r\nexample'
        file = f'name="f"; filename="run.sh"\r\n\r\n{script}'
        body = "".join(
            f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in (*parts, file)
        )
        head = "POST /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
        head += f"{len(body) + 7}\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE_S) as line:
            line.sendall(f"{head}{body}--b--\r\n".encode())
            answer = b"".join(iter(lambda: line.recv(4096), b""))
        assert b" 201 " in answer.partition(b"\r\n")[0], answer
        return int(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])

    def status(self, job_id: int) -> str:
        return str(json.loads(self.get(f"/api/v1/jobs/{job_id}"))["status"])

    def until(self, job_id: int, status: str) -> None:
        def there() -> bool:
            return self.status(job_id) == status

        until(there, f"job {job_id} is not {status}", lambda: self.server.log[-3_000:])

    def result(self, job_id: int) -> zipfile.ZipFile:
        archive = zipfile.ZipFile(io.BytesIO(self.get(f"/api/v1/jobs/{job_id}/result")))
        assert archive.testzip() is None
        return archive


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    with mounted(found.server.data, "-t", "tmpfs", "-o", "size=24m", "tmpfs"):
        try:
            found.agent.start()
            found.server.start()
            yield found
            assert found.server.kill(signal.SIGTERM) == 0, found.server.log[-3_000:]
            assert found.agent.kill(signal.SIGTERM) == 0, found.agent.log[-3_000:]
            assert left_behind(found.agent) == []
        finally:
            for program in (found.server, found.agent):
                if program.process is not None and program.process.poll() is None:
                    program.kill()


def test_a_result_that_finds_the_disk_full_arrives_when_there_is_room(pair: Pair) -> None:
    earlier = pair.submit("echo kept > kept.txt")
    pair.until(earlier, "Completed")
    job = pair.submit(f"sleep 1; head -c {RESULT} /dev/urandom > big")
    pair.until(job, "Running")
    filler = fill(pair.server.data)

    # Three tries: after them even the note that it cannot be fetched finds no room.
    def tried() -> bool:
        return pair.server.log.count("payload.not_fetched") >= 3

    until(tried, "it does not try", lambda: pair.server.log[-3_000:])
    assert pair.status(job) in ("Running", "Unknown")
    assert pair.result(earlier).read("kept.txt") == b"kept\n"
    assert list((pair.server.data / "staging").iterdir()) == []
    filler.unlink()
    pair.until(job, "Completed")
    assert len(pair.result(job).read("big")) == RESULT
