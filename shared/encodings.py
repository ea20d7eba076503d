"""Which encodings of an answer a client takes."""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = re.compile(r"q\s*=\s*0(\.0*)?", re.IGNORECASE)


def gzip_accepted(header: str) -> bool:
    """Whether Accept-Encoding names gzip, and not with the weight 0."""
    for one in header.split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        if name.lower() == "gzip":
            return not any(_REFUSED.fullmatch(part) for part in parameters)
    return False
