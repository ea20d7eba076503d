"""The threat model names a test for each protection."""

from __future__ import annotations

import re

import pytest

from tests.mutants.__main__ import lines
from tests.support.dev_program import ROOT

DOCUMENT = (ROOT / "docs/threat-model.md").read_text()


def test_the_table_is_that_of_the_mutants() -> None:
    """``python -m tests.mutants --table`` prints it."""
    assert "\n".join(lines()) + "\n" in DOCUMENT


@pytest.mark.parametrize("rule", [*(f"2.{number}" for number in range(1, 13)), "3", "4", "5"])
def test_every_rule_has_a_line(rule: str) -> None:
    assert re.search(rf"^\| {re.escape(rule)} \|", DOCUMENT, re.MULTILINE)
