"""What a restore makes of the folder and the database: tokens, deliveries, numbers, the record."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from server.data_folder import UNKNOWN, WrongDatabase, open_data, read_record, write_record
from server.maintenance.restore import as_another
from server.settings.tables import ServerTable
from server.store import copies
from shared.clock import RealClock
from tests.contract.test_backup import Folder, call, rows
from tests.kit.dev_program import environment
from tests.kit.inline_database import SimulatedCrash


@pytest.fixture(autouse=True)
def _no_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "data")
    asyncio.run(folder.fill())
    return folder


def test_a_restored_server_signs_anew_and_names_the_tokens_that_are_good(
    folder: Folder, tmp_path: Path
) -> None:
    """A token that was revoked since the backup is good again, and a used ticket would be."""
    token = (
        "INSERT INTO tokens (id, digest, name, role, created_at, created_by, expires_at, "
        "revoked_at, version) VALUES (?, '', ?, 'operator', 1, 'x', ?, ?, 1)"
    )
    with closing(sqlite3.connect(folder.database_path)) as connection:
        connection.execute("INSERT INTO meta VALUES ('signing_key', 'ab')")
        connection.execute(token, ("t1", "live", None, None))
        connection.execute(token, ("t2", "revoked", None, 2))
        connection.execute(token, ("t3", "expired", 3, None))
        connection.commit()
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    said = call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    assert "live: ferryman token revoke t1" in said
    assert "t2" not in said
    assert "t3" not in said
    meta = dict(rows(tmp_path / "new" / "ferryman.sqlite", "SELECT key, value FROM meta"))
    assert "signing_key" not in meta
    said = call("restore", tmp_path / "copy", "--data-dir", tmp_path / "more", "--json")
    assert json.loads(said)["tokens"] == ["t1"]


def give_delivery(path: Path, job_id: int) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(
            "INSERT INTO deliveries (job_id, user_id, principal, url, "
            "target, event, body, next_at, created_at) VALUES "
            "(?, 'ann', 'ann', 'https://a.example.org/', "
            "'https://a.example.org', 'job.completed', '{}', 5, 5)",
            (job_id,),
        )
        raw.commit()


def test_a_rehearsal_has_nothing_to_deliver(folder: Folder, tmp_path: Path) -> None:
    give_delivery(folder.database_path, 2)
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "tried", "--rehearsal")
    call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")
    found = {
        name: (
            rows(path, "SELECT state, next_at FROM deliveries"),
            rows(path, "SELECT count(*) FROM meta WHERE key = 'rehearsal'"),
        )
        for name in ("tried", "new")
        for path in [tmp_path / name / "ferryman.sqlite"]
    }
    assert found["tried"] == ([("failed", None)], [(1,)])
    assert found["new"] == ([("pending", 5)], [(0,)])


def test_a_job_that_is_left_out_leaves_no_delivery(folder: Folder) -> None:
    for job_id in (1, 2):
        give_delivery(folder.database_path, job_id)
    with closing(sqlite3.connect(folder.database_path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        copies.leave_out(connection, [1])
    assert rows(folder.database_path, "SELECT job_id FROM deliveries") == [(2,)]


def test_a_folder_that_had_a_server_gets_the_restored_one_with_numbers_above_its_own(
    folder: Folder, tmp_path: Path
) -> None:
    """What is left of a folder whose files and database are gone is no obstacle."""
    call("backup", tmp_path / "copy", "--data-dir", folder.path)
    new = tmp_path / "new"
    (new / UNKNOWN).mkdir(parents=True)
    write_record(new, copies.Marks("gone", 5_000_000, 9, 3))
    (new / "clock.json").write_text("{}")
    said = call("restore", tmp_path / "copy", "--data-dir", new, "--json")
    assert json.loads(said)["next_id"] == 6_000_001
    record = read_record(new)
    assert record is not None
    ((server,),) = rows(new / "ferryman.sqlite", "SELECT value FROM meta WHERE key = 'server'")
    assert (record.server, record.last_job) == (server, 6_000_000)


def test_a_restore_that_is_killed_before_its_end_leaves_no_folder_to_start_with(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("backup", tmp_path / "copy", "--data-dir", folder.path)

    def killed(*how: Any, **more: Any) -> int:
        as_another(*how, **more)
        raise SimulatedCrash

    with monkeypatch.context() as patched:
        patched.setattr("server.maintenance.restore.as_another", killed)
        patched.setattr("server.maintenance.restore.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(SimulatedCrash):
            call("restore", tmp_path / "copy", "--data-dir", tmp_path / "new")

    async def start() -> None:
        async with AsyncExitStack() as stack:
            await open_data(ServerTable(data_dir=tmp_path / "new"), RealClock(), stack)

    with pytest.raises(WrongDatabase, match="is missing"):
        asyncio.run(start())
