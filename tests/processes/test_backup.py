"""Backup and restore as operators do them: with a server that runs, and jobs on a real agent; and
every command of ``docs/backup.md``.
"""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from server.store.migrations import MIGRATIONS
from shared.sqlite.files import copy_database
from tests.docs.conftest import blocks, ran
from tests.kit.command_line import fresh
from tests.kit.dev_program import environment
from tests.kit.programs import Pair, until
from tests.processes.sleeping import Sleep

SETTINGS = """
[services.example]
runs_per_user = 2
max_runs = 4
limits = { disk = "32MiB", memory = "64MiB" }
"""
FOREVER = "if [ $FERRYMAN_ATTEMPT = 1 ]; then {}; fi; echo again > out.txt"


class Operator:
    """Runs the blocks of the page in a folder of its own."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder / "operator", data
        self.folder.mkdir()
        rehearsal = self.folder / "rehearsal.toml"
        rehearsal.write_text(f'[server]\ndata_dir = "{folder / "rehearsal"}"\n')
        found = [(block.kind.split(), block) for block in blocks("docs/backup.md")]
        self.blocks = {kind[2]: block for kind, block in found if kind[:2] == ["sh", "test"]}
        self.ran: set[str] = set()

    def run(self, name: str) -> str:
        self.ran.add(name)
        (self.folder / "server.toml").write_text(f'[server]\ndata_dir = "{self.data}"\n')
        schema = f"schema-{len(MIGRATIONS)}"
        places = {"/var/lib/ferryman": str(self.data), "schema-1": schema}
        return ran(self.blocks[name], self.folder, environment(), places)


def completions(pair: Pair, job: int) -> list[str]:
    states = [one["status"] for one in pair.json(f"/jobs/{job}/events")["items"]]
    return [state for state in states if state == "Completed"]


def listed(pair: Pair) -> list[int]:
    return sorted(job["id"] for job in pair.json("/jobs")["items"])


def ferryman(*words: str) -> str:
    said = fresh(*words)
    assert said.code == 0, said.err
    return said.out


def held(pair: Pair) -> list[tuple[str, str]]:
    """Server and state of each payload that was not acknowledged."""
    with urlopen(f"{pair.agent.url}/payloads", timeout=60) as answer:
        return [(one["server"], one["status"]) for one in json.loads(answer.read())["payloads"]]


def test_a_restored_server_serves_no_result_of_what_came_after_the_backup(tmp_path: Path) -> None:
    pair = Pair(tmp_path, SETTINGS)
    with pair.running():
        config = str(tmp_path / "ferryman.toml")
        before = pair.submit("echo kept > out.txt", "alice")
        pair.until(before, "Completed")
        running = pair.submit(FOREVER.format(sleep := Sleep()), "alice")
        pair.until(running, "Running")
        reply = ferryman("backup", str(tmp_path / "copy"), "--data-dir", str(pair.server.data))
        assert "2 jobs, 2 bundles" in reply
        after = pair.submit(f"{(late := Sleep())} || true; echo alice > out.txt", "alice")
        pair.until(after, "Running")
        pair.server.kill()
        late.end()
        until(lambda: "Completed" in [state for _, state in held(pair)], "it does not end")
        assert len(sleep.pids()) == 1

        # The folder is lost; the restored server has another one, and the same address and agent.
        pair.server.data = tmp_path / "restored"
        to = ("--data-dir", str(pair.server.data), "--config", config)
        ferryman("restore", str(tmp_path / "copy"), *to)
        pair.server.start()
        bobs = [pair.submit("echo bob > out.txt", "bob") for _ in range(3)]
        assert min(bobs) > 1_000_000
        for job in bobs:
            pair.until(job, "Completed")
            assert pair.result(job).read("out.txt") == b"bob\n"
        pair.until(running, "Completed")
        assert pair.result(running).read("out.txt") == b"again\n"
        assert sleep.pids() == []
        assert pair.result(before).read("out.txt") == b"kept\n"
        until(lambda: held(pair) == [], "the agent is left with something")
        assert listed(pair) == sorted([before, running, *bobs])
        assert completions(pair, running) == ["Completed"]


@pytest.mark.slow
def test_the_page_is_true_with_jobs_in_flight(tmp_path: Path) -> None:
    pair = Pair(tmp_path, SETTINGS)
    operator = Operator(tmp_path, pair.server.data)
    database = pair.server.data / "ferryman.sqlite"
    with pair.running():
        kept = pair.submit("echo kept > out.txt", "alice")
        pair.until(kept, "Completed")
        running = pair.submit(FOREVER.format(sleep := Sleep()), "alice")
        pair.until(running, "Running")
        operator.run("backup")
        operator.run("rehearse")
        assert len(sleep.pids()) == 1, "a rehearsal ends nothing"
        assert "all is well" in operator.run("verify")

        # An upgrade makes a copy at its start; after it, jobs come and end.
        pair.server.kill()
        with closing(sqlite3.connect(database)) as live:
            copy_database(live, database.with_name(f"{database.name}.schema-{len(MIGRATIONS)}"))
        pair.server.start()
        since = pair.submit(f"{(late := Sleep())} || true; echo since > out.txt", "alice")
        pair.until(since, "Running")
        pair.server.kill()
        late.end()

        operator.run("rollback")
        pair.server.start()
        bobs = pair.submit("echo bob > out.txt", "bob")
        assert bobs > 1_000_000
        pair.until(bobs, "Completed")
        assert pair.result(bobs).read("out.txt") == b"bob\n"
        pair.until(running, "Completed")
        until(lambda: sleep.pids() == [], "the attempt of the former server is alive")
        assert pair.result(running).read("out.txt") == b"again\n"
        assert completions(pair, running) == ["Completed"]
        assert pair.result(kept).read("out.txt") == b"kept\n"
        assert listed(pair) == sorted([kept, running, bobs])
        assert pair.server.kill(signal.SIGTERM) == 0
        assert "all is well" in operator.run("verify")

        # The folder is lost.
        pair.server.data = operator.data = tmp_path / "restored"
        operator.run("restore")
        pair.server.start()
        assert pair.result(kept).read("out.txt") == b"kept\n"
        pair.until(running, "Completed")
        assert "all is well" in operator.run("verify")
    assert operator.ran == set(operator.blocks)
