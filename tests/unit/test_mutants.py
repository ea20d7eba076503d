"""Each mutant takes something out that is there, and the engine tells whether a test notices."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.kit.each import each
from tests.mutants import changes, old_form
from tests.mutants.old_form import ROOT, Text
from tests.mutants.trees import differences

SAMPLE = "tests/mutants/sample"


def test_every_mutant_in_the_old_form_can_be_made() -> None:
    mutants = old_form.all_of_them()
    assert {one.protection: one.problem for one in mutants if one.problem} == {}
    assert len({(one.rule, one.protection) for one in mutants}) == len(mutants)


def test_every_rule_of_the_sandbox_has_a_mutant() -> None:
    rules = {*(f"2.{number}" for number in range(1, 13)), "3", "4", "5"}
    assert rules <= {mutant.rule for mutant in old_form.all_of_them()}


@each(
    "old, new, where",
    [
        ("a = 1\ndef f():\n    x()", "a = 1\ndef f():\n    y()", ["f: x()"]),
        ("def f():\n    if a:\n        x()", "def f():\n    if b:\n        x()", ["f: if a:"]),
        ("def f():\n    if a:\n        x()", "def f():\n    if a:\n        pass", ["f: x()"]),
        ("def f():\n    x()\n    y()", "def f():\n    y()", ["f: x()"]),
        ("def f():\n    x()", "def f():\n    x()\n    y()", ["f: x()"]),
        ("def f():\n    def g():\n        x()", "def f():\n    def g():\n        y()", ["f: x()"]),
        (
            "class A:\n    def f(s):\n        x()",
            "class A:\n    def f(s):\n        0",
            ["A.f: x()"],
        ),
        ("class A:\n    a = 1", "class A:\n    a = 2", ["(import) A: a = 1"]),
        ("a = 1", "a = 2", ["(import) : a = 1"]),
        ("def f(a=1):\n    x()", "def f(a=2):\n    x()", ["(import) : def f(a=1):"]),
        (
            "try:\n    f()\nexcept A:\n    x()",
            "try:\n    f()\nexcept A:\n    0",
            ["(import) : x()"],
        ),
    ],
)
def test_the_innermost_statement_that_differs(old, new, where) -> None:
    found = [
        f"{'' if one.function else '(import) '}{one.qualname}: "
        + ast.unparse(one.statement).partition("\n")[0]
        for one in differences(ast.parse(old), ast.parse(new))
    ]
    assert found == where


def test_a_constant_is_noticed_where_what_is_made_of_it_is_read() -> None:
    mutant = Text("sample", "what", f"{SAMPLE}/thing.py", "LIMIT: Final = 3", "LIMIT: Final = 4")
    change = changes.from_text(mutant)
    assert change.at_import
    assert change.places == {(f"{SAMPLE}/thing.py", "name_of:"): 1}


@pytest.mark.slow
def test_what_the_engine_says_of_each_mutant_of_the_sample() -> None:
    words = ["-P", "-m", "tests.mutants", "--mutants", SAMPLE, "--tests", f"{SAMPLE}/checks.py"]
    ran = subprocess.run(
        [sys.executable, *words, "--patience=1"], cwd=ROOT, capture_output=True, text=True
    )
    checks = f"{SAMPLE}/checks.py::test_"
    assert set(ran.stdout.splitlines()) >= {
        f"noticed   sample · what a decorator adds · {checks}of_a_decorated_function",
        "noticed   sample · what a property answers in another program · "
        f"{checks}in_another_interpreter",
        f"noticed   sample · the end of a loop · {checks}that_would_not_end (hangs)",
        "SURVIVED  sample · where a loop ends · (4 tests passed)",
        "noticed   sample · an entry of a table that is made of another constant · "
        f"{checks}of_a_table",
        f"NOT REACHED sample · what nobody asks for · {SAMPLE}/thing.py",
    }, ran.stdout + ran.stderr
    assert ran.returncode == 1
