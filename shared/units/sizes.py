"""Sizes as people write them: ``400MB``, ``2GiB``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from ferryman.units import say_count as say_count
from ferryman.units import say_size as say_size
from shared.units.durations import strip_bounded

LARGEST: Final = (1 << 63) - 1
"""What a database column and the kernel can hold."""
_POWERS: Final = {prefix: power for power, prefix in enumerate("kmgtpe", 1)}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:b|([kmgtpe])(i?)b?)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes. ``KB`` is 1000 and ``KiB`` 1024, in any case, up to ``EiB``.

    Raises:
        ValueError: not a size, or more than :data:`LARGEST`.
    """
    text = strip_bounded(text, "400MB or 2GiB")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 400MB or 2GiB")
    number, prefix, binary = match.groups()
    unit = (1024 if binary else 1000) ** _POWERS[prefix.lower()] if prefix else 1
    return _bounded(int(Decimal(number) * unit), text)


def _bounded(size: int, text: object) -> int:
    if size > LARGEST:
        raise ValueError(f"{text!r} is more than any disk or memory holds")
    return size


def _size(value: Any) -> Any:
    if value is True or value is False:  # which would count as 1 and 0
        raise ValueError(f"{str(value).lower()} is not a size such as 400MB or 2GiB")
    if isinstance(value, str):
        return parse_size(value)
    # Its repr would be as long as the number; Python refuses that beyond 4,300 digits.
    return _bounded(value, "the number") if isinstance(value, int) else value


Size = Annotated[int, BeforeValidator(_size)]
"""A settings field in bytes; reads ``2GiB`` or a number of bytes."""
