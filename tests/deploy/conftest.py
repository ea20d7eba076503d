"""What ``deploy/`` holds, and the programs that check it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.dev_program import ROOT

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="session")
def tool():
    """Path of a program that `make setup-dev` installs, beside this Python or on PATH."""

    def find(name: str) -> str:
        beside = Path(sys.executable).parent / name
        found = str(beside) if beside.exists() else shutil.which(name, path=_PATH)
        assert found, f"{name} is not installed: run `make setup-dev`"
        return found

    return find


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
