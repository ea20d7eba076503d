"""A real Prometheus reads a real server and agent; each panel and each alert finds its series."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from ferryman.sync import SyncClient
from tests.deploy.test_alerts import RULES, alerts
from tests.kit.dev_program import ROOT
from tests.kit.installed import program
from tests.kit.programs import Program, free_port, until

ADMIN = "the-token-of-an-operator"
SCRAPER = "the-token-of-prometheus"
SETTINGS = f"""
[server]
tokens = ["{ADMIN}"]
metrics_tokens = {{ file = "%s" }}
[services.example]
max_runs = 4
[agent]
slots = 2
tokens = ["the-token-of-the-server"]
metrics_tokens = {{ file = "%s" }}
[agents.node]
token = "the-token-of-the-server"
url = "http://127.0.0.1:%d"
"""


@contextmanager
def both(folder: Path) -> Iterator[tuple[Program, Program]]:
    """A server and an agent, both with tokens."""
    config = folder / "ferryman.toml"
    agent = Program("client_agent", folder, uuid.uuid4().hex, "--config", str(config))
    server = Program("server", folder, agent.mark, "--config", str(config))
    for_metrics = folder / "metrics-token"
    for_metrics.write_text(SCRAPER)
    config.write_text(SETTINGS % (for_metrics, for_metrics, agent.port))
    with agent.running(), server.running():
        yield server, agent


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
    log = folder / "prometheus.log"
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    found = Prometheus(f"http://127.0.0.1:{port}")

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urlopen(f"{found.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(is_ready, "Prometheus is not ready", log.read_text)
        yield found
    finally:
        process.kill()
        process.wait(30)


def panels() -> list[tuple[str, str]]:
    """Titles and queries of the dashboard, as Grafana fills them in."""
    document = json.loads((ROOT / "deploy/grafana/ferryman.json").read_text())
    found = []
    for one in document["panels"]:
        for target in one.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            found.append((one["title"], query.replace("$server", ".*").replace("$agent", ".*")))
    return found


def job(name: str, port: int, token: str) -> dict[str, Any]:
    return {
        "job_name": name,
        "scrape_interval": "1s",
        "authorization": {"credentials_file": token},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }


@pytest.mark.slow
def test_each_panel_and_each_alert_finds_its_series(tmp_path):
    def run(client: SyncClient, script: bytes) -> None:
        job = client.submit({"run.sh": script}, service="example", user="7").id
        assert client.wait(job).ended

    with both(tmp_path) as (server, agent), SyncClient(server.url, token=ADMIN) as client:
        jobs = [
            job(name, one.port, str(tmp_path / "metrics-token"))
            for name, one in (("ferryman-server", server), ("ferryman-agent", agent))
        ]
        config = {
            "global": {"evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": jobs,
        }
        with running(tmp_path, config) as prometheus:
            run(client, b"exit 3\n")
            run(client, b"echo hello\n")

            def is_scraped_twice() -> bool:
                query = "min(count_over_time(ferryman_build_info[5m])) >= 3"
                return bool(prometheus.query(query)) and len(prometheus.query("up == 1")) == 2

            until(
                is_scraped_twice, "Prometheus cannot read both", lambda: str(prometheus.query("up"))
            )
            run(client, b"exit 3\n")
            run(client, b"echo hello\n")
            for done in [job for job in client.jobs() if job.status == "Completed"]:
                url = f"{server.url}/api/v1/jobs/{done.id}/result"
                request = Request(url, headers={"Authorization": f"Bearer {ADMIN}"})
                with urlopen(request, timeout=30) as answer:
                    assert answer.read()
            missing = {"": ""}

            def all_have_data() -> bool:
                nonlocal missing
                missing = {title: query for title, query in panels() if not prometheus.query(query)}
                return not missing

            until(all_have_data, "panels without data:", lambda: str(missing))
            groups = prometheus.ask("rules")["groups"]
            rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
            assert rules.keys() == alerts().keys()
            assert [name for name, rule in rules.items() if rule["health"] != "ok"] == []
            asked = set(re.findall(r"\b(?:ferryman|process)_\w+", RULES.read_text()))
            names = set(prometheus.ask("label/__name__/values"))
            # The first retry makes its series.
            assert asked - names <= {"ferryman_attempts_retried_total"}
            told = prometheus.ask("alerts")["alerts"]
            assert [one for one in told if one["state"] == "firing"] == []
