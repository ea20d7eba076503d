"""What the bench measures itself with."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from tests.bench import growth, jobs
from tests.bench.orchestrator import NAME, beside

BUSY = "import time\nwhile time.process_time() < 0.4: pass\n"


def program(process: subprocess.Popen[bytes]) -> Any:
    return SimpleNamespace(process=process)


def test_cpu_of_a_program_and_of_its_children_are_apart() -> None:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        status = Path(f"/proc/{process.pid}/stat")
        while jobs.children_s(program(process)) == 0:
            assert status.exists()
        assert jobs.children_s(program(process)) >= 0.2
        assert jobs.cpu_s(program(process)) < jobs.children_s(program(process))
        process.communicate(b"\n")


def test_the_machine_uses_at_least_what_one_program_does() -> None:
    before = jobs.machine_s()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert jobs.machine_s() - before >= 0.15


async def test_each_client_takes_the_next_body(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, at_once = list[bytes](), list[int]()
    under_way = 0

    others = asyncio.Event()

    async def one(_: object, data: bytes) -> tuple[float, float]:
        nonlocal under_way
        under_way += 1
        sent.append(data)
        at_once.append(under_way)
        if under_way == jobs.AT_ONCE:
            others.set()
        await others.wait()
        under_way -= 1
        return 0.0, 0.0

    monkeypatch.setattr(jobs, "one", one)
    await jobs.many(cast(aiohttp.ClientSession, None), 50, itertools.cycle((b"a", b"b")))
    assert (sent.count(b"a"), sent.count(b"b")) == (25, 25)
    assert max(at_once) == jobs.AT_ONCE


def test_medians_are_of_each_figure_alone() -> None:
    rounds = [
        {"rate": 1.0, "server": 9.0},
        {"rate": 3.0, "server": 7.0},
        {"rate": 2.0, "server": 8.0},
    ]
    assert jobs.medians(rounds) == {"rate": 2.0, "server": 8.0}


def test_the_table_of_growth_has_a_line_for_each_number() -> None:
    figures = dict.fromkeys(growth.COLUMNS, 7.25)
    head, _, *lines = growth.rows("ended", {1: figures, 1_000: figures})
    assert [line.split(" | ")[0] for line in lines] == ["| 1", "| 1,000"]
    assert {line.count("|") for line in (head, *lines)} == {len(growth.COLUMNS) + 2}


async def test_a_database_is_filled_once_and_the_service_waits_where_a_quota_is_held(
    tmp_path: Path,
) -> None:
    first = await growth.filled("queued", 3, tmp_path)
    made = first.stat().st_mtime_ns
    assert await growth.filled("queued", 3, tmp_path) == first
    assert first.stat().st_mtime_ns == made
    with closing(sqlite3.connect(first)) as raw:
        assert raw.execute("SELECT DISTINCT user_id, state FROM jobs").fetchall() == [
            ("user0", "Queued")
        ]
        assert raw.execute("SELECT name, paused FROM services").fetchall() == [("example", 1)]


async def test_without_the_other_orchestrator_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = await beside(tmp_path, 1, 1)
    assert (row.what, row.met) == (NAME, None)
    assert "cargo install" in row.against
