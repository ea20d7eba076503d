"""All mutants, in the order of SANDBOX.md."""

from __future__ import annotations

from typing import Final

from tests.mutants.launch import FILTER, LAUNCH, RULES
from tests.mutants.limits import LIMITS
from tests.mutants.mutant import Mutant
from tests.mutants.results import RESULTS

MUTANTS: Final[tuple[Mutant, ...]] = (*RULES, *FILTER, *LAUNCH, *LIMITS, *RESULTS)
