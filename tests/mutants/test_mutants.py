"""Each mutant takes something out that is there, and the engine tells whether a test notices."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.kit.each import each
from tests.mutants import forms
from tests.mutants.places import ROOT

SAMPLE = "tests/mutants/sample"


def test_every_mutant_can_be_made_and_has_a_name_of_its_own() -> None:
    for mutant in forms.all_of_them():
        if mutant.is_new:
            assert mutant.change().places, mutant
        else:
            assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, mutant
    names = [(one.rule, one.what) for one in forms.all_of_them()]
    assert len({*names}) == len(names)


def test_every_guarantee_and_every_rule_of_the_sandbox_has_mutants() -> None:
    rules = Counter(mutant.rule for mutant in forms.all_of_them() if mutant.is_new)
    guarantees = {str(number) for number in range(1, 10)}
    assert {rule for rule in guarantees if rules[rule] < 8} == set()
    boxes = {*(f"sandbox-2.{number}" for number in range(1, 13)), "sandbox-3", "sandbox-4"}
    assert {*guarantees, *boxes, "sandbox-5", "access", "docs"} == {*rules}


CODE = "LATER = {'a': 1}\ndef f(x): return x if x else 'SELECT a'"


@each("name, old", [("f", "x"), ("f", "z"), ("g", "x"), ("LATER", "…c…")])
def test_what_is_not_there_once_is_no_mutant(name, old) -> None:
    with pytest.raises(LookupError):
        forms.edit(ast.parse(CODE), name, old, "1")


def test_no_phrase_of_the_former_mutants_is_lost() -> None:
    new, old = (
        {(one.rule, one.what) for one in forms.all_of_them() if one.is_new is wanted}
        for wanted in (True, False)
    )
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
    words = f"-P -m tests.mutants --mutants {SAMPLE}/mutants.txt --tests {SAMPLE}/checks.py".split()
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
