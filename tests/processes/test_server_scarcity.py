"""A server with a real agent, short of disk or of descriptors: its work waits, none is lost."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.kit.disks import fill, mounted
from tests.kit.programs import PATIENCE_S, Pair, until
from tests.processes.sleeping import Sleep

SETTINGS = """
[server]
min_free = "1MiB"
[services.example]
retries = 1
retry_on = ["exit:3"]
retry_delays = ["3s"]
limits = { disk = "32MiB", memory = "64MiB" }
"""
RESULT = 4_000_000


def test_a_result_that_finds_the_disk_full_arrives_when_there_is_room(tmp_path: Path) -> None:
    """Even the note that it waits finds no room."""
    pair, sleep = Pair(tmp_path, SETTINGS), Sleep()
    small = ("-t", "tmpfs", "-o", "size=24m", "tmpfs")
    with mounted(pair.server.data, *small), pair.running():
        earlier = pair.submit("echo kept > kept.txt")
        pair.until(earlier, "Completed")
        job = pair.submit(f"{sleep} || true; head -c {RESULT} /dev/urandom > big")
        pair.until(job, "Running")
        filler = fill(pair.server.data)
        sleep.end()

        def tried() -> bool:
            return "payload.not_fetched" in pair.server.log

        until(tried, "it does not try", lambda: pair.server.log[-3_000:])
        assert pair.status(job) in ("Running", "Unknown")
        assert pair.result(earlier).read("kept.txt") == b"kept\n"
        staging = pair.server.data / "staging"  # it goes on trying
        until(lambda: list(staging.iterdir()) == [], "what it cannot store is left")
        filler.unlink()
        pair.until(job, "Completed")
        assert len(pair.result(job).read("big")) == RESULT


TOO_FULL = """
[server]
min_free = "4MiB"
[services.example]
limits = { disk = "64MiB", memory = "64MiB" }
"""
LARGE = 8 << 20


def test_while_results_find_no_room_it_says_so_everywhere_and_takes_no_new_work(
    tmp_path: Path,
) -> None:
    """A disk that is not full, and too full for what comes. No job is lost."""
    pair, sleep = Pair(tmp_path, TOO_FULL), Sleep()
    with mounted(pair.server.data, "-t", "tmpfs", "-o", "size=64m", "tmpfs"), pair.running():
        filler = pair.server.data / "filler"
        filler.write_bytes(bytes(disk_free(pair.server.data) - (10 << 20)))
        large = [pair.submit(f"{sleep} || true; head -c {LARGE} /dev/urandom > big")]
        in_the_way = pair.submit("sleep 600", user="8")
        queued = pair.submit("echo small > small.txt", user="9")
        pair.until(large[0], "Running")
        sleep.end()

        def all_wait() -> bool:
            return all(pair.status(job) == "Unknown" for job in large)

        until(all_wait, "the results do not wait", lambda: pair.server.log[-3_000:])
        for job in large:
            message = json.loads(pair.get(f"/api/v1/jobs/{job}"))["message"]
            numbers = r"on the server's disk: 8\.\d MiB needed, \d\.\d MiB may be used"
            assert re.search(numbers, message), message
        cancel = Request(f"{pair.server.url}/api/v1/jobs/{in_the_way}/cancel", method="POST")
        with urlopen(cancel, timeout=PATIENCE_S) as answer:
            assert answer.status == 200  # a slot is free now, and nothing is sent
        pair.until(in_the_way, "Cancelled")

        def alone() -> bool:
            return '_waiting{reason="disk"} 1.0' in pair.get("/metrics").decode()

        until(alone, "what was cancelled left is not stored, small as it is")
        status = json.loads(pair.get("/api/v1/status"))
        assert (status["status"], status["queued"]) == ("error", 1)
        (trouble,) = [one for one in status["troubles"] if one["kind"] == "results_waiting"]
        assert "1 result waits for room on the server's disk" in trouble["message"]
        with pytest.raises(HTTPError) as unhealthy:
            pair.get("/health")
        assert unhealthy.value.code == 503
        assert "1 result waits" in json.load(unhealthy.value)["message"]
        metrics = pair.get("/metrics").decode()
        assert 'ferryman_results_waiting{reason="disk"} 1.0' in metrics
        doctor = subprocess.run(
            [sys.executable, "-P", "-m", "ferryman", "doctor", "--url", pair.server.url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert doctor.returncode == 75, doctor
        assert "1 result waits for room" in doctor.stdout, doctor
        waits = json.loads(pair.get(f"/api/v1/jobs/{queued}"))
        assert waits["status"] == "Queued"
        assert waits["queue"]["code"] == "disk_full"
        assert "1 result waits for room" in waits["queue"]["reason"]
        with pytest.raises(AssertionError, match=r"507.*result waits for room"):
            pair.submit("echo refused")
        filler.unlink()
        for job in large:
            pair.until(job, "Completed")
            assert len(pair.result(job).read("big")) == LARGE
        pair.until(queued, "Completed")
        until(
            lambda: b'_waiting{reason="disk"} 0.0' in pair.get("/metrics"), "a stored result waits"
        )
        assert json.loads(pair.get("/health"))["status"] == "ok"
        for job in (*large, queued):
            assert json.loads(pair.get(f"/api/v1/jobs/{job}"))["attempt"] == 1


def test_a_job_whose_result_never_fits_can_be_cancelled_and_deleted_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    """The disk stays as full as it is."""
    pair = Pair(tmp_path, TOO_FULL)
    with mounted(pair.server.data, "-t", "tmpfs", "-o", "size=24m", "tmpfs"), pair.running():
        never = pair.submit("head -c 21000000 /dev/urandom > big")
        pair.until(never, "Failed")
        ended = json.loads(pair.get(f"/api/v1/jobs/{never}"))
        assert (ended["reason"], ended["attempt"]) == ("results_limit", 1), ended
        assert "can never hold more than 20.0 MiB" in ended["message"]
        filler = pair.server.data / "filler"
        filler.write_bytes(bytes(disk_free(pair.server.data) - (9 << 20)))
        for method, path in (("POST", "/cancel"), ("DELETE", "")):
            job = pair.submit(f"head -c {LARGE} /dev/urandom > big")
            pair.until(job, "Unknown")
            url = f"{pair.server.url}/api/v1/jobs/{job}{path}"
            with urlopen(Request(url, method=method), timeout=PATIENCE_S) as answer:
                assert answer.status in (200, 204), answer.status
            assert json.loads(pair.get("/health"))["status"] == "ok"
            pair.until(pair.submit("echo small"), "Completed")
        assert filler.exists()


def disk_free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def test_a_job_that_cannot_be_sent_for_want_of_descriptors_is_sent_later(tmp_path: Path) -> None:
    with Pair(tmp_path, SETTINGS).running() as pair:
        assert pair.server.process is not None
        pid = pair.server.process.pid
        # Its bundle is too large to be in memory.
        job = pair.submit(f"exit 3 # {'x' * 70_000}")

        def queued_again() -> bool:
            now = json.loads(pair.get(f"/api/v1/jobs/{job}"))
            return (now["status"], now["attempt"]) == ("Queued", 1)

        # The result of the first attempt is fetched, so to send the second is all that is left.
        until(queued_again, "it is not queued again", lambda: pair.server.log[-3_000:])
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))

        def tried() -> bool:
            return "job.not_sent" in pair.server.log

        until(tried, "it is not sent again", lambda: pair.server.log[-3_000:])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        pair.until(job, "Failed")
        ended = json.loads(pair.get(f"/api/v1/jobs/{job}"))
        assert (ended["reason"], ended["attempt"]) == (
            "exit_code",
            2 + pair.server.log.count("not_sent"),
        ), ended
