"""A real server and a real agent, as two processes, for everything in this folder."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ferryman import cli
from tests.kit.dev_program import DevProgram, environment, started


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
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
def ferryman(
    system: DevProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Ferryman:
    """The command line in an empty folder; in this process, because starting one costs most."""
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    for name, value in {"FERRYMAN_URL": system.url, "FERRYMAN_USER": "ada"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["ferryman", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ending:
            cli.main()
        out, err = capfd.readouterr()
        return Said(int(ending.value.code or 0), out, err)

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
