"""Variables that an operator gives to jobs: what they may be called, and how much they may hold."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

MAX_VARIABLES: Final = 128
"""In one table; an agent takes two such tables."""
MAX_BYTES: Final = 16 << 10
"""Of a table of variables as JSON; two of them fit into the order that an agent gets."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED: Final = frozenset({"HOME", "LANG", "PATH", "PWD", "TMPDIR"})
_RESERVED_PREFIX: Final = "FERRYMAN_"


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse names that are reserved or none, and values that no process can have.

    Raises:
        ValueError: it names the variable, never its value.
    """
    if len(variables) > MAX_VARIABLES:
        raise ValueError(f"{len(variables)} variables, at most {MAX_VARIABLES} are taken")
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name[:64]!r} cannot be the name of a variable: write up to 128 of "
                "A-Z a-z 0-9 _, the first one no digit"
            )
        if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
            raise ValueError(f"{name[:64]} is reserved: Ferryman sets it for each job")
        if "\0" in value:
            raise ValueError(f"{name} has a NUL in its value")
    if len(json.dumps(dict(variables))) > MAX_BYTES:
        raise ValueError(f"its variables take more than {MAX_BYTES >> 10} KiB")
