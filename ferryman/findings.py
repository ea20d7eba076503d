"""What ``ferryman doctor`` finds, on every side: rows, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "warning", "problem"]
_MARKS: Final = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    level: Level
    text: str
    hint: str | None = None
    """What to do, with a command."""
    exit_code: int = 0


def lines(finding: Finding) -> Iterator[str]:
    """As it is printed."""
    text = " ".join(finding.text.split())
    yield f"{_MARKS[finding.level]:<8} {finding.about}: {text}"
    if finding.hint is not None and finding.level != "ok":
        yield f"{'':<9}{finding.hint}"


def exit_code(findings: Sequence[Finding]) -> int:
    """0 without a problem, otherwise that of the first one."""
    return next((one.exit_code or _FAILED for one in findings if one.level == "problem"), 0)
