"""Tests of the sample."""

import subprocess
import sys

from tests.mutants.sample.thing import Thing, doubled, name_of


def test_of_a_decorated_function() -> None:
    assert doubled(2) == 5


def test_in_another_interpreter() -> None:
    code = "from tests.mutants.sample.thing import Thing; print(Thing(3).even)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_that_would_not_end() -> None:
    assert Thing(3).down() <= 3


def test_of_a_table() -> None:
    assert name_of(2)
