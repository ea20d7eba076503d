"""JSON that people write, as it is stored: one line that every reader can take."""

from __future__ import annotations

import json
from typing import Any, Final

_MAX_DEPTH: Final = 64
"""Readers of our documents take no more than about 200."""


def normal(text: str) -> str:
    """The same value, on one line.

    Raises:
        ValueError: it is no JSON, or what few readers take; :class:`json.JSONDecodeError` says
            where it is wrong.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
        _check_depth(value, _MAX_DEPTH)
        stored = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        stored.encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has half a character, as in \\ud800") from None
    return stored


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise RecursionError
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, left - 1)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
