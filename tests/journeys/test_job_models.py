"""Every item of the job models of five systems, tried over HTTP against running programs.

The items are those that cbintel's jobs, PROTEA's job layer, job-orchestrator, Jobbers and Ocypod
describe in public. What differs on purpose stands in docs/lifecycle.md. All items run at once; each
has users of its own.
"""

from __future__ import annotations

import asyncio
import copy
import io
import itertools
import json
import signal
import socket
import sys
import tomllib
import uuid
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import pytest

from ferryman import Client, WaitedTooLong
from tests.kit import command_line, forked_programs
from tests.kit.dev_program import environment
from tests.kit.programs import Program, free_port, left_behind
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

Doc: TypeAlias = dict[str, Any]
PATIENCE_S: Final = 120.0
LONG: Final = "echo started; sleep 60"
SECOND: Final = "exit $((FERRYMAN_ATTEMPT < 2))"
"""Fails once."""
SERVICES: Final = """
[services]
plain = { runs_per_user = 50, max_runs = 100 }
quick = { max_runs = 100, retry_delays = ["0s"] }
undelayed = { retry_delays = [] }
gpu = {}
one = { max_runs = 1 }
pair = { runs_per_user = 1 }
endless = { timeout = "0s" }
brief = { expires_after = "1s", forget_after = "2s" }
nobody = {}
letters = { dead_letter = true }
[services.strict]
timeout = "30s"
queue_timeout = "1h"
heartbeat_timeout = "1s"
expires_after = "1d"
"""
SERVER: Final = "[server]\ncleaner_interval = 0.1\n"
MAIN: Final = f"""{SERVER}{SERVICES}
[agents]
one = {{ url = "URL0", max_runs = {{ gpu = 1 }} }}
two = {{ url = "URL1", max_runs = {{ gpu = 1 }} }}
"""
AGENT: Final = '[agent]\nslots = 24\ngrace = "1s"\nshutdown_grace = "1s"\nservices = '
FRAIL: Final = f"""{SERVER}agent_timeout = "1s"
agent_lost_after = "20s"
[services]
killed = {{}}
frozen = {{}}
lost = {{ infra_retries = 0 }}
stops = {{ on_shutdown = "stop" }}
resubmits = {{ on_shutdown = "resubmit" }}
continues = {{ on_shutdown = "continue" }}
[agents]
killed = {{ url = "URL0" }}
frozen = {{ url = "URL1" }}
lost = {{ url = "URL2" }}
stopped = {{ url = "URL3" }}
"""


class World:
    """A server, its agents, and everybody who calls them."""

    def __init__(self, folder: Path, settings: str, services: list[list[str]]) -> None:
        folder.mkdir()
        self.folder, self.agents, mark = folder, list[Program](), uuid.uuid4().hex
        for number, names in enumerate(services):
            (place := folder / str(number)).mkdir()
            config = place / "agent.toml"
            config.write_text(f"{AGENT}{json.dumps(names)}\n")
            self.agents.append(Program("client_agent", place, mark, "--config", str(config)))
            settings = settings.replace(f"URL{number}", self.agents[-1].url)
        config = folder / "server.toml"
        config.write_text(settings)
        self.server = Program("server", folder, mark, "--config", str(config))
        self.url = self.server.url
        self.server_came_back = asyncio.Event()
        self._users = (f"user-{number}" for number in itertools.count(1))

    @contextmanager
    def running(self) -> Iterator[World]:
        with ExitStack() as stack:
            for program in (*self.agents, self.server):
                stack.enter_context(program.running())
                program.prefix = ("env",)  # who starts it again has threads: no fork then
            yield self
        assert [line for agent in self.agents for line in left_behind(agent)] == []

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[World]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as self.session:
            yield self

    async def raw(self, method: str, path: str, **how: Any) -> tuple[int, bytes]:
        url = path if path.startswith("http") else f"{self.url}{path}"
        async with self.session.request(method, url, **how) as answer:
            return answer.status, await answer.read()

    async def ask(self, method: str, path: str, **how: Any) -> tuple[int, Doc]:
        status, body = await self.raw(method, path, **how)
        return status, json.loads(body) if body else {}

    async def get(self, path: str) -> Doc:
        status, found = await self.ask("GET", path)
        assert status == 200, found
        return found

    async def listed(self, query: str) -> list[int]:
        return [one["id"] for one in (await self.get(f"/api/v1/jobs?{query}"))["items"]]

    async def upload(
        self, script: str | None = "true", service: str = "plain", **fields: Any
    ) -> tuple[int, Doc]:
        """Status and answer; ``files``: name -> text."""
        files = {"run.sh": script, **fields.pop("files", {})}
        given = {"user_id": fields.pop("user", None) or next(self._users), "service": service}
        form = aiohttp.FormData(default_to_multipart=True)
        for name, value in {**given, **fields}.items():
            if value is not None:
                form.add_field(name, str(value))
        for name, text in files.items():
            if text is not None:
                form.add_field("file", text.encode(), filename=name)
        return await self.ask("POST", "/upload", data=form)

    async def submit(self, script: str = "true", service: str = "plain", **fields: Any) -> int:
        status, answer = await self.upload(script, service, **fields)
        assert status == 201, answer
        return int(answer["id"])

    async def warned(self, *words: str, **fields: Any) -> Doc:
        """The document of a job that was accepted with a warning in these words."""
        status, answer = await self.upload(**fields)
        assert status == 201, answer
        assert all(word in str(answer["warnings"]) for word in words), answer
        return await self.job(answer["id"])

    async def job(self, job_id: int) -> Doc:
        return await self.get(f"/api/v1/jobs/{job_id}")

    async def until(self, job_id: int, true: Callable[[Doc], Any]) -> Doc:
        """The first document that it is true of; after each event it is looked at again."""
        after = 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                document = await self.job(job_id)
                if true(document):
                    return document
                page = await self.get(f"/api/v1/jobs/{job_id}/events?after={after}&wait=0.5")
                after = page["reached"]

    async def state(self, job_id: int, *states: str) -> Doc:
        return await self.until(job_id, lambda job: job["status"] in states)

    async def ended(self, job_id: int, run: int = 1) -> Doc:
        return await self.until(job_id, lambda job: job["ended"] and job["run"] == run)

    async def run(self, script: str = "true", service: str = "plain", **fields: Any) -> Doc:
        return await self.ended(await self.submit(script, service, **fields))

    async def started(self, script: str = LONG, service: str = "plain", **fields: Any) -> int:
        """A job that runs."""
        job_id = await self.submit(script, service, **fields)
        await self.state(job_id, "Running")
        return job_id

    async def waits(self, script: str, **fields: Any) -> int:
        """A job that waits for its next attempt."""
        job_id = await self.submit(script, **fields)
        assert not (await self.until(job_id, lambda one: one["not_before"]))["ended"]
        return job_id

    async def cancel(self, job_id: int) -> Doc:
        status, found = await self.ask("POST", f"/api/v1/jobs/{job_id}/cancel")
        assert status == 200, found
        return found

    async def events(self, job_id: int) -> list[Doc]:
        return list((await self.get(f"/api/v1/jobs/{job_id}/events?limit=1000"))["items"])

    async def named(self, job_id: int, name: str) -> list[Doc]:
        return [one for one in await self.events(job_id) if one["event"] == name]

    async def result(self, path: str) -> dict[str, str]:
        status, body = await self.raw("GET", path)
        assert status == 200, body
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}

    async def delays(self, **fields: Any) -> list[float]:
        """Seconds before each retry of a job that always fails."""
        job = await self.run("exit 1", **{"service": "quick", **fields})
        return [one["fields"]["delay_s"] for one in await self.named(job["id"], "job.retry")]


def has(job: Doc, **values: Any) -> Doc:
    """The document, which has these."""
    assert {name: job[name] for name in values} == values
    return job


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def times(document: Doc, *names: str) -> list[datetime]:
    return [datetime.fromisoformat(document[name]) for name in names]


def one_after_the_other(spans: list[list[datetime]]) -> bool:
    return all(before[1] <= after[0] for before, after in itertools.pairwise(sorted(spans)))


Try: TypeAlias = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Item:
    row: str
    world: str
    try_it: Try

    def __str__(self) -> str:
        return self.row


ITEMS: list[Item] = []


def item(*rows: str, world: str = "main") -> Callable[[Try], Try]:
    """``system: what it describes · and this``, each."""

    def add(function: Try) -> Try:
        for system, _, described in (row.partition(": ") for row in rows):
            ITEMS.extend(
                Item(f"{system}: {one}", world, function) for one in described.split(" · ")
            )
        return function

    return add


# -- cbintel jobs


@item("cbintel: PENDING, then QUEUED: no gap a client could see")
async def there_at_once(w: World) -> None:
    status, answer = await w.upload()
    assert (status, answer["status"]) == (201, "Queued")
    assert (await w.job(answer["id"]))["history"][0]["status"] == "Queued"


@item(
    "cbintel: PENDING to FAILED: validation error",
    "job-orchestrator: validation of run.sh, user_id, service, no file",
)
async def refused(w: World) -> None:
    cases: list[tuple[Doc, str]] = [
        ({"script": None, "files": {"a.txt": "x"}}, "no_run_sh"),
        ({"script": None}, "no_file"),
        ({"user": "a b"}, "invalid_user_id"),
        ({"service": "none-such"}, "unknown_service"),
    ]
    for fields, code in cases:
        status, answer = await w.upload(**{"user": "refused", **fields})
        assert (status, answer["code"]) == (400, code)
    assert await w.listed("user=refused") == []


@item(
    "cbintel: QUEUED to PROCESSING: worker claims, started_at",
    "cbintel: PROCESSING to COMPLETED, completed_at, result · duration_seconds",
    "cbintel: history: status, timestamp, worker, attempt",
    "PROTEA: QUEUED, RUNNING, SUCCEEDED or FAILED",
    "Jobbers: submitted, started, completed, failed, cancelled · submitted_at, completed_at",
    "job-orchestrator: states Queued, Processing, Submitted, Completed",
    "Ocypod: id, queue, status, tags, created_at, started_at, ended_at, last_heartbeat",
    "Ocypod: tags, ids by tag",
)
async def completes(w: World) -> None:
    script = "echo hi; echo out > out.txt; echo ::output name=a::b"
    job = await w.run(script, tags="red,blue", user="tags")
    has(job, service="plain", tags=["red", "blue"], output={"a": "b"})
    states = ["Queued", "Processing", "Submitted", "Running", "Completed"]
    assert [one["status"] for one in job["history"] if one["status"] in states] == states
    assert {one["agent"] for one in job["history"][2:]} <= {"one", "two"}
    assert job["history"][-1]["attempt"] == 1
    assert all(one["seconds"] >= 0 and one["at"] for one in job["history"])
    names = ("created_at", "submitted_at", "started_at", "ended_at", "heartbeat_at")
    created, submitted, started, ended, _ = times(job, *names)
    assert max(created, submitted, started) <= ended
    assert created <= min(submitted, started)
    assert (await w.result(f"/api/v1/jobs/{job['id']}/result"))["out.txt"] == "out\n"
    assert job["usage"]["wall_s"] >= 0
    assert await w.listed("tag=red&user=tags") == [job["id"]]
    has(await w.run("exit 3"), status="Failed")


@item("cbintel: COMPLETED has progress 100")
async def full_progress(w: World) -> None:
    job = await w.run("echo ::progress value=45,total=100::")
    has(job, progress={"current": 100, "total": 100})
    has(await w.run(), progress={"current": 1, "total": 1})


@item(
    "cbintel: FAILED: progress 45 kept, failed_at, error",
    "Ocypod: ended, in all four cases · cancelled, also while a retry waits",
)
async def fails(w: World) -> None:
    job = await w.run("echo ::progress value=45,total=100::half; echo oops >&2; exit 3")
    has(job, status="Failed", reason="exit_code", exit_code=3)
    has(job, progress={"current": 45, "total": 100})
    assert job["ended_at"]
    assert job["message"]
    assert "oops" in job["stderr_tail"]
    has(await w.run(), ended=True)
    other = await w.started()
    has(await w.job(other), ended=False)
    has(await w.cancel(other), ended=True)
    retrying = await w.waits("exit 1", retries=1, retry_delays="1h")
    has(await w.cancel(retrying), status="Cancelled")


@item(
    "cbintel: attempts 2, max_retries 3 · FAILED to QUEUED while attempts remain, else final",
    "cbintel: max_retries: 3",
    "Jobbers: retries=3 means failures are retried · max_retries",
    "Ocypod: failed and timed out are retried automatically",
    "Ocypod: timeout, retries, retry_delays, retries_attempted shown",
)
async def retries(w: World) -> None:
    job_id = await w.submit("exit 1", "quick", retries=3)  # and nothing said of retry_on
    job = has(await w.ended(job_id), status="Failed", attempt=4, retries_left=0, timeout_s=3600.0)
    assert len(job["attempts"]) == 4
    reasons = ["exit_code", "heartbeat_timeout", "timeout"]
    has(job["retry"], retries=3, retry_on=reasons, retry_delays_s=[0.0])
    assert len(await w.named(job_id, "job.retry")) == 3
    status, again = await w.ask("POST", f"/api/v1/jobs/{job_id}/retry")
    assert status == 200
    has(again, run=2, retries_left=3)  # fresh by hand
    late = await w.run("sleep 9", "quick", retries=1, timeout="300ms")
    has(late, reason="timeout", attempt=2)
    has(await w.run("exit $((FERRYMAN_ATTEMPT < 3))", "quick", retries=3), attempt=3)


@item("cbintel: DELETE cancels; document with cancelled_at")
async def delete_cancels(w: World) -> None:
    job_id = await w.started()
    status, job = await w.ask("DELETE", f"/api/v1/jobs/{job_id}")
    assert (status, job["status"]) == (200, "Cancelled")
    assert job["ended_at"]
    assert job["cancel_requested_at"]
    has(await w.job(job_id), status="Cancelled")  # it stays
    assert (await w.ask("DELETE", f"/api/v1/jobs/{job_id}"))[0] == 204  # and goes when it has ended
    assert (await w.ask("GET", f"/api/v1/jobs/{job_id}"))[0] == 404


@item(
    "cbintel: update_progress while it runs · poll: progress and message",
    "PROTEA: progress in any emit: events sampled, the document is live",
)
async def live_progress(w: World) -> None:
    script = "for n in 1 2 3 4 23; do echo ::progress value=$n,total=50::Processing URL $n of 50; "
    job_id = await w.submit(script + "done; sleep 60")
    job = await w.until(job_id, lambda one: (one["progress"] or {}).get("current") == 23)
    has(job, status="Running", message="Processing URL 23 of 50")
    assert len(await w.named(job_id, "job.progress")) <= 2
    await w.cancel(job_id)


@item("cbintel: WORKER_TIMEOUT: FAILED, timed out · QUEUE_TIMEOUT", "Ocypod: status timed_out")
async def times_out(w: World) -> None:
    job = await w.run("sleep 60", timeout="300ms")
    has(job, status="Failed", reason="timeout", timeout_s=0.3)
    silent = await w.run("sleep 60", heartbeat_timeout="300ms", user="silent")
    has(silent, status="Failed", reason="heartbeat_timeout")
    assert await w.listed("user=silent&reason=heartbeat_timeout") == [silent["id"]]
    waited = await w.run(service="nobody", queue_timeout="300ms")
    has(waited, status="Failed", reason="queue_timeout")
    has(await w.run(), timeout_s=3600.0)  # where nobody says anything


@item("cbintel: min(30·2^n, 3600): 30, 60, 120", "Jobbers: max_retry_delay 3600")
async def exponential(w: World) -> None:
    job = await w.run(backoff="exponential", retries=1)
    has(job["retry"], retry_delay_s=30.0, max_retry_delay_s=3600.0)
    given = {"retries": 4, "retry_delay": "100ms", "max_retry_delay": "300ms"}
    assert await w.delays(backoff="exponential", **given) == [0.1, 0.2, 0.3, 0.3]


@item("cbintel: retry_on, no_retry_on", "Jobbers: expected and unexpected exceptions")
async def retried_reasons(w: World) -> None:
    rules = {"retries": 2, "retry_on": "exit:3,exit_code", "no_retry_on": "exit:4"}
    has(await w.run("exit 3", "quick", **rules), attempt=3)
    job = has(await w.run("exit 4", "quick", **rules), attempt=1, retries_left=2)
    assert all(word in job["message"] for word in ("exit:4", "no_retry_on"))
    has(await w.run("exit 5", "quick", retries=2, retry_on="exit:3"), attempt=1)
    for never in ("queue_timeout", "invalid_bundle", "not_offered"):
        assert (await w.upload(retries=1, retry_on=never))[0] == 400


@item(
    "cbintel: history: the FAILED between two tries, with error",
    "Jobbers: started_at (first), retried_at",
)
async def failure_in_history(w: World) -> None:
    job = await w.run(SECOND, "quick", retries=1)
    [back] = [one for one in job["history"][1:] if one["status"] == "Queued"]
    assert "exit code 1" in has(back, reason="exit_code", attempt=1)["message"]
    first, second = [times(one, "started_at")[0] for one in job["attempts"]]
    assert times(job, "started_at") == [first]
    assert first < second


@item(
    "cbintel: JOB_RETENTION_DAYS; cleanup runs periodically",
    "job-orchestrator: Cleaner: to Cleaned, record removed",
    "Ocypod: expires_after clears job and metadata, also per job",
)
async def retention(w: World) -> None:
    job_id = await w.submit("exit 1", "brief")
    await w.state(job_id, "Cleaned")
    assert (await w.raw("GET", f"/api/v1/jobs/{job_id}/result"))[0] == 410
    async with asyncio.timeout(PATIENCE_S):
        while (await w.raw("GET", f"/api/v1/jobs/{job_id}?wait=0.2"))[0] != 404:
            await w.raw("GET", "/api/v1/events?after=now&wait=0.2")
    job = await w.state(await w.submit(expires_after="10ms"), "Cleaned")
    has(job, expires_after_s=0.01)


@item(
    "cbintel: client: submit, wait(timeout), get",
    "cbintel: result: COMPLETED, FAILED (error, attempts), CANCELLED",
)
async def sdk(w: World) -> None:
    async with Client(w.url, user="sdk") as client:
        job = await client.submit({"run.sh": b"sleep 60"}, service="plain")
        with pytest.raises(WaitedTooLong):
            await client.wait(job.id, timeout=0.2)
        said = await command_line.afresh("wait", job.id, "--timeout", "0.2s", FERRYMAN_URL=w.url)
        assert said.code == 124, said
        assert (await client.cancel(job.id)).status == "Cancelled"
        failed = await client.submit({"run.sh": b"exit 2"}, service="plain")
        ended = await client.wait(failed.id)
        assert ended.retry is not None
        assert (ended.status, ended.attempt, ended.retry.retries) == ("Failed", 1, 0)
        assert "2" in ended.message
        done = await client.submit({"run.sh": b"echo a > a"}, service="plain")
        await client.wait(done.id)
        got = await client.download(done.id, w.folder)
        assert "a" in zipfile.ZipFile(got.path).namelist()


# -- PROTEA's job layer


@item("PROTEA: QUEUED to CANCELLED before execution")
async def cancel_queued(w: World) -> None:
    job_id = await w.submit(not_before="in 1h")
    has(await w.cancel(job_id), status="Cancelled")
    has(await w.job(job_id), attempts=[])


@item("PROTEA: claim and execution apart: kill -9 of the server", world="frail")
async def server_killed(w: World) -> None:
    try:
        job_id = await w.started("echo started; sleep 4", "frozen")
        await asyncio.to_thread(w.server.kill)
        await asyncio.to_thread(w.server.start)
    finally:
        w.server_came_back.set()
    has(await w.ended(job_id), status="Completed", attempt=1)


@item("PROTEA: claim and execution apart: kill -9 of the agent", world="frail")
async def agent_killed(w: World) -> None:
    await w.server_came_back.wait()
    job_id = await w.started("test $FERRYMAN_ATTEMPT = 2 || sleep 60", "killed")
    await asyncio.to_thread(w.agents[0].kill)
    await asyncio.to_thread(w.agents[0].start)
    job = has(await w.ended(job_id), status="Completed")
    assert job["retry"]["retries"] == 0
    assert len(await w.named(job_id, "job.interrupted")) == 1


@item("PROTEA: job.started, job.succeeded, job.failed (class, message)")
async def event_names(w: World) -> None:
    job = await w.run("exit 3")
    found = {one["event"]: one for one in await w.events(job["id"])}
    assert {"job.queued", "job.running", "job.failed"} <= found.keys()
    failed = has(found["job.failed"], level="error", reason="exit_code")
    assert "exit code 3" in failed["message"]
    assert len(await w.named((await w.run())["id"], "job.completed")) == 1


@item(
    "PROTEA: parent stays RUNNING with N batches, deferred, and holds no slot",
    "PROTEA: OperationResult(deferred=True, result={…}) · parent_job_id, NULL at the top",
)
async def deferred(w: World) -> None:
    script = "mkdir -p children/a; echo 'sleep 60' > children/a/run.sh; echo ::output name=n::7"
    job_id = await w.submit(script, "one")
    parent = await w.until(job_id, lambda one: one["children"] and one["children"]["active"])
    has(parent, status="Running", output={"n": "7"}, parent_id=None)
    assert len(await w.named(job_id, "job.deferred")) == 1
    has(await w.get("/api/v1/services/one"), in_work=1)  # the child's
    [child] = await w.listed(f"parent={job_id}")
    has(await w.job(child), parent_id=job_id)
    has(await w.cancel(job_id), status="Cancelled")
    await w.state(child, "Cancelled")


@item("PROTEA: progress_current and _total count up atomically: 40 children at once")
async def counted_children(w: World) -> None:
    job = has(await w.run("true", array="0-39"), progress={"current": 40, "total": 40})
    assert job["children"]["completed"] == 40
    assert len(await w.named(job["id"], "job.completed")) == 1


@item("PROTEA: last child closes the parent; a failed child is named")
async def last_child(w: World) -> None:
    script = "mkdir -p children/a; echo 'echo 5 > n' > children/a/run.sh"
    job = await w.run(script, files={"gather.sh": "cat children/a/n > sum"})
    has(job, status="Completed")
    assert (await w.result(f"/download/{job['id']}"))["sum"] == "5\n"
    job = await w.run("exit $FERRYMAN_ARRAY_INDEX", array="0-1")
    has(job, status="Failed", reason="child_failed")
    [child] = await w.listed(f"parent={job['id']}&state=Failed")
    assert str(child) in job["message"]


@item("PROTEA: RetryLater(reason, delay)")
async def retry_later(w: World) -> None:
    script = "echo '::retry-later after=300ms::GPU busy'; exit 75"
    job_id = await w.submit(f'test "$FERRYMAN_ATTEMPT" = 2 || {{ {script}; }}', "one")
    job = has(await w.ended(job_id), status="Completed", attempt=2, retries_left=0)
    [event] = await w.named(job_id, "job.retry_later")
    assert event["fields"]["delay_s"] == 0.3
    assert "GPU busy" in event["message"]
    first, second = job["attempts"]
    [ended], [started] = times(first, "ended_at"), times(second, "started_at")
    assert started - ended >= timedelta(seconds=0.3)
    waits = await w.waits("echo '::retry-later after=1h::'; exit 75")
    has(await w.cancel(waits), status="Cancelled")


@item("PROTEA: one GPU job at a time", "job-orchestrator: quota: service")
async def one_at_a_time(w: World) -> None:
    jobs = [await w.submit("sleep 0.2", "one") for _ in range(3)]
    seen = await w.job(jobs[-1])
    assert seen["status"] != "Queued" or seen["queue"]["code"] in ("service_quota", "next")
    spans = [times(await w.ended(one), "started_at", "ended_at") for one in jobs]
    assert one_after_the_other(spans)


@item(
    "PROTEA: event: own dotted names · event: fields, any JSON",
    "PROTEA: event: message, level info, warning or error, ts",
)
async def own_events(w: World) -> None:
    job = await w.run(
        "echo '::event name=pages.done,page=3::third page'; echo '::notice page=4::four'; "
        "echo ::warning::careful; echo ::error::bad; echo ::event name=job.mine::x"
    )
    found = {one["event"]: one for one in await w.events(job["id"])}
    own = has(found["pages.done"], source="run.sh", message="third page")
    assert str(own["fields"]["page"]) == "3"
    assert str(found["job.notice"]["fields"]["page"]) == "4"
    levels = [found[f"job.{one}"]["level"] for one in ("notice", "warning", "error")]
    assert levels == ["notice", "warning", "error"]
    assert all(one["at"].endswith("Z") for one in found.values())
    assert "job.mine" not in found
    assert "job.mine" in str(found["job.warning"]) + str((await w.job(job["id"]))["warnings"])


@item("PROTEA: GET /jobs/{id}/events polled")
async def polled(w: World) -> None:
    job = await w.run()
    events = await w.events(job["id"])
    page = await w.get(f"/api/v1/jobs/{job['id']}/events?after={events[1]['seq']}")
    assert page["items"] == events[2:]
    waiting = await w.submit(not_before="in 1h")
    seen = (await w.events(waiting))[-1]["seq"]
    path = f"/api/v1/jobs/{waiting}/events?after={seen}&wait=60"
    held = asyncio.create_task(w.get(path))
    await w.cancel(waiting)
    assert (await held)["items"]


@item("PROTEA: live timeline")
async def server_sent(w: World) -> None:
    job_id = await w.submit("echo ::progress value=2,total=4::half; echo ::notice::hello; sleep 60")
    seen = list[str]()
    path = f"{w.url}/api/v1/jobs/{job_id}/events"
    async with w.session.get(path, headers={"Accept": "text/event-stream"}) as stream:
        async for line in stream.content:
            if line.startswith(b"event: "):
                seen.append(line[7:].strip().decode())
            if seen[-1:] == ["job.notice"]:
                break
    assert {"job.queued", "job.running"} <= set(seen)
    await w.until(job_id, lambda one: one["progress"])
    _, page = await w.raw("GET", f"/jobs/{job_id}")
    assert b"<progress" in page
    assert b"hello" in page
    await w.cancel(job_id)


@item(
    "PROTEA: cancel QUEUED or RUNNING · cancel of SUCCEEDED, FAILED, CANCELLED is a no-op",
    "PROTEA: soft cancel: here the processes are dead, nothing is written later",
)
async def cancels(w: World) -> None:
    job_id = await w.started()
    has(await w.cancel(job_id), status="Cancelled")
    ended = {job_id: "Cancelled"}
    for script, state in (("true", "Completed"), ("exit 1", "Failed")):
        ended[(await w.run(script))["id"]] = state
    for one, state in ended.items():
        before = await w.events(one)
        has(await w.cancel(one), status=state)
        assert await w.events(one) == before


@item("PROTEA: queued children cancelled atomically")
async def cancel_children(w: World) -> None:
    job_id = await w.submit(LONG, array="0-199", max_parallel=2)
    await w.until(job_id, lambda one: one["children"]["active"])
    await w.cancel(job_id)
    job = has(await w.job(job_id), status="Cancelled")
    assert job["children"]["cancelled"] == 200
    assert await w.listed(f"parent={job_id}&state=Running") == []


# -- job-orchestrator


@item("job-orchestrator: POST /upload: files, user_id, service")
async def reference_upload(w: World) -> None:
    status, answer = await w.upload()
    assert (status, set(answer)) == (201, {"id", "status", "message"})
    assert answer["message"] == "Job successfully uploaded"


@item("job-orchestrator: state Killed, terminate")
async def terminate(w: World) -> None:
    job_id = await w.started()
    for _ in range(2):
        status, answer = await w.ask("POST", f"/terminate/{job_id}")
        assert (status, answer["message"]) == (200, "job terminated")
    has(await w.get(f"/download/{job_id}"), status="Killed")
    assert (await w.ask("POST", "/terminate/99999999"))[0] == 404


@item("job-orchestrator: Sender, Getter 500 ms; Cleaner 60 s · MAX_AGE 48 h")
async def intervals(w: World) -> None:
    words = ["--print-config"]
    found = await asyncio.to_thread(forked_programs.run, "server", words, environment())
    for line in ("sender_interval = 0.5s", "getter_interval = 0.5s", "cleaner_interval = 1m"):
        assert line in found.stdout.replace('"', ""), found.stdout
    ended, expires = times(await w.run(), "ended_at", "expires_at")
    assert expires - ended == timedelta(hours=48)


@item("job-orchestrator: quota: user and service, else stays Queued")
async def user_quota(w: World) -> None:
    first, second = [await w.submit("sleep 60", "pair", user="pair") for _ in range(2)]
    await w.state(first, "Running")
    job = has(await w.job(second), status="Queued")
    has(job["queue"], code="user_quota", used=1, limit=1)
    await w.cancel(first)
    await w.state(second, "Running")
    await w.cancel(second)


@item("job-orchestrator: client: /submit to Prepared, Runner, /retrieve/{id} as a ZIP")
async def reference_client(w: World) -> None:
    agent = w.agents[0].url
    form = aiohttp.FormData()
    form.add_field("run.sh", b"echo done > a/out.txt", filename="run.sh")
    form.add_field("a/b.txt", b"x", filename="b.txt")
    status, payload = await w.ask("POST", f"{agent}/submit", data=form)
    assert status == 200, payload
    assert {"id", "input", "status", "loc", "pid", "killed"} <= payload.keys()
    has(payload, status="Prepared")
    path = f"{agent}/retrieve/{payload['id']}"
    async with asyncio.timeout(PATIENCE_S):
        while not (body := (await w.raw("GET", path))[1]).startswith(b"PK"):
            assert json.loads(body)["status"] in ("Prepared", "Running")
            await w.raw("GET", f"{agent}/load")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.read("a/out.txt") == b"done\n"


@item(
    "job-orchestrator: exit code, output captured",
    "job-orchestrator: GET /download/{id}: JSON until completed, then ZIP; 404 unknown",
    "job-orchestrator: run.sh non-zero: Failed, output retrieved · execution failure",
    "job-orchestrator: partial download while it runs",
)
async def reference_download(w: World) -> None:
    job_id = await w.submit("sleep 0.3; echo said")
    assert (await w.get(f"/download/{job_id}"))["status"] != "Completed"
    await w.ended(job_id)
    assert "said\n" in (await w.result(f"/download/{job_id}")).values()
    status, answer = await w.ask("GET", "/download/99999999")
    assert (status, answer["id"], answer["status"]) == (404, 0, "Unknown")
    failed = await w.run("echo left > left.txt; exit 4")
    has(await w.get(f"/download/{failed['id']}"), status="Failed", exit_code=4)
    left = await w.result(f"/download_partial/{failed['id']}")
    assert left["left.txt"] == "left\n"
    job_id = await w.submit("echo one > one.txt; echo ::progress value=1::; sleep 60")
    await w.until(job_id, lambda one: one["progress"])
    assert (await w.result(f"/download_partial/{job_id}"))["one.txt"] == "one\n"
    await w.cancel(job_id)


@item("job-orchestrator: retrieval fails: Unknown, retried, Completed", world="frail")
async def frozen_agent(w: World) -> None:
    await w.server_came_back.wait()
    job_id = await w.started("echo ok > ok.txt; sleep 5", "frozen")
    agent = w.agents[1].process
    assert agent is not None
    agent.send_signal(signal.SIGSTOP)
    try:
        await w.state(job_id, "Unknown")
    finally:
        agent.send_signal(signal.SIGCONT)
    has(await w.ended(job_id), status="Completed", attempt=1)


@item("job-orchestrator: retrieval times out", world="frail")
async def lost_agent(w: World) -> None:
    await w.server_came_back.wait()
    job_id = await w.started(LONG, "lost")
    await asyncio.to_thread(w.agents[2].kill)
    has(await w.ended(job_id), status="Failed", reason="agent_lost")
    await asyncio.to_thread(w.agents[2].start)  # it removes what runs there still


@item("job-orchestrator: user can resubmit")
async def resubmit(w: World) -> None:
    job = has(await w.run(SECOND), status="Failed")
    assert (await w.ask("POST", f"/api/v1/jobs/{job['id']}/retry"))[0] == 200
    has(await w.ended(job["id"], run=2), status="Completed")


@item(
    "job-orchestrator: env PORT, DB_PATH, DATA_PATH, MAX_AGE",
    "job-orchestrator: env SERVICE_X_{UPLOAD,DOWNLOAD,TERMINATE}_URL, RUNS_PER_USER, MAX_RUNS",
)
async def reference_environment(w: World) -> None:
    folder, agent, port = w.folder / "orchestrator", w.agents[1].url, free_port()
    folder.mkdir()
    words = {"PORT": port, "DB_PATH": folder / "db.sqlite", "DATA_PATH": folder / "data"}
    words |= {"MAX_AGE": 3600, "SERVICE_PLAIN_RUNS_PER_USER": 1, "SERVICE_PLAIN_MAX_RUNS": 2}
    routes = {"UPLOAD": "submit", "DOWNLOAD": "retrieve", "TERMINATE": "kill"}
    words |= {f"SERVICE_PLAIN_{name}_URL": f"{agent}/{path}" for name, path in routes.items()}
    env = environment() | {name: str(value) for name, value in words.items()}
    program = (sys.executable, "-P", "-m", "server")
    process = await asyncio.create_subprocess_exec(*program, env=env, cwd=folder)
    w = copy.copy(w)
    w.url = f"http://127.0.0.1:{port}"
    try:
        await until(lambda: listens(port))
        has(await w.get("/health"), status="ok")
        job = has(await w.run("echo hi > hi.txt"), status="Completed", expires_after_s=3600.0)
        assert (await w.result(f"/download/{job['id']}"))["hi.txt"] == "hi\n"
        has(await w.run("exit 3"), status="Failed")
        has(await w.get("/api/v1/services/plain"), runs_per_user=1, max_runs=2)
        job_id = await w.started()
        assert (await w.ask("POST", f"/terminate/{job_id}"))[0] == 200
        assert (folder / "db.sqlite").exists()
        assert (folder / "data").is_dir()
    finally:
        process.terminate()
        assert await process.wait() == 0


@item("job-orchestrator: / and /health")
async def reference_health(w: World) -> None:
    for url in (w.url, w.agents[0].url):
        assert await w.get(f"{url}/") == {"message": "pong"}
    has(await w.get("/health"), status="ok", database="ok")


# -- Jobbers


@item("Jobbers: scheduled")
async def scheduled(w: World) -> None:
    job_id = await w.submit(not_before="in 1h")
    job = has(await w.job(job_id), status="Queued")
    has(job["queue"], code="not_before")
    created, due = times(job, "created_at", "not_before")
    assert due - created == timedelta(hours=1)
    await w.cancel(job_id)
    created, started = times(await w.run(not_before="in 500ms"), "created_at", "started_at")
    assert started - created >= timedelta(seconds=0.5)


@item("Jobbers: stalled · heartbeat(), max_heartbeat_interval · heartbeat_at at start")
async def heartbeats(w: World) -> None:
    script = "for n in 1 2 3 4; do sleep 0.3; echo ::heartbeat::; done; sleep 60"
    job_id = await w.started(script, "strict", user="stalled")
    job = await w.job(job_id)
    assert job["heartbeat_at"] >= job["started_at"]
    job = has(await w.ended(job_id), status="Failed", reason="heartbeat_timeout")
    assert job["usage"]["wall_s"] >= 2.1
    assert await w.listed("user=stalled&reason=heartbeat_timeout") == [job_id]


@item("Jobbers: dropped: name unknown on this worker")
async def not_offered(w: World) -> None:
    assert (await w.upload(service="none-such"))[0] == 400
    job = await w.warned("no agent offers the service nobody", service="nobody")
    has(job["queue"], code="no_agent")
    assert "nobody" in str((await w.get("/api/v1/status"))["troubles"])
    has(await w.get("/api/v1/services/nobody"), offered=False)
    await w.cancel(job["id"])


@item(
    "Jobbers: no retry_delay: at once · constant, linear, exponential",
    "Jobbers: exponential_jitter uniform(0, d·2^n)",
    "Ocypod: retry_delays, the last repeats · retry_delays empty: none",
)
async def delays(w: World) -> None:
    delay = {"retries": 3, "retry_delay": "100ms"}
    cases: list[tuple[Doc, list[float]]] = [
        ({"retries": 2, "retry_delays": "0s"}, [0, 0]),
        ({"retries": 2}, [0, 0]),  # the service's
        ({"service": "undelayed", "retries": 2}, [0, 0]),
        ({"retries": 2, "backoff": "constant", "retry_delay": "0s"}, [0, 0]),
        ({"backoff": "constant", **delay}, [0.1, 0.1, 0.1]),
        ({"backoff": "linear", **delay}, [0.1, 0.2, 0.3]),
        ({"backoff": "exponential", **delay}, [0.1, 0.2, 0.4]),
        ({"retries": 4, "retry_delays": "10ms,20ms,40ms"}, [0.01, 0.02, 0.04, 0.04]),
    ]
    for fields, seconds in cases:
        assert await w.delays(**fields) == pytest.approx(seconds), fields
    found = await w.delays(backoff="exponential_jitter", **delay)
    assert len(set(found)) == 3
    assert all(0 <= one <= 0.1 * 2**n for n, one in enumerate(found))
    omitted = await w.waits("exit 1", retries=1)
    [event] = await w.named(omitted, "job.retry")
    assert event["fields"]["delay_s"] == 10  # docs/lifecycle.md: what differs
    await w.cancel(omitted)


@item("Jobbers: timeout is always like an expected exception")
async def timeouts_are_retried(w: World) -> None:
    has(await w.run("sleep 9", "quick", retries=1, timeout="200ms"), attempt=2)
    rule: Doc = {"service": "quick", "retries": 1, "retry_on": "exit:7"}
    await w.warned("leaves out", "timeout", **rule)
    assert "exit:7" in has(await w.run("exit 8", **rule), attempt=1)["message"]


@item("Jobbers: DLQ save, inspect · DLQ bulk resubmit by ids, by filter; default none")
async def dead_letters(w: World) -> None:
    jobs = [await w.run(SECOND, "letters", user="dead", tags=tag) for tag in ("a", "b")]
    assert all(one["dead_letter"] for one in jobs)
    has(await w.run("exit 1"), dead_letter=False)
    query = "user=dead&dead_letter=true&reason=exit_code&tag=b"
    assert await w.listed(query) == [jobs[1]["id"]]
    for chosen in ({"ids": [jobs[0]["id"]]}, {"filter": {"user": "dead", "dead_letter": True}}):
        body = {"action": "retry", **chosen}
        status, answer = await w.ask("POST", "/api/v1/jobs/bulk", json=body)
        assert (status, [one["ok"] for one in answer["items"]]) == (200, [True])
    for job in jobs:
        has(await w.ended(job["id"], run=2), status="Completed")


@item(
    "Jobbers: on_shutdown=stop · resubmit, no retry counted · continue: worker waits", world="frail"
)
async def shutdown(w: World) -> None:
    await w.server_came_back.wait()
    again = "test $FERRYMAN_ATTEMPT = 2 || sleep 60"
    stops = await w.submit("sleep 60", "stops")
    resubmits = await w.submit(again, "resubmits")
    continues = await w.submit("sleep 4; echo ok > ok.txt", "continues")
    for job_id in (stops, resubmits, continues):
        await w.state(job_id, "Running")
    assert await asyncio.to_thread(w.agents[3].kill, signal.SIGTERM) == 0
    await asyncio.to_thread(w.agents[3].start)
    has(await w.ended(stops), status="Failed", reason="shutdown")
    has(await w.ended(resubmits), status="Completed", retries_left=0)
    assert len(await w.named(resubmits, "job.resubmitted")) == 1
    has(await w.ended(continues), status="Completed", attempt=1)


@item("Jobbers: max_concurrent per worker and task type")
async def per_host(w: World) -> None:
    jobs = [await w.submit("sleep 1", "gpu") for _ in range(4)]
    by_agent: dict[str, list[list[datetime]]] = {}
    for job in [await w.ended(one) for one in jobs]:
        by_agent.setdefault(job["agent"], []).append(times(job, "started_at", "ended_at"))
    assert set(by_agent) == {"one", "two"}
    assert all(one_after_the_other(spans) for spans in by_agent.values())
    shown = {one["name"]: one["max_runs"] for one in (await w.get("/api/v1/agents"))["items"]}
    assert shown["one"] == {"gpu": 1}


# -- Ocypod


@item("Ocypod: input")
async def inputs(w: World) -> None:
    script = 'cat "$FERRYMAN_META"; cat in.txt'
    fields: Doc = {"meta": '{"page": 3}', "files": {"in.txt": "given"}}
    job = has(await w.run(script, **fields), meta={"page": 3})
    _, log = await w.raw("GET", f"/api/v1/jobs/{job['id']}/logs")
    assert log == b'{"page":3}given'
    waits = await w.submit(script, not_before="in 1h", **fields)
    bundle = await w.result(f"/api/v1/jobs/{waits}/bundle")
    assert bundle == {"run.sh": script, "in.txt": "given"}
    await w.cancel(waits)


@item("Ocypod: output, any time while running · output: JSON, stays over a retry")
async def outputs(w: World) -> None:
    script = (
        "echo '::output name=s::a'; echo '::output name=s::b'; "
        "echo '::output name=t,type=json::{\"rows\": [1, 2]}'; "
    )
    job_id = await w.submit(script + "sleep 60")
    expected = {"s": "b", "t": {"rows": [1, 2]}}
    has(await w.until(job_id, lambda one: one["output"] == expected), status="Running")
    await w.cancel(job_id)
    again = f'if [ "$FERRYMAN_ATTEMPT" = 1 ]; then {script} exit 1; fi'
    job = await w.run(again, "quick", retries=1)
    assert [one["output"] for one in job["attempts"]] == [expected, {}]


@item("Ocypod: FIFO, of one user")
async def fifo(w: World) -> None:
    jobs = [await w.submit(service="pair", user="fifo") for _ in range(4)]
    starts = [times(await w.ended(one), "started_at")[0] for one in jobs]
    assert starts == sorted(starts)


@item(
    "Ocypod: heartbeat_timeout, expires_after shown",
    "Ocypod: settings per queue, overridable per job: less",
    'Ocypod: durations "30s", "1h15m5s", "3w2d" · timeout: "0s" disables',
    'Ocypod: heartbeat_timeout, expires_after "0s"; retries 0',
)
async def limits(w: World) -> None:
    names = ("timeout_s", "queue_timeout_s", "heartbeat_timeout_s", "expires_after_s")
    none: Doc = {"timeout": "0s", "heartbeat_timeout": "0s", "retries": 0}
    long: Doc = {"queue_timeout": "3w2d", "heartbeat_timeout": "1h15m5s"}
    cases: list[tuple[Doc, list[float | None]]] = [
        ({"service": "strict"}, [30.0, 3600.0, 1.0, 86_400.0]),
        ({}, [3600.0, None, None, 172_800.0]),
        ({"timeout": "30s"}, [30, None, None, 172_800.0]),
        ({"timeout": "15m5s"}, [905, None, None, 172_800.0]),
        ({"timeout": "0.5h"}, [1800, None, None, 172_800.0]),
        (long, [3600.0, 23 * 86_400, 4505, 172_800.0]),
        ({"service": "endless"}, [None, None, None, 172_800.0]),
        ({"service": "endless", **none}, [None, None, None, 172_800.0]),
    ]
    for fields, seconds in cases:
        job = has(await w.run(**fields), status="Completed")
        assert [job[name] for name in names] == seconds, fields
    given = {"service": "strict", "timeout": "5s", "queue_timeout": "9h"}
    job = await w.warned("queue_timeout", **given)
    has(await w.ended(job["id"]), timeout_s=5.0, queue_timeout_s=3600.0)
    job = await w.warned("timeout", "expires_after", timeout="0s", expires_after="0s")
    await w.ended(job["id"])  # the service has both
    assert (await w.ask("DELETE", f"/api/v1/jobs/{job['id']}"))[0] == 204


@item("Ocypod: queues made, changed, listed, counted, deleted; health")
async def services(w: World) -> None:
    path = "/api/v1/services/made"
    assert (await w.ask("PUT", path, json={"timeout": "1m"}))[0] == 201
    status, found = await w.ask("PUT", path, json={"timeout": "2m", "max_runs": 3})
    assert status == 200
    has(found, timeout_s=120.0, max_runs=3)
    job_id = await w.submit(service="made")
    listed = (await w.get("/api/v1/services"))["items"]
    [made] = [one for one in listed if one["name"] == "made"]
    assert made["counts"]["Queued"] == 1
    await w.cancel(job_id)
    assert (await w.ask("DELETE", path))[0] == 200
    assert (await w.upload(service="made"))[0] == 400


def test_every_item_works(tmp_path: Path) -> None:
    names = [name for name in tomllib.loads(SERVICES)["services"] if name != "nobody"]
    stopped = ["stops", "resubmits", "continues"]
    main = World(tmp_path / "main", MAIN, [names, names])
    frail = World(tmp_path / "frail", FRAIL, [["killed"], ["frozen"], ["lost"], stopped])
    tries = {one.try_it: one.world for one in ITEMS}

    async def all_items() -> list[BaseException | None]:
        at_once = asyncio.Semaphore(12)

        async def one(try_it: Try, where: str) -> None:
            # What waits for a stopped agent holds nobody up.
            async with at_once if where == "main" else asyncio.Semaphore(1):
                async with asyncio.timeout(PATIENCE_S):
                    await try_it(main if where == "main" else frail)

        async with main.calling(), frail.calling():
            coroutines = (one(try_it, where) for try_it, where in tries.items())
            return await asyncio.gather(*coroutines, return_exceptions=True)

    with main.running(), frail.running():
        outcomes = dict(zip(tries, asyncio.run(all_items()), strict=True))
    problems = []
    for one in ITEMS:
        if problem := outcomes[one.try_it]:
            problem.add_note(f"which is {one}")
            problems.append(problem)
    if problems:
        raise BaseExceptionGroup(f"{len(problems)} of {len(ITEMS)} items", problems)
