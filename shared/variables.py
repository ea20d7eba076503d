"""What the variables of a job may be called, for all who give it some."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

OWN: Final = "FERRYMAN_"
"""What the names of those begin with that the agent sets for each attempt."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OF_BASH: Final = frozenset(
    {"BASHOPTS", "BASH_VERSINFO", "EUID", "IFS", "PPID", "SHELLOPTS", "UID"}
)
"""The gate exports variables in the job's bash. There these cannot be set, or change its words."""


def check_variable(name: str, value: str, reserved: Collection[str] = ()) -> None:
    """Refuse a variable that no job can have.

    Args:
        reserved: further names that are set for each job.

    Raises:
        ValueError: it has the variable's name, never its value.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:64]!r} cannot be the name of a variable: write up to 128 of "
            "A-Z a-z 0-9 _, the first one no digit"
        )
    if name in reserved or name.startswith(OWN):
        raise ValueError(f"{name[:64]} is reserved: Ferryman sets it for each job")
    if name in _OF_BASH:
        raise ValueError(f"{name} is bash's own variable")
    if "\0" in value:
        raise ValueError(f"{name} has a NUL in its value")
