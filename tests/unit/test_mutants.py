"""Each mutant takes something out that is there, and names tests that are there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants.runner import Run, problem, syntax_problem
from tests.mutants.table import THREAT_MODEL, all_mutants

FINE = THREAT_MODEL[0]


def test_every_mutant_can_be_made_and_names_tests_that_are_there() -> None:
    wrong = {mutant.protection: why for mutant in all_mutants() if (why := problem(mutant))}
    assert wrong == {}


def test_every_rule_of_the_sandbox_has_a_mutant() -> None:
    rules = {*(f"2.{number}" for number in range(1, 13)), "3", "4", "5"}
    assert rules <= {mutant.rule for mutant in THREAT_MODEL}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"file": "server/no_such.py"}, "there is no server/no_such.py"),
        ({"new": FINE.old}, "it changes nothing"),
        ({"old": "no such text"}, "occurs 0 times"),
        ({"old": "\n"}, "times in"),
        ({"new": "    if (:\n"}, "is not valid Python with it"),
        ({"tests": ()}, "it names no test"),
        ({"tests": ("tests/unit/test_mutants.py::test_no_such",)}, "there is no test"),
    ],
)
def test_what_is_no_mutant_is_an_error(change, why) -> None:
    mutant = replace(FINE, **change)
    assert why in (problem(mutant) or syntax_problem(mutant))


@pytest.mark.parametrize(
    ("test", "failed", "passed"),
    [
        ("t.py::test_a", True, False),
        ("t.py::test_a[1]", False, True),
        ("t.py::test_a[2]", True, False),
        ("t.py::test_b", False, True),
        ("t.py::test_skipped", False, False),
        ("t.py::test", False, False),
        ("t.py", True, False),
    ],
)
def test_a_test_has_failed_if_any_of_its_cases_failed(test, failed, passed) -> None:
    run = Run(
        passed=frozenset({"t.py::test_a[1]", "t.py::test_b"}),
        failed=frozenset({"t.py::test_a[2]"}),
        hung=False,
        error="",
    )
    assert (run.failed_by(test), run.passed_by(test)) == (failed, passed)
