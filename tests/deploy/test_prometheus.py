"""The alerts, checked by promtool; the dashboard; a real Prometheus that reads a real server and
agent, in which each panel and each alert finds its series.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from ruamel.yaml import YAML

from ferryman.sync import SyncClient
from tests.kit.dev_program import ROOT, ended
from tests.kit.installed import program
from tests.kit.programs import Program, call, free_port, listens, other_program, until

DEPLOY: Final = ROOT / "deploy/prometheus"
RULES: Final = DEPLOY / "ferryman.rules.yml"
DASHBOARD: Final = ROOT / "deploy/grafana/ferryman.json"
FIRES: Final = """
Down                5m  0x10       1x10     s up
ServerUnready       5m  1x10       -        s troubles{kind="database_full"}
ServerUnready       5m  -          1x10     s troubles{kind="results_waiting"}
ResultsWaiting      5m  1x10       0x10     s results_waiting{reason="disk"}
DiskFillsUp         7h  1000-1x440 1000x440 s disk_free_bytes
DiskFillsUp         7h  100x440    100x440  s disk_min_free_bytes
DiskFillsUp         7h  9000x440   9000x440 s disk_size_bytes
ServerErrors        40m 0+1x50     0+1x50   s http_requests_total{route="/",status="5xx"}
ServerErrors        40m 0+10x50    0+100x50 s http_requests_total{route="/",status="2xx"}
Slow                40m 0+50x50    0+60x50  s event_loop_lag_seconds_bucket{le="0.5"}
Slow                40m 0+60x50    0+60x50  s event_loop_lag_seconds_bucket{le="+Inf"}
Slow                40m 0+60x50    0+60x50  s event_loop_lag_seconds_bucket{le="1"}
QueueStuck          2h  0+60x130   0+60x130 s oldest_waiting_seconds{service="e"}
QueueStuck          2h  7x130      7x130    s attempts_started_total{service="e"}
QueueStuck          2h  0x130      1x130    s service_paused{service="e"}
ManyJobsFail        2h  0+1x130    0+1x130  s jobs_ended_total{service="e",state="Failed"}
ManyJobsFail        2h  0x130      0+2x130  s jobs_ended_total{service="e",state="Completed"}
AttemptsInterrupted 1h  0+1x70     -        s attempts_retried_total{reason="agent_lost"}
AttemptsInterrupted 1h  -          0+1x70   s attempts_retried_total{reason="timeout"}
JobsUnknown         1h  2x70       0x70     s jobs{service="e",state="Unknown"}
WebhooksLate        2h  0+60x130   60x130   s webhooks_oldest_seconds
NoAgents            10m 0x20       1x20     s agents{state="accepting"}
AgentUnreachable    10m 0x20       1x20     s agent_reachable{agent="n"}
AgentUnready        10m 1x20       0x20     a unready{reason="sandbox"}
AttemptsQuarantined 20m 1x30       0x30     a quarantined_attempts
"""
"""Alert, when it is asked for, values of a series that make it fire, those when all is well, whose
series it is (a server's, an agent's), and its name.
"""


def alerts() -> dict[str, dict[str, Any]]:
    groups = YAML(typ="safe").load(RULES)["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(*words: str) -> str:
    return ended(program("promtool"), *words).stdout


def test_promtool_takes_the_rules_and_the_example(tmp_path):
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(RULES))
    example = (DEPLOY / "prometheus.yml").read_text()
    token = tmp_path / "token"
    token.write_text("a-token\n")
    example = example.replace("/etc/prometheus/ferryman-metrics-token", str(token))
    (tmp_path / "prometheus.yml").write_text(example)
    (tmp_path / RULES.name).write_text(RULES.read_text())
    assert "SUCCESS" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


def series(words: str, of: str) -> str:
    """As Prometheus names it."""
    name, _, labels = words.partition("{")
    job = {"s": "ferryman-server", "a": "ferryman-agent"}[of]
    of_program = f'job="{job}",instance="{of}"'
    name = name if name == "up" else f"ferryman_{name}"
    return f"{name}{{{of_program}{f',{labels}' if labels else '}'}"


@pytest.mark.slow  # the quick one: test_promtool_takes_the_rules_and_the_example
def test_each_alert_fires_when_it_should_and_only_then(tmp_path):
    document = YAML(typ="safe").load(RULES)
    for rule in (one for group in document["groups"] for one in group["rules"]):
        rule.pop("annotations")
    (tmp_path / "rules.yml").write_text(json.dumps(document))
    given: dict[tuple[str, str, bool], list[dict[str, str]]] = {}
    for alert, at, bad, fine, of, name in map(str.split, FIRES.strip().splitlines()):
        for firing, values in ((True, bad), (False, fine)):
            found = given.setdefault((f"Ferryman{alert}", at, firing), [])
            if values != "-":
                found.append({"series": series(name, of), "values": values})
    assert {alert for alert, _, _ in given} == alerts().keys()
    tests: list[Any] = []
    for (alert, at, firing), inputs in given.items():
        told = [{"labels": "{}", "value": 1}] if firing else []
        asked = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        query = {"expr": asked, "eval_time": at, "exp_samples": told}
        tests.append({"interval": "1m", "input_series": inputs, "promql_expr_test": [query]})
    made = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(made))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_each_alert_says_how_bad_it_is_and_what_to_do_and_asks_for_metrics_that_are_made():
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert len(rule["annotations"]["description"].split(". ")) > 1, name
    packages = ("server", "client_agent", "shared")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    product = "".join(path.read_text() for path in files)
    used = set(re.findall(r"\bferryman_\w+", RULES.read_text() + DASHBOARD.read_text()))
    names = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in used}
    assert [name for name in names if f'"{name}' not in product] == []


def test_the_dashboard_can_be_imported():
    document = json.loads(DASHBOARD.read_text())
    ids = [one["id"] for one in document["panels"]]
    assert len(set(ids)) == len(ids)
    for one in (one for one in document["panels"] if one["type"] != "row"):
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert one["targets"], one["title"]
        assert one["gridPos"]["x"] + one["gridPos"]["w"] <= 24


# ------------------------------------------------------------------ a real one

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


@contextmanager
def running(folder: Path, config: Mapping[str, Any]) -> Iterator[Callable[[str], Any]]:
    """A Prometheus with this configuration, until the end; what it answers to be asked for."""
    file, log = folder / "prometheus.json", folder / "prometheus.log"
    file.write_text(json.dumps(config))  # JSON is YAML, too
    port, data = free_port(), folder / "prometheus"
    flags = (f"--config.file={file}", f"--storage.tsdb.path={data}")
    command = [program("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"]

    def got(path: str) -> tuple[int, bytes]:
        return call(f"http://127.0.0.1:{port}", "GET", path)

    with other_program(command, log, lambda: listens(port) and got("/-/ready")[0] == 200):
        yield lambda path: json.loads(got(f"/api/v1/{path}")[1])["data"]


def panels() -> list[tuple[str, str]]:
    """Titles and queries of the dashboard, as Grafana fills them in."""
    document = json.loads(DASHBOARD.read_text())
    found = []
    for one in document["panels"]:
        for target in one.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            found.append((one["title"], query.replace("$server", ".*").replace("$agent", ".*")))
    return found


def scraped(one: Program, token: Path) -> dict[str, Any]:
    """What Prometheus needs to read one of the two."""
    name = {"server": "ferryman-server", "client_agent": "ferryman-agent"}[one.name]
    how = {"job_name": name, "authorization": {"credentials_file": str(token)}}
    targets = [{"targets": [f"127.0.0.1:{one.port}"]}]
    return how | {"scrape_interval": "1s", "static_configs": targets}


@pytest.mark.slow
def test_each_panel_and_each_alert_finds_its_series(tmp_path):
    def run(client: SyncClient, script: bytes) -> None:
        job = client.submit({"run.sh": script}, service="example", user="7").id
        assert client.wait(job).ended

    with both(tmp_path) as (server, agent), SyncClient(server.url, token=ADMIN) as client:
        jobs = [scraped(one, tmp_path / "metrics-token") for one in (server, agent)]
        config = {"rule_files": [str(RULES)], "scrape_configs": jobs}
        with running(tmp_path, config | {"global": {"evaluation_interval": "1s"}}) as ask:

            def query(expression: str) -> list[Any]:
                """The series that an expression has now."""
                return list(ask(f"query?query={quote(expression)}")["result"])

            run(client, b"exit 3\n")
            run(client, b"echo hello\n")

            def is_scraped_twice() -> bool:
                twice = query("min(count_over_time(ferryman_build_info[5m])) >= 3")
                return bool(twice) and len(query("up == 1")) == 2

            until(is_scraped_twice, "Prometheus cannot read both", lambda: str(query("up")))
            run(client, b"exit 3\n")
            run(client, b"echo hello\n")
            for done in [job for job in client.jobs() if job.status == "Completed"]:
                path, headers = (
                    f"/api/v1/jobs/{done.id}/result",
                    {"Authorization": f"Bearer {ADMIN}"},
                )
                assert call(server.url, "GET", path, headers=headers)[0] == 200

            def missing() -> list[str]:
                return [title for title, asked in panels() if not query(asked)]

            until(lambda: not missing(), "panels without data:", lambda: str(missing()))
            groups = ask("rules")["groups"]
            rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
            assert rules.keys() == alerts().keys()
            assert [name for name, rule in rules.items() if rule["health"] != "ok"] == []
            asked = set(re.findall(r"\b(?:ferryman|process)_\w+", RULES.read_text()))
            names = set(ask("label/__name__/values"))
            # The first retry makes its series.
            assert asked - names <= {"ferryman_attempts_retried_total"}
            assert [one for one in ask("alerts")["alerts"] if one["state"] == "firing"] == []
