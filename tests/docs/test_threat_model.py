"""The page of protections names a test for each."""

from __future__ import annotations

import re

from tests.mutants.__main__ import PAGE, page
from tests.support.each import each


def test_the_page_is_generated_from_the_mutants() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.mutants --table"


@each("rule", [*(f"2.{number}" for number in range(1, 13)), "3", "4", "5"])
def test_every_rule_has_a_line(rule: str) -> None:
    assert re.search(rf"^\| {re.escape(rule)} \|", PAGE.read_text(), re.MULTILINE)
