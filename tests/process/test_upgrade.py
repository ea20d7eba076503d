"""The data folders of an older version, opened by this one, by both programs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from server.store.migrations import MIGRATIONS
from tests.support.first_release import DATABASES, lay_out
from tests.support.program_pair import Pair

SETTINGS = """
[services.example]
runs_per_user = 2
expires_after = "36500d"
limits = { disk = "32MiB", memory = "64MiB" }
[agent]
retention = "36500d"
"""


OTHER_STATES = """
UPDATE jobs SET state = 'Cleaned', bundle_file = NULL, result_file = NULL WHERE id = 3;
UPDATE jobs SET state = 'Unknown', reason = 'agent_unreachable' WHERE id = 4;
UPDATE jobs SET state = 'Submitted', started_at = NULL WHERE id = 5;
UPDATE jobs SET state = 'Processing', attempt = 1, agent = 'local' WHERE id = 6;
"""
"""The states in which no job of the fixture is: of job 4 the agent has a payload that ran, of 5 one
that has ended, of 6 none."""


@pytest.mark.parametrize(
    ("change", "third", "sixth"),
    [("", "Cancelled", 1), (OTHER_STATES, "Cleaned", 2)],
    ids=["as they were killed", "with jobs in the other states"],
)
def test_everything_goes_on_with_the_data_of_the_first_release(
    tmp_path: Path, change: str, third: str, sixth: int
) -> None:
    pair = Pair(tmp_path, SETTINGS)
    for program in (pair.server, pair.agent):
        lay_out(program.name, program.data)
    with closing(sqlite3.connect(pair.server.data / DATABASES["server"])) as database:
        database.executescript(change)
    with pair.running():
        later = pair.submit("echo later > out.txt")
        assert later == 8
        outputs = {1: b"first", 4: b"second", 5: b"unfetched", 6: b"waited", 7: b"waited"}
        for job, output in (outputs | {later: b"later"}).items():
            pair.until(job, "Completed")
            assert pair.result(job).read("out.txt") == output + b"\n"
        assert (pair.status(2), pair.status(3)) == ("Failed", third)
        attempts = {
            job: json.loads(pair.get(f"/api/v1/jobs/{job}"))["attempt"] for job in (*outputs, later)
        }
        assert attempts == {1: 1, 4: 2, 5: 1, 6: sixth, 7: 1, later: 1}
        assert (pair.server.data / "ferryman.sqlite.schema-1").stat().st_mode & 0o777 == 0o600
        assert "database.upgraded" in pair.server.log


@pytest.mark.parametrize("name", DATABASES)
def test_the_data_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    pair = Pair(tmp_path, SETTINGS)
    program = {"server": pair.server, "client_agent": pair.agent}[name]
    path = lay_out(name, program.data)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"INSERT INTO schema_version VALUES ({len(MIGRATIONS) + 50})")
    before = path.read_bytes()
    program.begin()
    assert program.process is not None
    assert program.process.wait(60) == 74
    assert "written by a newer version" in program.log
    assert "Traceback" not in program.log
    assert path.read_bytes() == before
