"""All mutants, in the order of SANDBOX.md."""

from __future__ import annotations

from typing import Final

from tests.mutants.archives import ARCHIVES
from tests.mutants.around import AROUND
from tests.mutants.launch import FILTER, LAUNCH, RULES
from tests.mutants.limits import LIMITS
from tests.mutants.mutant import Mutant
from tests.mutants.packing import PACKING
from tests.mutants.results import COLLECTING


def section(mutant: Mutant) -> str:
    return mutant.rule.partition(".")[0]


MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    sorted(
        (*AROUND, *RULES, *FILTER, *LAUNCH, *LIMITS, *COLLECTING, *PACKING, *ARCHIVES), key=section
    )
)
