"""What ``deploy/`` holds, and the programs that check it."""

from __future__ import annotations

import pytest

from tests.kit.dev_program import ROOT
from tests.kit.installed import program

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="session")
def tool():
    """Path of a program that `make setup-dev` installs, beside this Python or on PATH."""
    return program
