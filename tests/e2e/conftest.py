"""A real server and a real agent, as two processes, for everything in this folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.running import System, environment, started


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One for all tests of this process."""
    if shutil.which("bwrap") is None:
        pytest.fail("bubblewrap is missing: scripts/setup installs it")
    with started(tmp_path_factory.mktemp("system"), FERRYMAN_AGENT__GRACE="1s") as running:
        yield running


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Ferryman = Callable[..., Said]


@pytest.fixture
def ferryman(system: System, tmp_path: Path) -> Ferryman:
    """The command line, as a program, in an empty folder."""

    def run(*words: object) -> Said:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ferryman", *map(str, words)],
            env={**environment(), "FERRYMAN_URL": system.url, "FERRYMAN_USER": "ada"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[..., Path]:
    """Makes a bundle: the script, and files by name."""

    def make(script: str, **files: str) -> Path:
        folder = tmp_path / f"bundle-{uuid.uuid4().hex[:6]}"
        for name, text in {"run.sh": script, **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return make
