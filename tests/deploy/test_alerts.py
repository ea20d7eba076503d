"""The alerts, checked by promtool, and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from tests.kit.dev_program import ROOT
from tests.kit.each import each
from tests.kit.installed import program

DEPLOY: Final = ROOT / "deploy/prometheus"
RULES: Final = DEPLOY / "ferryman.rules.yml"


def server(name: str, **labels: str) -> str:
    """One of its series, as Prometheus names it."""
    labels = {"job": "ferryman-server", "instance": "s"} | labels
    return f"{name}{{{','.join(f'{key}={json.dumps(of)}' for key, of in labels.items())}}}"


def agent(name: str, **labels: str) -> str:
    return server(name, job="ferryman-agent", instance="a", **labels)


LAG, HTTP = "ferryman_event_loop_lag_seconds_bucket", "ferryman_http_requests_total"
RETRIED, ENDED = "ferryman_attempts_retried_total", "ferryman_jobs_ended_total"
FIRES: Final[dict[str, tuple[str, dict[str, tuple[str, str]]]]] = {
    # alert: (time of evaluation, series: values that make it fire, and those when all is well)
    "FerrymanDown": ("5m", {server("up"): ("0x10", "1x10")}),
    "FerrymanServerUnready": (
        "5m",
        {
            server("ferryman_troubles", kind="database_full"): ("1x10", ""),
            server("ferryman_troubles", kind="results_waiting"): ("", "1x10"),
        },
    ),
    "FerrymanResultsWaiting": (
        "5m",
        {server("ferryman_results_waiting", reason="disk"): ("1x10", "0x10")},
    ),
    "FerrymanDiskFillsUp": (
        "7h",
        {
            server("ferryman_disk_free_bytes"): ("1000-1x440", "1000x440"),
            server("ferryman_disk_min_free_bytes"): ("100x440", "100x440"),
            server("ferryman_disk_size_bytes"): ("9000x440", "9000x440"),
        },
    ),
    "FerrymanServerErrors": (
        "40m",
        {
            server(HTTP, route="/", status="5xx"): ("0+1x50", "0+1x50"),
            server(HTTP, route="/", status="2xx"): ("0+10x50", "0+100x50"),
        },
    ),
    "FerrymanSlow": (
        "40m",
        {
            server(LAG, le="0.5"): ("0+50x50", "0+60x50"),
            server(LAG, le="+Inf"): ("0+60x50", "0+60x50"),
            server(LAG, le="1"): ("0+60x50", "0+60x50"),
        },
    ),
    "FerrymanQueueStuck": (
        "2h",
        {
            server("ferryman_oldest_waiting_seconds", service="e"): ("0+60x130", "0+60x130"),
            server("ferryman_attempts_started_total", service="e"): ("7x130", "7x130"),
            server("ferryman_service_paused", service="e"): ("0x130", "1x130"),
        },
    ),
    "FerrymanManyJobsFail": (
        "2h",
        {
            server(ENDED, service="e", state="Failed"): ("0+1x130", "0+1x130"),
            server(ENDED, service="e", state="Completed"): ("0x130", "0+2x130"),
        },
    ),
    "FerrymanAttemptsInterrupted": (
        "1h",
        {
            server(RETRIED, service="e", reason="agent_lost"): ("0+1x70", ""),
            server(RETRIED, service="e", reason="timeout"): ("", "0+1x70"),
        },
    ),
    "FerrymanJobsUnknown": (
        "1h",
        {server("ferryman_jobs", service="e", state="Unknown"): ("2x70", "0x70")},
    ),
    "FerrymanWebhooksLate": (
        "2h",
        {server("ferryman_webhooks_oldest_seconds"): ("0+60x130", "60x130")},
    ),
    "FerrymanNoAgents": ("10m", {server("ferryman_agents", state="accepting"): ("0x20", "1x20")}),
    "FerrymanAgentUnreachable": (
        "10m",
        {server("ferryman_agent_reachable", agent="n"): ("0x20", "1x20")},
    ),
    "FerrymanAgentUnready": (
        "10m",
        {agent("ferryman_unready", reason="sandbox"): ("1x20", "0x20")},
    ),
    "FerrymanAttemptsQuarantined": (
        "20m",
        {agent("ferryman_quarantined_attempts"): ("1x30", "0x30")},
    ),
}


def alerts() -> dict[str, dict[str, Any]]:
    document = YAML(typ="safe").load(RULES)
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules}


def promtool(*words: str) -> str:
    done = subprocess.run(
        [program("promtool"), *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules_and_the_example(tmp_path):
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(RULES))
    example = (DEPLOY / "prometheus.yml").read_text()
    token = tmp_path / "token"
    token.write_text("a-token\n")
    example = example.replace("/etc/prometheus/ferryman-metrics-token", str(token))
    (tmp_path / "prometheus.yml").write_text(example)
    (tmp_path / RULES.name).write_text(RULES.read_text())
    assert "SUCCESS" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


@pytest.mark.slow  # the quick one: test_promtool_takes_the_rules_and_the_example
def test_each_alert_fires_when_it_should_and_only_then(tmp_path):
    rules = alerts()
    assert set(FIRES) == set(rules)
    document = YAML(typ="safe").load(RULES)
    for rule in (one for group in document["groups"] for one in group["rules"]):
        rule.pop("annotations")
    (tmp_path / "rules.yml").write_text(json.dumps(document))
    tests: list[Any] = []
    for alert, (at, series) in FIRES.items():
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        for fine in (False, True):
            values = [{"series": one, "values": of[fine]} for one, of in series.items() if of[fine]]
            told = [] if fine else [{"labels": "{}", "value": 1}]
            query = {"expr": firing, "eval_time": at, "exp_samples": told}
            tests.append({"interval": "1m", "input_series": values, "promql_expr_test": [query]})
    made = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(made))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_each_alert_says_how_bad_it_is_and_what_to_do():
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert len(rule["annotations"]["description"].split(". ")) > 1, name


@each("file", [RULES, ROOT / "deploy/grafana/ferryman.json"])
def test_every_metric_that_is_asked_for_is_made(file: Path):
    product = "".join(
        path.read_text()
        for package in ("server", "client_agent", "shared")
        for path in (ROOT / package).rglob("*.py")
    )
    used = set(re.findall(r"\bferryman_\w+", file.read_text()))
    names = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in used}
    assert [name for name in names if f'"{name}' not in product] == []


def test_the_dashboard_can_be_imported():
    document = json.loads((ROOT / "deploy/grafana/ferryman.json").read_text())
    panels = [one for one in document["panels"] if one["type"] != "row"]
    ids = [one["id"] for one in document["panels"]]
    assert len(set(ids)) == len(ids)
    for one in panels:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert one["targets"], one["title"]
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
