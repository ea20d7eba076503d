"""Names that callers misspell."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

_LONGEST: Final = 32
"""Of a name that is compared: the time grows with its length."""


def hint(name: str, known: Collection[str]) -> str:
    """What to write in place of a name that is not known, as the end of a sentence."""
    near = difflib.get_close_matches(name[:_LONGEST], list(known), 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(known)}" if known else "there are none"
