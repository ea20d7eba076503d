"""Which test noticed each mutant last. It is tried first: where it notices again, as nearly always,
what comes by where need not be recorded. Each run writes ``noticed.txt``, a line for each mutant:
its name, the test, and "afresh" where the change is there in a new interpreter only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

_FILE: Final = Path(__file__).parent / "noticed.txt"
_AFRESH: Final = "afresh, "


class Noticed(NamedTuple):
    test: str
    afresh: bool


def read() -> dict[str, Noticed]:
    """By the labels of the mutants."""
    parts = (line.partition(" → ") for line in _FILE.read_text().splitlines())
    return {
        label: Noticed(test.removeprefix(_AFRESH), test.startswith(_AFRESH))
        for label, _, test in parts
    }


def write(found: Mapping[str, Noticed]) -> None:
    lines = (f"{name} → {_AFRESH * one.afresh}{one.test}\n" for name, one in found.items())
    _FILE.write_text("".join(sorted(lines)))
