"""A real Prometheus, without a service on the machine: scripts/setup puts it into .venv/bin."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from tests.kit.installed import program
from tests.kit.programs import free_port, until


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[Any]:
        """The series that an expression has now."""
        result: list[Any] = self.ask(f"query?query={quote(expression)}")["result"]
        return result


@contextmanager
def running(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """A Prometheus with this configuration, until the end."""
    port = free_port()
    file = folder / "prometheus.json"  # JSON is YAML, too
    file.write_text(json.dumps(config))
    log = (folder / "prometheus.log").open("wb")
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    found = Prometheus(f"http://127.0.0.1:{port}")

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            with urlopen(f"{found.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(is_ready, "Prometheus is not ready", lambda: (folder / "prometheus.log").read_text())
        yield found
    finally:
        process.kill()
        process.wait(30)
        log.close()
