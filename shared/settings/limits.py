"""Limits of attempts: as a table of the settings, and in uploads, which may lower some of them."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field

from shared.settings.base import Section
from shared.units.durations import strip_bounded
from shared.units.sizes import Size, parse_size, say_size
from shared.wire import Limits

MIB: Final = 1 << 20
SIZES: Final = {"memory": 32 * MIB, "disk": 4 * MIB}
"""Fields in bytes -> the least with which an empty run.sh can run in a sandbox."""
COUNTS: Final = {"cpus": 0.1, "pids": 8}
"""Fields that are numbers -> the same."""
FIELDS: Final = (*SIZES, *COUNTS)


class LimitsTable(Section):
    """Table ``limits`` of a service."""

    cpus: float = Field(1.0, gt=0, allow_inf_nan=False)
    memory: Size = Field(2 << 30, gt=0)
    pids: int = Field(256, gt=0)
    disk: Size = Field(2 << 30, gt=0)
    log: Size = Field(16 << 20, gt=0)
    results: Size = Field(2 << 30, gt=0)
    network: bool = False

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


def parse_limit(name: str, text: str) -> float:
    """Bytes of ``memory`` and ``disk``, a number of ``cpus`` (fractions allowed) and ``pids``.

    Args:
        name: of :data:`FIELDS`.

    Raises:
        ValueError: not a value of that limit, or less than anything could run with.
    """
    if name in SIZES:
        size = parse_size(text)
        if size < SIZES[name]:
            raise ValueError(f"{text!r} is too little: it must be at least {say_size(SIZES[name])}")
        return size
    if name == "pids":
        text = strip_bounded(text, "64")
        if not re.fullmatch("[0-9]{1,9}", text):
            raise ValueError(f"{text!r} is not a whole number such as 64")
        count: float = int(text)
    else:
        text = strip_bounded(text, "2 or 0.5")
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?|\.[0-9]+", text):
            raise ValueError(f"{text!r} is not a number such as 2 or 0.5")
        count = float(text)
    if count < COUNTS[name]:
        raise ValueError(f"{text!r} is too little: it must be at least {COUNTS[name]:g}")
    return count
