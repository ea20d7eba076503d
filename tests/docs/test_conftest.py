"""Tests that hang or are skipped do not pass for tests that passed."""

import shutil
import sys
from pathlib import Path

from tests.conftest import MAY_SKIP_IN_CI
from tests.kit.dev_program import ROOT, ended

TESTS = f"""
import asyncio
import threading
import unittest

import pytest


@pytest.mark.timeout(0.2)
async def test_waits():
    async def somewhere():
        await asyncio.Event().wait()

    await asyncio.create_task(somewhere())


@pytest.mark.timeout(0.2)
async def test_spins():
    async def somewhere():
        while True:
            sum(range(10_000))
            await asyncio.sleep(0)

    spinning = [asyncio.create_task(somewhere()) for _ in range(3)]
    await asyncio.Event().wait()


@pytest.mark.timeout(0.2)
def test_hangs():
    threading.Event().wait()


class SlowToSay(Exception):
    def __str__(self):
        threading.Event().wait(1.2)  # beyond TIMEOUT_AGAIN_S
        return "it is said"


class TestOfUnittest(unittest.TestCase):
    @pytest.mark.timeout(0.2)
    def test_whose_error_unittest_keeps(self):
        try:
            threading.Event().wait()
        except BaseException:
            raise SlowToSay from None


def test_silent():
    pytest.skip("not today")


def test_honest():
    pytest.skip("no moon: that it shines is not proved")


@pytest.mark.skipif(True, reason={MAY_SKIP_IN_CI[0]!r})
def test_allowed():
    pass


@pytest.mark.slow
def test_slow():
    pass


def test_fine():
    pass
"""


CRASH = """
import os
import signal


def test_crash():
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def output(tests: str, folder: Path, *args: str) -> str:
    """What pytest says of these tests, of which some fail."""
    for name in ("pyproject.toml", "tests/conftest.py", "tests/kit/installed.py"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    (folder / "tests" / "test_these.py").write_text(tests)
    pytest = ("-P", "-m", "pytest", "-rA", "-p", "no:cacheprovider", *args)
    return ended(sys.executable, *pytest, cwd=folder, env={"CI": "1"}, status=1).stdout


def test_what_hangs_or_is_skipped_in_ci_fails(tmp_path) -> None:
    said = output(TESTS, tmp_path)
    words = [line.split() for line in said.splitlines() if "::" in line]
    passed, failed = (
        {word[1].partition("::")[2] for word in words if word[0] == outcome}
        for outcome in ("PASSED", "FAILED")
    )
    hang = {"test_waits", "test_spins", "test_hangs"}
    hang |= {"TestOfUnittest::test_whose_error_unittest_keeps"}
    assert (passed, failed) == ({"test_fine"}, hang | {"test_silent", "test_honest"}), said
    assert "in somewhere" in said
    assert "await asyncio.Event().wait()" in said


def test_a_worker_that_crashes_is_named_with_its_signal_and_stacks(tmp_path) -> None:
    said = output(CRASH, tmp_path, "-n", "1")
    assert "gw0 ended with -11" in said
    stacks = said.partition("stacks of workers that crashed")[2]
    assert ("Segmentation fault" in stacks, "in test_crash" in stacks) == (True, True)
