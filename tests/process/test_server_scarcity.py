"""A server with a real agent, short of disk or of descriptors: its work waits, none is lost."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from tests.support.disks import fill, mounted
from tests.support.program_pair import Pair
from tests.support.programs import until

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


@pytest.mark.parametrize("tries", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_result_that_finds_the_disk_full_arrives_when_there_is_room(
    tmp_path: Path, tries: int
) -> None:
    """After three even the note that it cannot be fetched finds no room."""
    pair = Pair(tmp_path, SETTINGS)
    small = ("-t", "tmpfs", "-o", "size=24m", "tmpfs")
    with mounted(pair.server.data, *small), pair.running():
        earlier = pair.submit("echo kept > kept.txt")
        pair.until(earlier, "Completed")
        job = pair.submit(f"sleep 1; head -c {RESULT} /dev/urandom > big")
        pair.until(job, "Running")
        filler = fill(pair.server.data)

        def tried() -> bool:
            return pair.server.log.count("payload.not_fetched") >= tries

        until(tried, "it does not try", lambda: pair.server.log[-3_000:])
        assert pair.status(job) in ("Running", "Unknown")
        assert pair.result(earlier).read("kept.txt") == b"kept\n"
        staging = pair.server.data / "staging"  # it goes on trying
        until(lambda: list(staging.iterdir()) == [], "what it cannot store is left")
        filler.unlink()
        pair.until(job, "Completed")
        assert len(pair.result(job).read("big")) == RESULT


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
