"""``ferryman bench`` against a real server and agent in this process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ferryman import Client, NotFound, Refused
from ferryman.bench import load
from ferryman.bench.document import BenchDoc, Sample
from ferryman.bench.plan import Kind, Plan, kind_of
from ferryman.bench.quantities import Spread
from ferryman.bench.run import Run
from ferryman.clock import RealClock
from tests.support.command_line import ferryman
from tests.support.dev_program import environment
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.in_process_system import InProcessSystem, together
from tests.support.server_http import driving
from tests.unit.ferryman.test_bench import document

KIND = Kind(Spread(2_000, 2_000), 2, Spread(0, 0), Spread(0, 0), "example", 1.0)


class Said:
    """Notes what a run says."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sent = asyncio.Event()

    def say(self, text: str) -> None:
        self.texts.append(text)

    def say_sample(self, sample: Sample, sent: int) -> None:
        if sent:
            self.sent.set()


@asynccontextmanager
async def working(folder: Path) -> AsyncIterator[InProcessSystem]:
    """A server and an agent whose jobs end at once."""
    async with together(folder) as system:
        system.sandbox.script = lambda process: process.finish()
        yield system


def run_of(client: Client, watcher: Client, plan: Plan, said: Said | None = None) -> Run:
    return Run(client, watcher, plan, "bench-test", RealClock(), "1", said or Said())


@pytest.mark.parametrize(
    "plan",
    [
        Plan([KIND], rate=50, jobs=12, users=("bench-1", "bench-2")),
        Plan([KIND, kind_of("1:size=70KiB", KIND)], concurrency=3, jobs=9, users=("ann",)),
    ],
    ids=["open loop", "closed loop"],
)
async def test_a_load_is_sent_measured_and_deleted(tmp_path: Path, plan: Plan) -> None:
    async with working(tmp_path) as system, Client(system.url) as client:
        bench = run_of(client, client, plan)
        found = await bench.result()
        assert (found.end, found.counts.accepted, found.counts.completed) == (
            "complete",
            plan.jobs,
            plan.jobs,
        )
        assert found.counts.refused == found.counts.errors == found.counts.failed == {}
        times = found.latencies
        for one in (times.upload, times.queued, times.to_start, times.overhead, times.end_to_end):
            assert one.count == plan.jobs
        assert (times.end_to_end.max_s or 0) >= (times.upload.p50_s or 0) > 0
        assert {job.user_id async for job in client.jobs()} == set(plan.users)
        assert all(one.memory_bytes for one in found.samples), "it reads /metrics"
        assert {one.slots for one in found.samples} <= {0, 2}  # 0: before the agent was reached
        await bench.tidy()
        assert [job async for job in client.jobs()] == []


async def test_the_command_reports_and_compares(tmp_path: Path) -> None:
    report, earlier = tmp_path / "made" / "report", tmp_path / "earlier.json"
    earlier.write_text(document().model_dump_json())
    async with working(tmp_path) as system:
        base = ("bench", "-s", "example", "--url", system.url, "--seed", "5")
        code, out, err = await ferryman(
            *(*base, "--jobs", "3", "--files", "2", "--users", "2"),
            *("--report", str(report), "--compare", str(earlier)),
        )
        assert code == 0, err
        lines = dict(line.split("\t")[:2] for line in out.splitlines() if "\t" in line)
        assert lines["accepted"].startswith("3, ")
        assert lines["upload, from when it was due"] == "3"
        assert "BEFORE\tNOW\tRATIO" in out
        assert "3 jobs deleted" in err
        assert (report / "report.html").read_text().startswith("<!doctype html>")
        assert BenchDoc.model_validate_json((report / "result.json").read_bytes()).end == "complete"
        words = ("--rate", "50/s", "--jobs", "2", "--json", "--keep")
        code, out, err = await ferryman(*base, *words)
        assert code == 0, err
        found = BenchDoc.model_validate_json(out)
        assert found.plan == "50/s, open loop, 2 jobs, 1 user, seed 5"
        assert f"ferryman delete --all --tag {found.tag} --url {system.url}" in err
        assert await system.jobs() > 0


async def test_a_service_that_is_not_there_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller, Client(caller.url) as client:
        with pytest.raises(NotFound):
            await run_of(client, client, Plan([KIND], rate=5, jobs=2, users=("a",))).result()


async def test_a_load_that_no_server_takes_ends_with_its_refusal(tmp_path: Path) -> None:
    kind = kind_of("1:service=my_service,size=2MiB", KIND)
    plan = Plan([kind], rate=200, jobs=500, users=("ann",))
    extra = "[server]\nmax_upload = '1MiB'\n"
    async with (
        driving(tmp_path, FakeOrchestrator(), extra=extra) as caller,
        Client(caller.url, retry_for=0) as client,
    ):
        with pytest.raises(Refused) as refusal:
            await run_of(client, client, plan).result()
        assert refusal.value.status == 413


async def test_what_is_refused_until_later_is_counted_and_not_sent_again(tmp_path: Path) -> None:
    kind = kind_of("1:service=my_service", KIND)
    plan = Plan([kind], rate=200, jobs=12, users=("ann",), patience_s=0)
    extra = "[services.my_service]\nqueued_per_user = 3\n"
    async with (
        driving(tmp_path, FakeOrchestrator(), extra=extra, gone=True) as caller,
        Client(caller.url, retry_for=0) as client,
    ):
        found = await run_of(client, client, plan).result()
        assert found.end == "patience"
        assert found.counts.accepted + sum(found.counts.refused.values()) == 12
        assert set(found.counts.refused) == {"queue_full"}
        assert "queue_full" in {one.code for one in found.verdicts}


async def test_a_server_that_dies_in_the_middle_ends_the_load_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "GIVE_UP_S", 0.2)
    plan, said = Plan([KIND], rate=50, duration_s=600, users=("ann",)), Said()
    async with AsyncExitStack() as stack:
        async with working(tmp_path) as system:
            client, watcher = [
                await stack.enter_async_context(Client(system.url, retry_for=0)) for _ in range(2)
            ]
            bench = run_of(client, watcher, plan, said)
            running = asyncio.create_task(bench.result())
            await said.sent.wait()
        found = await running
    assert found.end == "server_away"
    assert found.counts.errors["unreachable"] >= 1
    assert "unreachable" in {one.code for one in found.verdicts}
    assert bench.made_jobs


async def test_ctrl_c_shows_what_there_is_and_deletes_what_was_made(tmp_path: Path) -> None:
    async with working(tmp_path) as system, Client(system.url) as client:
        words = ("bench", "-s", "example", "--url", system.url, "--rate", "30/s", "--json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "ferryman", *words),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async for event in client.all_events(0):
                if event.event == "job.completed":
                    break
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(process.communicate(), 50)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 130, err.decode()
        found = json.loads(out)
        assert found["end"] == "interrupted"
        assert found["counts"]["accepted"] >= 1
        assert "Traceback" not in err.decode()
        assert "deleted" in err.decode()
        assert [job async for job in client.jobs()] == []


async def test_the_token_of_a_user_makes_no_jobs_of_others(tmp_path: Path) -> None:
    operator = "the-operator's-own-token"
    async with driving(tmp_path, FakeOrchestrator(), tokens=[operator]) as caller:
        async with Client(caller.url, token=operator) as client:
            made = await client.create_token("ann")
        words = ("bench", "-s", "my_service", "--url", caller.url, "--users", "2")
        code, _, err = await ferryman(*words, FERRYMAN_TOKEN=made.token)
        assert (code, "the token is of the user ann alone" in err) == (2, True)
