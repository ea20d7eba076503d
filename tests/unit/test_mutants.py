"""Each mutant takes something out that is there."""

from __future__ import annotations

from tests.mutants import old_form


def test_every_mutant_in_the_old_form_can_be_made() -> None:
    mutants = old_form.all_of_them()
    assert {one.protection: one.problem for one in mutants if one.problem} == {}
    assert len({(one.rule, one.protection) for one in mutants}) == len(mutants)


def test_every_rule_of_the_sandbox_has_a_mutant() -> None:
    rules = {*(f"2.{number}" for number in range(1, 13)), "3", "4", "5"}
    assert rules <= {mutant.rule for mutant in old_form.all_of_them()}
