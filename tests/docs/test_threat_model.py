"""The threat model names a test for each protection, and each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.mutants.__main__ import lines
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.support.running import ROOT

DOCUMENT = (ROOT / "docs/threat-model.md").read_text()
SOURCE = {path: (ROOT / path).read_text() for path in {mutant.file for mutant in MUTANTS}}


def test_the_table_is_that_of_the_mutants() -> None:
    """``python -m tests.mutants --table`` prints it."""
    assert "\n".join(lines()) + "\n" in DOCUMENT


@pytest.mark.parametrize("rule", [*(f"2.{number}" for number in range(1, 13)), "3", "4", "5"])
def test_every_rule_has_a_line(rule: str) -> None:
    assert re.search(rf"^\| {re.escape(rule)} \|", DOCUMENT, re.MULTILINE)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule} {mutant.protection}")
def test_every_protection_is_where_it_is_said_to_be_and_has_a_test(mutant: Mutant) -> None:
    assert SOURCE[mutant.file].count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(ROOT / file), test


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}
