"""Sizes as people write them: ``400MB``, ``2GiB``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from ferryman.units import LARGEST as LARGEST
from ferryman.units import bounded_size
from ferryman.units import parse_size as parse_size
from ferryman.units import say_count as say_count
from ferryman.units import say_size as say_size


def _size(value: Any) -> Any:
    if value is True or value is False:  # which would count as 1 and 0
        raise ValueError(f"{str(value).lower()} is not a size such as 400MB or 2GiB")
    if isinstance(value, str):
        return parse_size(value)
    # Its repr would be as long as the number; Python refuses that beyond 4,300 digits.
    return bounded_size(value, "the number") if isinstance(value, int) else value


Size = Annotated[int, BeforeValidator(_size)]
"""A settings field in bytes; reads ``2GiB`` or a number of bytes."""
