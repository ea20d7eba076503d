"""Examples run as by hand: bash, in a copy of their folder, nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"

Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_example(tmp_path: Path) -> Run:
    """``run_example(name, changes)`` runs a bundle in ``tmp_path / "job"``.

    ``changes`` maps file names to the text they get instead, or to None: left out.
    """

    def run(
        name: str, changes: Mapping[str, str | None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        job = tmp_path / "job"
        shutil.copytree(EXAMPLES / name, job)
        for file, text in (changes or {}).items():
            (job / file).unlink(missing_ok=True)
            if text is not None:
                (job / file).write_text(text, encoding="utf-8", newline="")
        return subprocess.run(
            ["bash", "run.sh"],
            cwd=job,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return run
