"""kill -9 of server and agent at random moments, while somebody keeps uploading: single jobs, jobs
that are tried again, arrays, jobs that leave children, jobs that wait for others.

Every upload that was answered ends exactly once, as it has to, whole, after a history that is a
path of the table; parents' counters say what became of their children; nothing is left behind.
"""

import io
import itertools
import json
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
from tests.kit.programs import Pair, Program, call, form, left_behind, until
from tests.kit.raw_archives import FORM
from tests.soak import kinds
from tests.soak.model import ask

SETTINGS = """
[services.example]
runs_per_user = 6
max_runs = 6
pack = 3
infra_retries = 999
retry_later_delay = "50ms"
dead_letter = true
limits = { disk = "32MiB", memory = "64MiB" }
[server]
agent_timeout = "5s"
"""
KINDS = ("quick", "array", "again", "forks", "fan-out", "later", "fails")


class Work(threading.Thread):
    """A user who uploads one of each, again and again, and does not give up: the same key until
    there is an answer.
    """

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._url, self._random, self.stop = url, Random(seed), threading.Event()
        self.uploaded: dict[int, kinds.Bundle] = {}

    def run(self) -> None:
        for kind in itertools.cycle(KINDS):
            bundle = kinds.made(kind, self._random)
            job_id = self._upload(bundle)
            if kind == "quick":
                copy = {"run.sh": f"cp inputs/{job_id}/out.txt out.txt".encode()}
                fields = {"inputs_from": str(job_id)}
                self._upload(kinds.Bundle("follows", bundle.token, copy, fields))
            if self.stop.wait(0.05):
                return

    def _upload(self, bundle: kinds.Bundle) -> int:
        headers = {"Content-Type": FORM, "Idempotency-Key": uuid.uuid4().hex}
        body = form(bundle.files, **bundle.fields)
        status, answer = ask(self._url, "POST", "/upload", body, headers)
        assert status == 201, answer
        job_id = int(json.loads(answer)["id"])
        self.uploaded[job_id] = bundle
        return job_id


def verify(pair: Pair, work: Work) -> None:
    """Each has ended as it must."""
    for job_id, bundle in sorted(work.uploaded.items()):
        until(
            lambda job_id=job_id: pair.json(f"/jobs/{job_id}?wait=20")["ended"],
            f"job {job_id} ({bundle.kind}) does not end",
            lambda: pair.server.log[-2_000:],
        )
        job = pair.json(f"/jobs/{job_id}")
        found = job["status"], job["reason"]
        assert found == kinds.natural(bundle.kind), (bundle.kind, job)
        assert job["dead_letter"] is (bundle.kind == "fails")
        verify_result(pair, job, bundle)


def verify_result(pair: Pair, job: dict[str, Any], bundle: kinds.Bundle) -> None:
    array, number = bundle.kind == "array", job["id"]
    path = f"/api/v1/jobs/{number}/result?children=1" if array else f"/download_partial/{number}"
    status, body = call(pair.server.url, "GET", path)
    assert status == 200, body
    assert bundle.complaint(body) == ""
    if not array:
        receipt = json.loads(zipfile.ZipFile(io.BytesIO(body)).read("ferryman.json"))
        assert (receipt["job"], receipt["attempt"]) == (number, job["attempt"])


def rows(server: Program, sql: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(server.data / "ferryman.sqlite")) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(sql)]


def verify_histories(server: Program) -> None:
    """Each is a path through the table; counters are what counting says; nothing ends twice."""
    now: dict[int, JobState | None] = {}
    for row in rows(
        server,
        "SELECT job_id, before, state FROM events WHERE event NOT LIKE 'job.progress' "
        "ORDER BY job_id, seq",
    ):
        before, state = now.get(row["job_id"]), JobState(row["state"])
        if row["before"] is None and before is not None:
            assert state == before, row  # an event that is no move
            continue
        assert row["before"] == before, row
        assert before is None or state in states.NEXT[before], row
        now[row["job_id"]] = state
    children: dict[int, list[str]] = {}
    for row in rows(server, "SELECT parent_id, state FROM jobs WHERE parent_id NOT NULL"):
        children.setdefault(row["parent_id"], []).append(row["state"])
    for batch in rows(server, "SELECT * FROM batches"):
        of_it = children.get(batch["parent_id"], [])
        assert batch["made"] == batch["total"] == len(of_it)
        for ended in ("Completed", "Failed", "Cancelled"):
            assert batch[ended.lower()] == of_it.count(ended), (batch, of_it)


def verify_files(server: Program) -> None:
    """What lies there is what the rows say, once a repair has removed what kills left: the Cleaner
    does that only with files that are a day old.
    """
    named = "SELECT file FROM bundles UNION SELECT result_file FROM attempts"

    def contents() -> set[str]:
        return {row["name"] for row in rows(server, "SELECT name FROM contents")}

    assert contents() <= {row["file"] for row in rows(server, named)}, "what is small was left"
    repair = ["admin", "verify", "--repair", "--data-dir", str(server.data)]
    subprocess.run([sys.executable, "-P", "-m", "ferryman", *repair], check=True)

    def extra() -> set[str]:
        used = {row["file"] for row in rows(server, named) if row["file"]}
        stored = {
            path.name
            for kind in ("bundles", "results", "staging")
            for path in (server.data / kind).rglob("*")
            if path.is_file()
        }
        stored |= contents()
        assert used <= stored, "a row refers to a file that is not there"
        return stored - used

    with server.running():
        until(lambda: not extra(), "files are left that no row refers to", lambda: str(extra()))


@pytest.mark.parametrize(
    ("seed", "kills"),
    [pytest.param(11, 5, id="few"), pytest.param(12, 16, id="many", marks=pytest.mark.slow)],
)
def test_kill_9_at_random_moments_loses_nothing_and_leaves_nothing(
    tmp_path: Path, seed: int, kills: int
) -> None:
    random, never = Random(seed), threading.Event()
    pair = Pair(tmp_path, SETTINGS)
    work = Work(pair.server.url, seed)
    with pair.running():
        work.start()
        for _ in range(kills):
            never.wait(random.uniform(0.1, 0.8))
            victims = random.choice([[pair.server], [pair.agent], [pair.server, pair.agent]])
            for program in victims:
                program.kill()
            for program in victims:
                program.begin()
            if random.random() < 0.7:  # else it is killed again while it starts
                for program in victims:
                    until(program.answers, f"{program.name} does not listen")
        until(lambda: len(work.uploaded) > len(KINDS) + 1, "there is not one of each")
        work.stop.set()
        work.join(60)
        for program in (pair.agent, pair.server):
            until(program.answers, f"{program.name} does not listen")
        verify(pair, work)
        verify_histories(pair.server)
    assert left_behind(pair.agent) == []
    verify_files(pair.server)
    jobs = rows(pair.server, "SELECT id, bundle_digest FROM jobs WHERE parent_id IS NULL")
    # Each key had a bundle of its own, and was sent until there was an answer.
    assert len({job["bundle_digest"] for job in jobs}) == len(jobs), "an upload became two jobs"
    assert {job["id"] for job in jobs} == work.uploaded.keys()
