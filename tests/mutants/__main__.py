"""Lists the mutants: ``make mutants``."""

from __future__ import annotations

from tests.mutants.old_form import all_of_them

for _mutant in all_of_them():
    print(f"{_mutant.rule} · {_mutant.protection} · {_mutant.file} {_mutant.problem}")
