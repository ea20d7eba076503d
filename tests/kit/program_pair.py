"""A server and its agent, as a user calls them."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.kit.calling import call
from tests.kit.programs import Program, left_behind, until
from tests.kit.raw_archives import FORM, file_part, form_of, text_part

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
        fields = text_part("user_id", user), text_part("service", service)
        body = form_of(*fields, file_part("run.sh", script.encode()))
        status, said = call(self.server.url, "POST", "/upload", body, {"Content-Type": FORM})
        assert status == 201, said
        return int(json.loads(said)["id"])

    def status(self, job_id: int) -> str:
        return str(json.loads(self.get(f"/api/v1/jobs/{job_id}"))["status"])

    def until(self, job_id: int, status: str) -> None:
        def found() -> str:
            return f"{self.get(f'/api/v1/jobs/{job_id}').decode()} {self.server.log[-3_000:]}"

        until(lambda: self.status(job_id) == status, f"job {job_id} is not {status}:", found)

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
