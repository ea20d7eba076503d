"""What the bench measures itself with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import bare, jobs
from tests.bench.orchestrator import NAME, beside

BUSY = "import time\nwhile time.process_time() < 0.4: pass\n"


def test_cpu_of_a_program_and_of_its_children_are_apart() -> None:
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        program: Any = SimpleNamespace(pid=process.pid)
        status = Path(f"/proc/{process.pid}/stat")
        while jobs.children_s(program) == 0:
            assert status.exists()
        assert jobs.children_s(program) >= 0.2
        assert jobs.cpu_s(program) < jobs.children_s(program)
        process.communicate(b"\n")


def test_a_start_that_fails_is_no_measurement() -> None:
    with pytest.raises(AssertionError, match="no such luck"):
        bare.timed(["/bin/sh", "-c", "echo no such luck >&2; exit 3"])


async def test_without_the_other_orchestrator_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = await beside(tmp_path, 1, 1)
    assert (row.what, row.met) == (NAME, None)
    assert "cargo install" in row.against
