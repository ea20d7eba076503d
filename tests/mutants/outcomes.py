"""A plugin of pytest: writes ``passed NODEID`` or ``failed NODEID`` for each test to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FILE = "MUTANT_TEST_OUTCOMES"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or (report.when == "call" and report.passed):
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(f"{report.outcome} {report.nodeid!a}\n")
