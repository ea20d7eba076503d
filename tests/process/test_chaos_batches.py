"""kill -9 of server and agent at random moments, under retries, batches and dependencies.

Each uploaded thing ends as it has to; each parent's counters say what became of its children.
"""

from __future__ import annotations

import http.client
import io
import json
import signal
import sqlite3
import threading
import uuid
import zipfile
from contextlib import closing
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import Any

import pytest

from server.domain import states
from shared.wire import JobState
from tests.kit.calling import call
from tests.kit.programs import Program, left_behind, until
from tests.process.test_chaos import verify_files

SETTINGS = """
[services.example]
runs_per_user = 6
max_runs = 6
pack = 3
infra_retries = 999
retry_later_delay = "50ms"
dead_letter = true
limits = {{ disk = "32MiB", memory = "64MiB" }}
[server]
agent_timeout = "5s"
"""
KINDS = ("array", "again", "fan-out", "later", "chain", "fails")
GATHER = "cat children/*/out.txt | sort > out.txt\n"
SPLIT = """
for part in a b c; do
    mkdir -p children/$part
    echo "echo $part > out.txt" > children/$part/run.sh
done
"""
AGAIN = 'echo {token} > out.txt; [ "$FERRYMAN_ATTEMPT" -gt 2 ] || exit 3'
LATER = 'echo {token} > out.txt; [ "$FERRYMAN_ATTEMPT" -gt 1 ] || exit 75'
Files = dict[str, str]


def upload(url: str, stop: threading.Event, files: Files, **fields: str) -> int | None:
    """Under one key until there is an answer; None: stopped before."""
    form = {"user_id": "ann", "service": "example"} | fields
    body = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in form.items()
    )
    for name, text in files.items():
        body += f'--b\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'
        body += f"{text}\r\n"
    headers = {
        "Content-Type": "multipart/form-data; boundary=b",
        "Idempotency-Key": uuid.uuid4().hex,
    }
    while not stop.is_set():
        try:
            status, answer = call(url, "POST", "/upload", f"{body}--b--\r\n".encode(), headers)
        except (OSError, http.client.HTTPException):
            stop.wait(0.05)
            continue
        assert status == 201, answer
        return int(json.loads(answer)["id"])
    return None


class Work:
    """A user who uploads one of each, again and again."""

    def __init__(self, url: str) -> None:
        self.url, self.stop = url, threading.Event()
        self.uploaded: dict[int, tuple[str, str]] = {}
        """job -> (kind, token)"""

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            kind = KINDS[number % len(KINDS)]
            token = f"{number:04d}"
            job_id = self._one(kind, token)
            if job_id is not None:
                self.uploaded[job_id] = (kind, token)
            number += 1
            self.stop.wait(0.1)

    def _one(self, kind: str, token: str) -> int | None:
        def send(files: Files, **fields: str) -> int | None:
            return upload(self.url, self.stop, files, **fields)

        match kind:
            case "array":
                script = f"echo {token} $FERRYMAN_ARRAY_INDEX > out.txt"
                return send({"run.sh": script}, array="0-4", max_parallel="2")
            case "again":
                script = AGAIN.format(token=token)
                again = {"retries": "5", "retry_delays": "10ms", "retry_on": "exit:3"}
                return send({"run.sh": script}, **again)
            case "fan-out":
                return send({"run.sh": SPLIT, "gather.sh": GATHER})
            case "later":
                return send({"run.sh": LATER.format(token=token)})
            case "chain":
                first = send({"run.sh": f"echo {token} > out.txt"})
                if first is None:
                    return None
                script = f"cp inputs/{first}/out.txt out.txt"
                return send({"run.sh": script}, inputs_from=str(first))
        return send({"run.sh": f"echo {token} > out.txt; exit 4"})


def expected(kind: str, token: str) -> str | None:
    """What out.txt of its result has to hold; None: it is not looked at."""
    match kind:
        case "array":
            return None
        case "fan-out":
            return "a\nb\nc\n"
    return f"{token}\n"


def verify(server: Program, work: Work) -> None:
    assert len(work.uploaded) >= len(KINDS), "not one of each"
    for job_id, (kind, token) in sorted(work.uploaded.items()):

        def ended(job_id: int = job_id) -> bool:
            status, body = call(server.url, "GET", f"/api/v1/jobs/{job_id}?wait=20")
            assert status == 200, body
            return bool(json.loads(body)["ended"])

        until(ended, f"job {job_id} ({kind}) does not end", lambda: server.log[-2_000:])
        job = json.loads(call(server.url, "GET", f"/api/v1/jobs/{job_id}")[1])
        wanted = ("Failed", "exit_code") if kind == "fails" else ("Completed", None)
        assert (job["status"], job["reason"]) == wanted, (kind, job)
        assert job["dead_letter"] is (kind == "fails")
        text = expected(kind, token)
        if text is not None:
            status, body = call(server.url, "GET", f"/download_partial/{job_id}")
            assert status == 200, body
            assert zipfile.ZipFile(io.BytesIO(body)).read("out.txt").decode() == text
        if kind == "array":
            status, body = call(server.url, "GET", f"/api/v1/jobs/{job_id}/result?children=1")
            assert status == 200, body
            result = zipfile.ZipFile(io.BytesIO(body))
            found = {index: result.read(f"{index}/out.txt").decode() for index in range(5)}
            assert found == {index: f"{token} {index}\n" for index in range(5)}
    verify_histories(server)


def verify_histories(server: Program) -> None:
    """Each is a path through the table; counters are what counting says; nothing ends twice."""
    with closing(sqlite3.connect(server.data / "ferryman.sqlite")) as database:
        database.row_factory = sqlite3.Row
        rows = database.execute(
            "SELECT job_id, before, state FROM events WHERE event NOT LIKE 'job.progress' "
            "ORDER BY job_id, seq"
        ).fetchall()
        counters = [dict(row) for row in database.execute("SELECT * FROM batches")]
        children: dict[int, list[str]] = {}
        for row in database.execute("SELECT parent_id, state FROM jobs WHERE parent_id NOT NULL"):
            children.setdefault(row["parent_id"], []).append(row["state"])
    now: dict[int, JobState | None] = {}
    for row in rows:
        before, state = now.get(row["job_id"]), JobState(row["state"])
        if row["before"] is None and before is not None:
            assert state == before, dict(row)  # an event that is no move
            continue
        assert row["before"] == before, dict(row)
        assert before is None or state in states.NEXT[before], dict(row)
        now[row["job_id"]] = state
    for batch in counters:
        of_it: list[Any] = children.get(batch["parent_id"], [])
        assert batch["made"] == batch["total"] == len(of_it)
        for ended in ("Completed", "Failed", "Cancelled"):
            assert batch[ended.lower()] == of_it.count(ended), (batch, of_it)


@pytest.mark.parametrize(
    ("seed", "kills"), [(11, 4), pytest.param(12, 12, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_kill_9_under_retries_batches_and_dependencies_loses_nothing(
    tmp_path: Path, seed: int, kills: int
) -> None:
    random = Random(seed)
    config = tmp_path / "ferryman.toml"
    config.write_text(SETTINGS.format())
    mark = uuid.uuid4().hex
    agent = Program("client_agent", tmp_path, mark)
    server = Program("server", tmp_path, mark, "--config", str(config), "--agent-url", agent.url)
    agent.start()
    server.start()
    work = Work(server.url)
    thread = threading.Thread(target=work.run)
    thread.start()
    never = threading.Event()
    try:
        for _ in range(kills):
            never.wait(random.uniform(0.1, 0.8))
            victims = random.choice([[server], [agent], [server, agent]])
            for program in victims:
                program.kill()
            for program in victims:
                program.begin()
            if random.random() < 0.7:  # else it is killed again while it starts
                for program in victims:
                    until(program._answers, f"{program.name} does not listen")
        until(lambda: len(work.uploaded) >= len(KINDS), "there is not one of each")
    finally:
        work.stop.set()
        thread.join(60)
    try:
        for program in (agent, server):
            until(program._answers, f"{program.name} does not listen")
        verify(server, work)
        assert server.kill(signal.SIGTERM) == 0, server.log[-3_000:]
        assert agent.kill(signal.SIGTERM) == 0, agent.log[-3_000:]
        assert left_behind(agent) == []
        verify_files(server)
    finally:
        for program in (server, agent):
            if program.process is not None and program.process.poll() is None:
                program.kill()
