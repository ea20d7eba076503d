"""A server and its agent, as a user calls them."""

from __future__ import annotations

import io
import json
import socket
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.kit.programs import Program, left_behind, until

PATIENCE_S = 60.0


class Pair:
    """Server and agent.

    Args:
        settings: the server's TOML.
        host: where both listen.
    """

    def __init__(self, folder: Path, settings: str, host: str = "127.0.0.1") -> None:
        config = folder / "ferryman.toml"
        config.write_text(settings)
        mark = uuid.uuid4().hex
        self.agent = Program("client_agent", folder, mark, "--config", str(config), host=host)
        flags = ("--config", str(config), "--agent-url", self.agent.url)
        self.server = Program("server", folder, mark, *flags, host=host)

    def get(self, path: str) -> bytes:
        with urlopen(f"{self.server.url}{path}", timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def submit(self, script: str, user: str = "1", service: str = "example") -> int:
        parts = f'name="user_id"\r\n\r\n{user}', f'name="service"\r\n\r\n{service}'
        file = f'name="f"; filename="run.sh"\r\n\r\n{script}'
        body = "".join(
            f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in (*parts, file)
        )
        head = "POST /upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
        head += f"{len(body) + 7}\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
        address = (self.server.host, self.server.port)
        with socket.create_connection(address, PATIENCE_S) as line:
            line.sendall(f"{head}{body}--b--\r\n".encode())
            answer = b"".join(iter(lambda: line.recv(4096), b""))
        assert b" 201 " in answer.partition(b"\r\n")[0], answer
        return int(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])

    def status(self, job_id: int) -> str:
        return str(json.loads(self.get(f"/api/v1/jobs/{job_id}"))["status"])

    def until(self, job_id: int, status: str) -> None:
        def there() -> bool:
            return self.status(job_id) == status

        def found() -> str:
            return f"{self.get(f'/api/v1/jobs/{job_id}').decode()} {self.server.log[-3_000:]}"

        until(there, f"job {job_id} is not {status}:", found)

    def result(self, job_id: int) -> zipfile.ZipFile:
        archive = zipfile.ZipFile(io.BytesIO(self.get(f"/api/v1/jobs/{job_id}/result")))
        assert archive.testzip() is None
        return archive

    @contextmanager
    def running(self) -> Iterator[Pair]:
        """Both, until the end; then they must stop well and leave nothing behind."""
        with self.agent.running(), self.server.running():
            yield self
        assert left_behind(self.agent) == []
