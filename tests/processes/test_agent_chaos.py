"""kill -9 of the agent while it works: nothing is lost, nothing is stored twice or in part, nothing
is left behind."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.agent_process import agent

KILLS, JOBS = 5, 12
SCRIPT = {"run.sh": b"cat in.txt > out.txt; sleep 0.1; echo done >> out.txt\n", "in.txt": b"in\n"}


def numbers(seed: int) -> Iterator[int]:
    """The same for the same seed."""
    return (hashlib.sha256(f"{seed}.{step}".encode()).digest()[0] for step in itertools.count())


def job_processes(data: Path) -> list[str]:
    """Command lines, anywhere on this host, that show the agent's folder or run its jobs."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(data) in words:
            lines.append(words)
    return lines


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_again_and_again_every_payload_ends_once(tmp_path, seed):
    chance = numbers(seed)
    ids: dict[str, int] = {}
    job = 0
    for _ in range(KILLS):
        with agent(tmp_path) as running:
            for _ in range(1 + next(chance) % (JOBS // KILLS)):
                job += 1
                ids[f"{job}.1"] = running.submit(f"{job}.1", SCRIPT)["id"]
            log = running.process.stderr
            assert log is not None
            for _ in range(
                next(chance) % 5
            ):  # it is killed after so many events: accepted, started, ended
                if not log.readline():
                    break
            running.kill()
    with agent(tmp_path) as running:
        outcomes = set()
        for key, payload_id in ids.items():
            again = running.submit(key, SCRIPT)
            assert again["id"] == payload_id
            ended = running.ended(payload_id)
            assert ended["status"] in ("Completed", "Failed")
            assert ended["interrupted"] == (ended["status"] == "Failed")
            outcomes.add(ended["status"])
            if ended["status"] == "Completed":
                data = running.call("GET", f"/retrieve/{payload_id}")[1]
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    assert archive.read("out.txt") == b"in\ndone\n"
                    receipt = json.loads(archive.read("ferryman.json"))
                assert f"{receipt['job']}.{receipt['attempt']}" == key
            assert running.call("DELETE", f"/payloads/{payload_id}")[0] == 204
        assert "Completed" in outcomes
        assert running.terminate() == 0
    with agent(tmp_path) as running:  # a bundle that others may use is kept until the next start
        assert running.terminate() == 0
    data_dir = tmp_path / "agent"
    assert job_processes(data_dir) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    for folder in ("bundles", "results", "staging", "logs", "work"):
        assert not [path for path in (data_dir / folder).rglob("*") if path.is_file()], folder
