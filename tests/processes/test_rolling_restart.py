"""Agents and server are stopped, drained and started again, one after the other, under load."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from pathlib import Path

from tests.kit.programs import PATIENCE_S, Pair, Program, until

CHILDREN = 14
SETTINGS = """
[services.example]
runs_per_user = 50
max_runs = 50
on_shutdown = "resubmit"
infra_retries = 0
[services.careful]
runs_per_user = 50
max_runs = 50
on_shutdown = "continue"
infra_retries = 0
[agent]
slots = 2
sandbox = "none"
grace = "1s"
"""
SCRIPT = "sleep 0.5; echo $FERRYMAN_JOB_ID $FERRYMAN_ARRAY_INDEX > out.txt\n"


class Load:
    """Uploads jobs of both services until it is stopped. Each run writes down that it began, and
    that it ended."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.touch()
        self.runs.chmod(0o666)  # jobs have uids of their own
        self.jobs: dict[int, str] = {}
        self._pair, self._stop = pair, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        said = f"echo $1 $FERRYMAN_SERVICE $FERRYMAN_JOB_ID >> {self.runs}"
        script = f"say() {{ {said}; }}\nsay began; sleep 0.3 && trap '' TERM && say ended\n"
        for number in itertools.count():
            service = ("example", "careful")[number % 2]
            with contextlib.suppress(OSError, AssertionError, ValueError):  # no server just now
                self.jobs[self._pair.submit(script, service=service)] = service
            if self._stop.wait(0.25):
                return

    def lines(self, what: str, service: str) -> list[int]:
        found = (line.split() for line in self.runs.read_text().splitlines())
        return sorted(int(one[2]) for one in found if one[:2] == [what, service])


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path, open_folder: Path) -> None:
    """No attempt that a shutdown ended is counted: no service would allow another here."""
    pair, config = Pair(tmp_path, SETTINGS), tmp_path / "ferryman.toml"
    flags = ("--config", str(config))
    (tmp_path / "south").mkdir()
    south = Program("client_agent", tmp_path / "south", pair.agent.mark, *flags)
    tables = [
        f"[agents.{one}]\nurl = '{agent.url}'\n"
        for one, agent in (("north", pair.agent), ("south", south))
    ]
    config.write_text(SETTINGS + "".join(tables))
    pair.server = Program("server", tmp_path, pair.agent.mark, *flags)
    with pair.running(), south.running():
        restart_under_load(pair, south, open_folder)


def restart_under_load(pair: Pair, south: Program, folder: Path) -> None:
    with Load(pair, folder) as load:
        parent = pair.submit(SCRIPT, array=f"0-{CHILDREN - 1}")

        def completed() -> int:
            page = pair.json(f"/jobs?parent={parent}&limit=100")
            return sum(child["status"] == "Completed" for child in page["items"])

        steps = itertools.product((signal.SIGTERM, signal.SIGUSR1), (pair.agent, south))
        for done, (number, agent) in enumerate(steps, 1):
            until(lambda at_least=2 * done: completed() >= at_least, "no child completes")
            assert agent.kill(number) == 0, agent.log[-3_000:]
            agent.start()
            assert pair.server.kill(signal.SIGTERM) == 0, pair.server.log[-3_000:]
            pair.server.start()
    for job_id in (*load.jobs, parent):
        pair.until(job_id, "Completed")
    page = pair.json("/jobs?limit=500")
    assert {job["status"] for job in page["items"]} == {"Completed"}
    for service in ("example", "careful"):
        jobs = sorted(
            job["id"]
            for job in page["items"]
            if job["service"] == service and job["parent_id"] is None and job["id"] != parent
        )
        assert set(jobs) >= {one for one, of in load.jobs.items() if of == service}
        assert load.lines("ended", service) == jobs, "each ran to its end once"
    assert load.lines("began", "careful") == load.lines("ended", "careful"), "none was stopped"
    page = pair.json(f"/jobs?parent={parent}&limit=100")
    indices = []
    for child in page["items"]:
        own, index = pair.result(child["id"]).read("out.txt").split()
        assert int(own) == child["id"]
        indices.append(int(index))
    assert sorted(indices) == list(range(CHILDREN))
