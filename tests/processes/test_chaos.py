"""kill -9 of server and agent at random moments, while somebody keeps uploading: single jobs, jobs
that are tried again, arrays, jobs that leave children, jobs that wait for others.

Every upload that was answered ends exactly once, as it has to, whole, after a history that is a
path of the table; parents' counters say what became of their children; nothing is left behind.
"""

from __future__ import annotations

import http.client
import io
import json
import signal
import sqlite3
import subprocess
import sys
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
from tests.kit.programs import Program, call, left_behind, until

SETTINGS = """
[services.example]
runs_per_user = 6
max_runs = 6
pack = 3
infra_retries = {retries}
retry_later_delay = "50ms"
dead_letter = true
limits = {{ disk = "32MiB", memory = "64MiB" }}
[server]
agent_timeout = "5s"
"""
SAY = "echo {token} > out.txt"
SPLIT = """
# {token}
for part in a b c; do
    mkdir -p children/$part
    echo "echo $part > out.txt" > children/$part/run.sh
done
"""
SCRIPTS = {
    "quick": SAY,
    "array": "echo {token} $FERRYMAN_ARRAY_INDEX > out.txt",
    "again": SAY + '; [ "$FERRYMAN_ATTEMPT" -gt 2 ] || exit 3',
    "forks": "(sleep 30; echo late >> out.txt) & setsid sleep 30 & " + SAY,
    "fan-out": SPLIT,
    "slow": "sleep 0.2; " + SAY,
    "later": SAY + '; [ "$FERRYMAN_ATTEMPT" -gt 1 ] || exit 75',
    "chain": SAY,
    "fails": SAY + "; echo sorry >&2; exit 4",
}
FIELDS = {
    "array": {"array": "0-4", "max_parallel": "2"},
    "again": {"retries": "5", "retry_delays": "10ms", "retry_on": "exit:3"},
}
GATHER = "cat children/*/out.txt | sort > out.txt\n"
Files = dict[str, str]


class Work:
    """A user who uploads one of each, again and again, and does not give up: the same key until
    there is an answer.
    """

    def __init__(self, url: str) -> None:
        self.url, self.stop = url, threading.Event()
        self.uploaded: dict[int, tuple[str, str]] = {}
        """job -> (kind, token)"""

    def run(self) -> None:
        while not self.stop.is_set():
            for kind, script in SCRIPTS.items():
                token = uuid.uuid4().hex
                files = {"run.sh": script.format(token=token)}
                if kind == "fan-out":
                    files["gather.sh"] = GATHER
                job_id = self._upload(kind, token, files, FIELDS.get(kind, {}))
                if kind == "chain" and job_id is not None:
                    follows = {"run.sh": f"cp inputs/{job_id}/out.txt out.txt"}
                    self._upload(kind, token, follows, {"inputs_from": str(job_id)})
                if self.stop.wait(0.05):
                    return

    def _upload(self, kind: str, token: str, files: Files, fields: Files) -> int | None:
        """None: stopped before there was an answer."""
        form = {"user_id": "ann", "service": "example"} | fields
        parts = [f'name="{name}"\r\n\r\n{value}' for name, value in form.items()]
        parts += [f'name="f"; filename="{name}"\r\n\r\n{text}' for name, text in files.items()]
        body = "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
        headers = {
            "Content-Type": "multipart/form-data; boundary=b",
            "Idempotency-Key": uuid.uuid4().hex,
        }
        while not self.stop.is_set():
            try:
                status, answer = call(
                    self.url, "POST", "/upload", f"{body}--b--\r\n".encode(), headers
                )
            except (OSError, http.client.HTTPException):
                self.stop.wait(0.05)
                continue
            assert status == 201, answer
            job_id = int(json.loads(answer)["id"])
            self.uploaded[job_id] = (kind, token)
            return job_id
        return None


def verify(server: Program, work: Work, retries: int) -> None:
    """Each has ended as it must."""
    for job_id, (kind, token) in sorted(work.uploaded.items()):

        def ended(job_id: int = job_id) -> bool:
            status, body = call(server.url, "GET", f"/api/v1/jobs/{job_id}?wait=20")
            assert status == 200, body
            return bool(json.loads(body)["ended"])

        until(ended, f"job {job_id} ({kind}) does not end", lambda: server.log[-2_000:])
        job = json.loads(call(server.url, "GET", f"/api/v1/jobs/{job_id}")[1])
        wanted = ("Failed", "exit_code") if kind == "fails" else ("Completed", None)
        if not retries and (job["status"], job["reason"]) != wanted:
            interrupted = ("agent_error", "agent_lost", "child_failed", "dependency_failed")
            assert (job["status"], job["reason"] in interrupted) == ("Failed", True), (kind, job)
            continue
        assert (job["status"], job["reason"]) == wanted, (kind, job)
        assert job["dead_letter"] is (kind == "fails")
        verify_result(server, job, kind, token)


def verify_result(server: Program, job: dict[str, Any], kind: str, token: str) -> None:
    array = kind == "array"
    path = f"/api/v1/jobs/{job['id']}/result?children=1" if array else ""
    status, body = call(server.url, "GET", path or f"/download_partial/{job['id']}")
    assert status == 200, body
    result = zipfile.ZipFile(io.BytesIO(body))
    assert result.testzip() is None
    if array:
        found = {index: result.read(f"{index}/out.txt").decode() for index in range(5)}
        assert found == {index: f"{token} {index}\n" for index in range(5)}
        return
    wanted = "a\nb\nc\n" if kind == "fan-out" else f"{token}\n"
    assert result.read("out.txt").decode() == wanted
    receipt = json.loads(result.read("ferryman.json"))
    assert (receipt["job"], receipt["attempt"]) == (job["id"], job["attempt"])


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


def verify_files(server: Program) -> None:
    """What lies there is what the rows say, once a repair has removed what kills left: the Cleaner
    does that only with files that are a day old.
    """
    repair = ["admin", "verify", "--repair", "--data-dir", str(server.data)]
    subprocess.run([sys.executable, "-P", "-m", "ferryman", *repair], check=True)
    server.start()

    def swept() -> bool:
        return extra() == set()

    def extra() -> set[str]:
        with closing(sqlite3.connect(server.data / "ferryman.sqlite")) as database:
            used = {
                name
                for row in database.execute(
                    "SELECT file FROM bundles UNION SELECT result_file FROM attempts"
                )
                for name in row
                if name
            }
        stored = {
            path.name
            for kind in ("bundles", "results", "staging")
            for path in (server.data / kind).rglob("*")
            if path.is_file()
        }
        assert used <= stored, "a row refers to a file that is not there"
        return stored - used

    until(swept, "files are left that no row refers to", lambda: str(extra()))
    assert server.kill(signal.SIGTERM) == 0


def verify_once(server: Program, work: Work) -> None:
    """One key, one job, however often it was sent; the last may have had no answer. Each key had
    a bundle of its own.
    """
    with closing(sqlite3.connect(server.data / "ferryman.sqlite")) as database:
        rows = "SELECT id, bundle_digest FROM jobs WHERE parent_id IS NULL"
        bundles = dict(database.execute(rows))
    assert len(set(bundles.values())) == len(bundles), "an upload became two jobs"
    assert work.uploaded.keys() <= bundles.keys()
    assert len(bundles) - len(work.uploaded) <= 1


@pytest.mark.parametrize(
    ("seed", "kills", "retries"),
    [
        pytest.param(11, 5, 999, id="few"),
        pytest.param(12, 16, 999, id="many", marks=pytest.mark.slow),
        # the quick one: what a bundle without another try ends as, in tests/server/test_ends.py
        pytest.param(13, 5, 0, id="none is tried again", marks=pytest.mark.slow),
    ],
)
def test_kill_9_at_random_moments_loses_nothing_and_leaves_nothing(
    tmp_path: Path, seed: int, kills: int, retries: int
) -> None:
    random, never = Random(seed), threading.Event()
    config = tmp_path / "ferryman.toml"
    config.write_text(SETTINGS.format(retries=retries))
    mark = uuid.uuid4().hex
    agent = Program("client_agent", tmp_path, mark)
    server = Program("server", tmp_path, mark, "--config", str(config), "--agent-url", agent.url)
    agent.start()
    server.start()
    work = Work(server.url)
    thread = threading.Thread(target=work.run)
    thread.start()
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
        until(lambda: len(work.uploaded) > len(SCRIPTS), "there is not one of each")
    finally:
        work.stop.set()
        thread.join(60)
    try:
        for program in (agent, server):
            until(program._answers, f"{program.name} does not listen")
        verify(server, work, retries)
        verify_histories(server)
        assert server.kill(signal.SIGTERM) == 0, server.log[-3_000:]
        assert agent.kill(signal.SIGTERM) == 0, agent.log[-3_000:]
        assert left_behind(agent) == []
        verify_files(server)
        verify_once(server, work)
    finally:
        for program in (server, agent):
            if program.process is not None and program.process.poll() is None:
                program.kill()
