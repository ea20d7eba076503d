"""Every command of ``docs/backup.md``, with jobs on a real agent meanwhile."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from server.store.migrations import MIGRATIONS
from shared.sqlite.copies import copy_database
from tests.docs.conftest import blocks
from tests.kit.dev_program import environment
from tests.kit.program_pair import Pair
from tests.kit.programs import until

SETTINGS = """
[services.example]
runs_per_user = 2
max_runs = 4
limits = { disk = "32MiB", memory = "64MiB" }
"""
SECONDS = f"87654{os.getpid()}"
FOREVER = f"if [ $FERRYMAN_ATTEMPT = 1 ]; then sleep {SECONDS}; fi; echo $1again > out.txt"


class Operator:
    """Runs the blocks of the page in a folder of its own."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self.folder = folder / "operator"
        self.folder.mkdir()
        (folder / "bin").mkdir()
        command = folder / "bin" / "ferryman"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m ferryman "$@"\n')
        command.chmod(0o755)
        self.path = f"{command.parent}:{os.environ['PATH']}"
        self.use(pair.server.data)
        rehearsal = self.folder / "rehearsal.toml"
        rehearsal.write_text(f'[server]\ndata_dir = "{folder / "rehearsal"}"\n')
        self.blocks = {
            block.kind.split()[2]: block.text
            for block in blocks("docs/backup.md")
            if block.kind.startswith("sh test ")
        }
        self.ran: set[str] = set()

    def use(self, data: Path) -> None:
        self.data = data
        (self.folder / "server.toml").write_text(f'[server]\ndata_dir = "{data}"\n')

    def run(self, name: str) -> str:
        self.ran.add(name)
        text = self.blocks[name].replace("/var/lib/ferryman", str(self.data))
        text = text.replace("schema-1", f"schema-{len(MIGRATIONS)}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env={**environment(), "PATH": self.path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout


def sleepers() -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == f"sleep\0{SECONDS}\0".encode()
        except OSError:
            continue
    return found


def completions(pair: Pair, job: int) -> list[str]:
    items = json.loads(pair.get(f"/api/v1/jobs/{job}/events"))["items"]
    states = [one["status"] for one in items]
    return [state for state in states if state == "Completed"]


@pytest.mark.slow  # the quick ones: tests/server/test_backup.py, test_backup_process.py
def test_the_page_is_true_with_jobs_in_flight(tmp_path: Path) -> None:
    pair = Pair(tmp_path, SETTINGS)
    operator = Operator(tmp_path, pair)
    database = pair.server.data / "ferryman.sqlite"
    with pair.running():
        kept = pair.submit("echo kept > out.txt", "alice")
        pair.until(kept, "Completed")
        running = pair.submit(FOREVER, "alice")
        pair.until(running, "Running")
        operator.run("backup")
        operator.run("rehearse")
        assert sleepers() == 1, "a rehearsal ends nothing"
        assert "all is well" in operator.run("verify")

        # An upgrade makes a copy at its start; after it, jobs come and end.
        pair.server.kill(signal.SIGKILL)
        with closing(sqlite3.connect(database)) as live:
            copy_database(live, database.with_name(f"{database.name}.schema-{len(MIGRATIONS)}"))
        pair.server.start()
        since = pair.submit("sleep 1; echo since > out.txt", "alice")
        pair.until(since, "Running")
        pair.server.kill(signal.SIGKILL)

        operator.run("rollback")
        pair.server.start()
        bobs = pair.submit("echo bob > out.txt", "bob")
        assert bobs > 1_000_000
        pair.until(bobs, "Completed")
        assert pair.result(bobs).read("out.txt") == b"bob\n"
        pair.until(running, "Completed")
        until(lambda: sleepers() == 0, "the attempt of the former server is alive")
        assert pair.result(running).read("out.txt") == b"again\n"
        assert completions(pair, running) == ["Completed"]
        assert pair.result(kept).read("out.txt") == b"kept\n"
        assert sorted(one["id"] for one in json.loads(pair.get("/api/v1/jobs"))["items"]) == sorted(
            [kept, running, bobs]
        )
        assert pair.server.kill(signal.SIGTERM) == 0
        assert "all is well" in operator.run("verify")

        # The folder is lost.
        pair.server.data = tmp_path / "restored"
        operator.use(pair.server.data)
        operator.run("restore")
        pair.server.start()
        assert pair.result(kept).read("out.txt") == b"kept\n"
        pair.until(running, "Completed")
        assert "all is well" in operator.run("verify")
    assert operator.ran == set(operator.blocks)
