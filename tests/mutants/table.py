"""All mutants: those of the threat model, and those of every module here that has ``MUTANTS``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from tests.mutants.archives import ARCHIVES
from tests.mutants.around import AROUND
from tests.mutants.launch import LAUNCH
from tests.mutants.limits import LIMITS
from tests.mutants.mutant import Mutant
from tests.mutants.packing import PACKING
from tests.mutants.results import COLLECTING
from tests.mutants.rules import RULES
from tests.mutants.system_calls import FILTER


def section(mutant: Mutant) -> str:
    return mutant.rule.partition(".")[0]


THREAT_MODEL: Final[tuple[Mutant, ...]] = tuple(
    sorted(
        (*AROUND, *RULES, *FILTER, *LAUNCH, *LIMITS, *COLLECTING, *PACKING, *ARCHIVES), key=section
    )
)


def discovered() -> tuple[Mutant, ...]:
    """The ``MUTANTS`` of the modules beside this one, in the order of their names."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    modules = [
        importlib.import_module(f"tests.mutants.{name}")
        for name in names
        if name != Path(__file__).stem
    ]
    return tuple(mutant for module in modules for mutant in getattr(module, "MUTANTS", ()))


def all_mutants() -> tuple[Mutant, ...]:
    return THREAT_MODEL + discovered()
