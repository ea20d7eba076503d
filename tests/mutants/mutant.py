"""One protection, and the tests that must fail without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CODE: Final = "client_agent/"
BOX: Final = "tests/unit/client_agent/sandbox/"
PROCESS: Final = "tests/process/test_"
HOSTILE: Final = f"{PROCESS}sandbox_hostile.py::test_hostile_bundle"
COLLECT: Final = "tests/unit/client_agent/collect/test_pack.py::test_"
RACES: Final = "tests/unit/client_agent/collect/test_pack_races.py::test_"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change that removes one protection."""

    rule: str
    """As the threat model numbers them, such as "2.4"."""
    protection: str
    """What is removed, a phrase for the threat model."""
    file: str
    old: str
    """Occurs exactly once in ``file``."""
    new: str
    tests: tuple[str, ...]
    """Each of them must fail."""


def of(rule: str, protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(rule, protection, CODE + file, old, new, tests)
