"""The data folders of a newer version, opened by this one, by both programs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from client_agent.payloads.store import MIGRATIONS as OF_AGENT
from server.store.migrations import MIGRATIONS
from shared.sqlite.migrations import migrate
from tests.kit.program_pair import Pair


@pytest.mark.parametrize("name", ["server", "agent"])
def test_the_data_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    pair = Pair(tmp_path, "")
    program, file, steps = {
        "server": (pair.server, "ferryman.sqlite", MIGRATIONS),
        "agent": (pair.agent, "agent.sqlite", OF_AGENT),
    }[name]
    program.data.mkdir(mode=0o700)
    path = program.data / file
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        migrate(database, path, steps)
        database.execute(f"INSERT INTO schema_version VALUES ({len(steps) + 50})")
    before = path.read_bytes()
    program.begin()
    assert program.process is not None
    assert program.process.wait(60) == 74
    assert "written by a newer version" in program.log
    assert "Traceback" not in program.log
    assert path.read_bytes() == before
