"""Each mutant takes something out that is there, and the engine tells whether a test notices."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.kit.each import each
from tests.mutants import new_form, old_form
from tests.mutants.old_form import ROOT
from tests.mutants.trees import differences

SAMPLE = "tests/mutants/sample"


def test_every_mutant_can_be_made_and_has_a_name_of_its_own() -> None:
    new, old = new_form.all_of_them(), old_form.all_of_them()
    problems = [(one.protection, one.problem) for one in old]
    problems += [(one.protection, new_form.problem(one)) for one in new]
    assert [(what, why) for what, why in problems if why] == []
    names = [(one.rule, one.protection) for one in (*new, *old)]
    assert len({*names}) == len(names)


def test_every_guarantee_and_every_rule_of_the_sandbox_has_mutants() -> None:
    rules = Counter(mutant.rule for mutant in new_form.all_of_them())
    guarantees = {str(number) for number in range(1, 10)}
    assert {rule for rule in guarantees if rules[rule] < 8} == set()
    boxes = {*(f"sandbox-2.{number}" for number in range(1, 13)), "sandbox-3", "sandbox-4"}
    assert {*guarantees, *boxes, "sandbox-5", "access"} == {*rules}


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


CODE = """
LATER = {'a': 1, 'b': 2}

@cache
def f(x):
    if x and y():
        run(x, loud=True)
        end()
    return 'SELECT  a FROM b WHERE c'
"""


@each(
    "old, new, line",
    [
        ("y()", "False", "if x and False:"),
        ("x and y()", "y()", "if y():"),
        ("y()", "", "if x and True:"),
        ("end()", "", "pass"),
        ("end()", "raise", "raise"),
        ("run(x, loud=True); end()", "stop()", "stop()"),
        ("loud=True", "", "run(x)"),
        ("loud=True", "loud=2", "run(x, loud=2)"),
        ("@cache", "", ""),
        ("…a FROM b…", "…a FROM c…", "return 'SELECT  a FROM c WHERE c'"),
        ("…SELECT a…", "…SELECT z…", "return 'SELECT z FROM b WHERE c'"),
    ],
)
def test_what_is_taken_out_of_a_function(old, new, line) -> None:
    tree = ast.parse(CODE)
    new_form.edit(tree, "f", old, new)
    before = [one.strip() for one in ast.unparse(ast.parse(CODE)).splitlines()]
    after = [one.strip() for one in ast.unparse(tree).splitlines()]
    assert [one for one in after if one not in before] == [line] * bool(line)
    assert after != before


def test_what_is_taken_out_of_a_table() -> None:
    tree = ast.parse(CODE)
    new_form.edit(tree, "LATER", "{'a': 1}", "")
    assert ast.unparse(tree.body[0]) == "LATER = {'b': 2}"


@each("name, old", [("f", "x"), ("f", "z"), ("g", "x"), ("LATER", "…c…")])
def test_what_is_not_there_once_is_no_mutant(name, old) -> None:
    with pytest.raises(LookupError):
        new_form.edit(ast.parse(CODE), name, old, "1")


def test_no_phrase_of_the_former_mutants_is_lost() -> None:
    new = {(one.rule, one.protection) for one in new_form.all_of_them()}
    old = {(one.rule, one.protection) for one in old_form.all_of_them()}
    wrong = []
    for line in (ROOT / "tests/mutants/phrases.txt").read_text().splitlines():
        phrase, arrow, where = line.partition(" → ")
        rule, _, what = phrase.partition(" · ")
        promise, _, name = where.partition(" · ")
        kept = (rule, what) in old if where.startswith("old, ") else (promise, name or what) in new
        if arrow and not kept and not where.startswith("dropped: "):
            wrong.append(line)
    assert wrong == []


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
