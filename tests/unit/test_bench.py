"""What the bench measures itself with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from tests.bench import jobs

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
    await jobs.many(cast(aiohttp.ClientSession, None), 50, (b"a", b"b"))
    assert (sent.count(b"a"), sent.count(b"b")) == (25, 25)
    assert max(at_once) == jobs.AT_ONCE


def test_medians_are_of_each_figure_alone() -> None:
    rounds = [
        {"rate": 1.0, "server": 9.0},
        {"rate": 3.0, "server": 7.0},
        {"rate": 2.0, "server": 8.0},
    ]
    assert jobs.medians(rounds) == {"rate": 2.0, "server": 8.0}
