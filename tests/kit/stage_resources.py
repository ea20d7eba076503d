"""What a stage works with, as far as a test has it."""

from __future__ import annotations

from typing import Any

from server.stages.stage import Resources


def resources(**given: Any) -> Resources:
    """The given ones; the others are not to be used."""
    how: dict[str, Any] = dict.fromkeys(("jobs", "storage", "scratch", "fleet", "clock"))
    how |= {"services": {}, "unreachable_after_s": 60.0, "lost_after_s": 3_600.0}
    return Resources(**(how | given))
