"""Settings that change under load: a real server and agent, SIGHUP to both."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.program_pair import Pair
from tests.kit.programs import Program, until

FIRST, JOBS = 3, 8
RUNS = "[services.example]\nmax_runs = {}\nruns_per_user = {}\n"
AGENT = '[agent]\nslots = 4\nsandbox = "none"\n'


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that jobs may write to, whoever they run as."""
    with tempfile.TemporaryDirectory(prefix="ferryman-test-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def hang_up(config: Path, text: str, said: str, *programs: Program) -> None:
    """Let them read these settings, and wait until each has said so."""
    before = {one.name: one.log.count(said) for one in programs}
    config.write_text(text)
    for one in programs:
        assert one.process is not None
        one.process.send_signal(signal.SIGHUP)
        until(
            lambda one=one: one.log.count(said) > before[one.name],
            f"{one.name} says nothing",
            lambda one=one: one.log[-3_000:],
        )


def test_nothing_is_lost_or_run_twice_and_a_changed_limit_holds(
    tmp_path: Path, shared: Path
) -> None:
    trace, gate = shared / "trace", shared / "gate"
    trace.touch()
    trace.chmod(0o666)
    pair = Pair(tmp_path, RUNS.format(FIRST, FIRST) + AGENT)
    config, both = tmp_path / "ferryman.toml", (pair.server, pair.agent)

    def submit(number: int) -> int:
        wait = f"until [ -e '{gate}' ]; do sleep 0.02; done"
        script = f"echo b {number} >> '{trace}'\n{wait}\necho e {number} >> '{trace}'\n"
        return pair.submit(script)

    def most_runs() -> int:
        return int(json.loads(pair.get("/api/v1/services/example"))["max_runs"])

    with pair.running(), ThreadPoolExecutor(1) as sender:
        jobs = [submit(number) for number in range(FIRST)]
        until(lambda: len(trace.read_text().splitlines()) == FIRST, "they do not run")
        more = sender.map(submit, range(FIRST, JOBS))
        for label in range(3):
            text = f"{RUNS.format(1, 1)}{AGENT}services = ['example', 'other-{label}']\n"
            hang_up(config, text, '"settings.reloaded"', *both)
            assert most_runs() == 1
            wrong = RUNS.format(9, 9) + "[agent]\nslots = 'many'\n[server]\nmax_files = 'x'\n"
            hang_up(config, wrong, '"settings.not_reloaded"', *both)
            assert most_runs() == 1
        gate.touch()
        jobs += more
        for job_id in jobs:
            pair.until(job_id, "Completed")
    lines = trace.read_text().splitlines()
    assert sorted(lines) == sorted(f"{what} {one}" for what in "be" for one in range(JOBS))
    later = [line.split()[0] for line in lines if int(line.split()[1]) >= FIRST]
    assert later == ["b", "e"] * (JOBS - FIRST)  # one at a time, by the new limit
    assert lines.index(next(line for line in lines if int(line.split()[1]) >= FIRST)) == 2 * FIRST
