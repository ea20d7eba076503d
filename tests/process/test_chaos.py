"""kill -9 of server and agent at random moments, while somebody keeps uploading.

Every upload that was answered ends exactly once, whole, after a history that is a path of the
table; nothing is left behind.
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
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import pytest

from server.domain import states
from shared.wire import JobState
from tests.kit.calling import call
from tests.kit.programs import Program, left_behind, until

SETTINGS = """
[services.example]
runs_per_user = 6
max_runs = 6
infra_retries = {retries}
limits = {{ disk = "32MiB", memory = "64MiB" }}
[server]
agent_timeout = "5s"
"""
KINDS = {
    "quick": "echo {token} > out.txt",
    "slow": "sleep 0.2; echo {token} > out.txt",
    "fails": "echo {token} > out.txt; echo sorry >&2; exit 3",
    "forks": "(sleep 30; echo late >> out.txt) & setsid sleep 30 & echo {token} > out.txt",
}


@dataclass
class Uploads:
    """A user who does not give up: the same key until there is an answer."""

    url: str
    random: Random
    answered: dict[int, tuple[str, str]] = field(default_factory=dict)
    """job -> (kind, token)"""
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stop.is_set():
            kind = self.random.choice(list(KINDS))
            token = f"{self.random.getrandbits(128):032x}"
            job_id = self._one(KINDS[kind].format(token=token), token)
            if job_id is not None:
                self.answered[job_id] = (kind, token)
            self.stop.wait(0.03)

    def _one(self, script: str, key: str) -> int | None:
        parts = {"user_id": f"u{key[0]}", "service": "example"}
        body = "".join(
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in parts.items()
        )
        body += '--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
        body += f"{script}\r\n--b--\r\n"
        headers = {"Content-Type": "multipart/form-data; boundary=b", "Idempotency-Key": key}
        while not self.stop.is_set():
            try:
                status, answer = call(self.url, "POST", "/upload", body.encode(), headers)
            except (OSError, http.client.HTTPException):
                self.stop.wait(0.05)
                continue
            assert status == 201, answer
            return int(json.loads(answer)["id"])
        return None


def chaos(folder: Path, seed: int, kills: int, retries: int, seconds: float) -> Uploads:
    """Run it all; the uploads that were answered."""
    random = Random(seed)
    print(f"seed {seed}")
    config = folder / "ferryman.toml"
    config.write_text(SETTINGS.format(retries=retries))
    mark = uuid.uuid4().hex
    agent = Program("client_agent", folder, mark)
    server = Program("server", folder, mark, "--config", str(config), "--agent-url", agent.url)
    agent.start()
    server.start()
    uploads = Uploads(server.url, Random(seed + 1))
    thread = threading.Thread(target=uploads.run)
    thread.start()
    try:
        never = threading.Event()
        for _ in range(kills):
            never.wait(random.uniform(0.05, seconds / kills))
            victims = random.choice([[server], [agent], [server, agent]])
            for program in victims:
                program.kill()
            for program in victims:
                program.begin()
            if random.random() < 0.7:  # else it is killed again while it starts
                for program in victims:
                    until(program._answers, f"{program.name} does not listen")
        # on a slow machine, few are answered between two kills
        until(lambda: len(uploads.answered) > kills, "too few uploads are answered")
    finally:
        uploads.stop.set()
        thread.join(60)
    for program in (agent, server):
        until(program._answers, f"{program.name} does not listen")
    try:
        verify(server, uploads, retries)
        assert server.kill(signal.SIGTERM) == 0, server.log[-3_000:]
        assert agent.kill(signal.SIGTERM) == 0, agent.log[-3_000:]
        assert left_behind(agent) == []
        verify_files(server)
        verify_once(server, uploads)
    finally:
        for program in (server, agent):
            if program.process is not None and program.process.poll() is None:
                program.kill()
    return uploads


def verify(server: Program, uploads: Uploads, retries: int) -> None:
    for job_id, (kind, token) in sorted(uploads.answered.items()):

        def ended(job_id: int = job_id) -> bool:
            status, body = call(server.url, "GET", f"/api/v1/jobs/{job_id}?wait=20")
            assert status == 200, body
            return bool(json.loads(body)["ended"])

        until(ended, f"job {job_id} does not end", lambda: server.log[-2_000:])
        job = json.loads(call(server.url, "GET", f"/api/v1/jobs/{job_id}")[1])
        history = json.loads(call(server.url, "GET", f"/api/v1/jobs/{job_id}/events")[1])["items"]
        before: JobState | None = None
        for event in history:
            now = JobState(event["status"])
            assert event["before"] == before, history
            assert before is None or now in states.NEXT[before], history
            before = now
        assert before == job["status"]
        assert [JobState(event["status"]) in states.ENDED for event in history].count(True) == 1
        if retries:
            expected = ("Failed", "exit_code") if kind == "fails" else ("Completed", None)
            assert (job["status"], job["reason"]) == expected, (job, history)
        elif job["status"] == "Failed" and kind != "fails":
            assert job["reason"] in ("agent_error", "agent_lost"), job
            continue
        status, body = call(server.url, "GET", f"/download_partial/{job_id}")
        assert status == 200, body
        result = zipfile.ZipFile(io.BytesIO(body))
        assert result.testzip() is None
        if job["reason"] in (None, "exit_code"):
            assert result.read("out.txt").decode() == f"{token}\n"
            receipt = json.loads(result.read("ferryman.json"))
            assert (receipt["job"], receipt["attempt"]) == (job_id, job["attempt"])


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


def verify_once(server: Program, uploads: Uploads) -> None:
    """One key, one job, however often it was sent; the last may have had no answer. Each key had
    a bundle of its own.
    """
    with closing(sqlite3.connect(server.data / "ferryman.sqlite")) as database:
        bundles = dict(database.execute("SELECT id, bundle_digest FROM jobs"))
    assert len(set(bundles.values())) == len(bundles), "an upload became two jobs"
    assert uploads.answered.keys() <= bundles.keys()
    assert len(bundles) - len(uploads.answered) <= 1


@pytest.mark.parametrize(
    ("seed", "kills"), [(7, 4), pytest.param(8, 12, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_kill_9_at_random_moments_loses_nothing_and_leaves_nothing(
    tmp_path: Path, seed: int, kills: int
) -> None:
    uploads = chaos(tmp_path, seed=seed, kills=kills, retries=100, seconds=kills)
    assert len(uploads.answered) > kills


@pytest.mark.slow  # the quick one: tests/contract/test_reference_client.py, infra_retries = 0
def test_with_no_infra_retries_an_interrupted_job_fails_with_a_reason(tmp_path: Path) -> None:
    chaos(tmp_path, seed=11, kills=5, retries=0, seconds=4.0)
