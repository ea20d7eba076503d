"""The sentence of each reason that docs/troubleshooting.md quotes, from jobs that fail so."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from ferryman.sync import SyncClient
from shared.wire import Reason
from tests.docs.symptoms import provoked, quotes, said
from tests.docs.test_troubleshooting_waits import _upload
from tests.support.dev_program import ROOT
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.in_process_system import together
from tests.support.program_pair import Pair
from tests.support.server_http import RUN, driving

LIMITS = 'memory = "64MiB", disk = "32MiB", log = "64KiB", results = "1MiB"'
SETTINGS = f"""
[services.example]
infra_retries = 0
runs_per_user = 20
max_runs = 20
limits = {{ {LIMITS} }}
[services.silent]
infra_retries = 0
heartbeat_timeout = "500ms"
[services.nowhere]
queue_timeout = "100ms"
[agent]
slots = 5
grace = "500ms"
services = ["example", "silent"]
"""
SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "exit_code": ("exit 3", {}),
    "timeout": ("sleep 60", {"timeout": "500ms"}),
    "heartbeat_timeout": ("sleep 60", {"service": "silent"}),
    "memory_limit": ("head -c 200M /dev/zero | tail", {}),
    "disk_limit": ("head -c 60M /dev/zero > big", {}),
    "log_limit": ("head -c 9M /dev/zero | tr '\\0' x", {}),
    "results_limit": ("head -c 3M /dev/zero > big", {}),
    "invalid_bundle": (
        "mkdir -p children/a children/b; touch children/a/run.sh children/b/x",
        {},
    ),
    "child_failed": ("exit 4", {"array": "0-1"}),
    "queue_timeout": ("true", {"service": "nowhere"}),
}
SLEEPS = "echo here; sleep 60"


def sentence(job: Any) -> str:
    return f"{job.reason}: {job.message}"


def test_reasons_of_real_jobs(tmp_path: Path) -> None:
    pair = Pair(tmp_path, SETTINGS)
    with pair.running(), SyncClient(pair.server.url, user="ann") as user:
        jobs = {
            reason: user.submit({"run.sh": script.encode()}, **{"service": "example"} | fields).id
            for reason, (script, fields) in SCRIPTS.items()
        }
        failed = jobs["exit_code"]
        after = user.submit({"run.sh": b"true"}, service="example", after=[failed]).id
        told = {reason: sentence(user.wait(job, 60)) for reason, job in jobs.items()}
        assert {reason: text.partition(":")[0] for reason, text in told.items()} == {
            reason: reason for reason in told
        }
        said("exit_code", told["exit_code"])
        said("timeout", told["timeout"])
        said("heartbeat_timeout", told["heartbeat_timeout"])
        said("memory_limit", told["memory_limit"])
        said("disk_limit", told["disk_limit"])
        said("log_limit", told["log_limit"])
        said("results_limit", told["results_limit"])
        said("invalid_bundle", told["invalid_bundle"])
        said("child_failed", told["child_failed"])
        said("queue_timeout", told["queue_timeout"])
        said("dependency_failed", sentence(user.wait(after, 60)))
        one = user.submit({"run.sh": SLEEPS.encode()}, service="example").id
        pair.until(one, "Running")
        pair.agent.kill()
        pair.agent.start()
        said("agent_error", sentence(user.wait(one, 60)))
        other = user.submit({"run.sh": SLEEPS.encode()}, service="example").id
        pair.until(other, "Running")
        assert pair.agent.kill(signal.SIGTERM) == 0
        pair.agent.start()
        said("shutdown", sentence(user.wait(other, 60)))


async def test_a_sandbox_that_breaks(tmp_path: Path) -> None:
    settings = "[services.example]\ninfra_retries = 0\n"
    async with together(tmp_path, settings) as system:
        system.sandbox.script = lambda process: process.break_down("no room for a cgroup")
        job = await system.ended(await _upload(system))
        said("sandbox_error", f"{job['reason']}: {job['message']}")


async def test_an_agent_that_is_away(tmp_path: Path) -> None:
    once = "[services.my_service]\ninfra_retries = 0\n"
    client = FakeOrchestrator(then="Running", broken=True)
    async with driving(tmp_path, client, extra=once, agent_timeout=0.1) as caller:
        job_id = await caller.upload()
        job = await caller.job(job_id, until="Unknown")
        said("unknown", f"{job['status']}: {job['message']}")
        job = await caller.given_up(job_id)
        said("agent_lost", f"{job['reason']}: {job['message']}")


async def test_an_answer_that_is_lost_and_a_service_that_is_not_offered(tmp_path: Path) -> None:
    client = FakeOrchestrator(silent=True)
    async with driving(tmp_path, client) as caller:
        job = await caller.job(await caller.upload())
        said("agent_unreachable", f"{job['reason']}: {job['message']}")
        client.silent = False
        parent = await caller.upload({"run.sh": RUN}, array="0-1")
        await caller.job(parent)
        job = await caller.job(parent + 1)
        said("not_offered", f"{job['reason']}: {job['message']}")


def test_each_quote_is_provoked_and_each_symptom_quoted() -> None:
    assert sorted(provoked()) == sorted(quotes())


def test_each_reason_is_on_the_page() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    assert [
        reason for reason in Reason if f"`{reason}`" not in page and f"\n{reason}: " not in page
    ] == []
