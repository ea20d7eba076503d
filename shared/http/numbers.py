"""Numbers in requests."""

from __future__ import annotations

from typing import Final

_DIGITS: Final = 19
"""Of 2^63, the largest number that anything here takes."""


def whole_number(text: str, least: int = 0, most: int = 2**63 - 1) -> int | None:
    """The number, if it is one within these bounds; else None.

    Python's own ``int()`` takes time that grows with the square of the length, fails over 4,300
    digits, and accepts digits that are not 0–9.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 64:
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > _DIGITS:
        return None
    number = int(digits)
    return number if least <= number <= most else None
