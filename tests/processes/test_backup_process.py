"""Backup and restore as operators do them: with a server that runs, and jobs on a real agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from tests.kit.dev_program import environment
from tests.kit.program_pair import Pair
from tests.kit.programs import until

SETTINGS = """
[services.example]
runs_per_user = 2
max_runs = 4
limits = { disk = "32MiB", memory = "64MiB" }
"""
SECONDS = f"98765{os.getpid()}"
FOREVER = f"if [ $FERRYMAN_ATTEMPT = 1 ]; then sleep {SECONDS}; fi; echo second > out.txt"


def ferryman(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ferryman", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def held(pair: Pair) -> list[tuple[str, str]]:
    """Server and state of each payload that was not acknowledged."""
    with urlopen(f"{pair.agent.url}/payloads", timeout=60) as answer:
        return [(one["server"], one["status"]) for one in json.loads(answer.read())["payloads"]]


def sleepers() -> int:
    """Attempts that sleep for ever, whatever sandbox hides them from others."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == f"sleep\0{SECONDS}\0".encode()
        except OSError:
            continue
    return found


def test_a_restored_server_serves_no_result_of_what_came_after_the_backup(tmp_path: Path) -> None:
    pair = Pair(tmp_path, SETTINGS)
    with pair.running():
        config = str(tmp_path / "ferryman.toml")
        before = pair.submit("echo kept > out.txt", "alice")
        pair.until(before, "Completed")
        running = pair.submit(FOREVER, "alice")
        pair.until(running, "Running")
        reply = ferryman("backup", str(tmp_path / "copy"), "--data-dir", str(pair.server.data))
        assert "2 jobs, 2 bundles" in reply
        after = pair.submit("sleep 3; echo alice > out.txt", "alice")
        pair.until(after, "Running")
        pair.server.kill(signal.SIGKILL)
        until(lambda: "Completed" in [state for _, state in held(pair)], "it does not end")
        assert sleepers() == 1

        # The folder is lost; the restored server has another one, and the same address and agent.
        pair.server.data = tmp_path / "restored"
        ferryman(
            "restore",
            str(tmp_path / "copy"),
            "--data-dir",
            str(pair.server.data),
            "--config",
            config,
        )
        pair.server.start()
        bobs = [pair.submit("echo bob > out.txt", "bob") for _ in range(3)]
        assert min(bobs) > 1_000_000
        for job in bobs:
            pair.until(job, "Completed")
            assert pair.result(job).read("out.txt") == b"bob\n"
        pair.until(running, "Completed")
        assert pair.result(running).read("out.txt") == b"second\n"
        assert sleepers() == 0
        assert pair.result(before).read("out.txt") == b"kept\n"
        until(lambda: held(pair) == [], "the agent is left with something")
        listed = json.loads(pair.get("/api/v1/jobs"))["items"]
        assert sorted(job["id"] for job in listed) == sorted([before, running, *bobs])
        history = json.loads(pair.get(f"/api/v1/jobs/{running}/events"))["items"]
        assert [event["status"] for event in history].count("Completed") == 1
