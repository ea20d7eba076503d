"""How the parts of a running server are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.clock import Micros


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk with the data folder, in bytes.

    Attributes:
        min_free: what uploads must leave.
    """

    free: int
    total: int
    min_free: int


@dataclass(frozen=True, slots=True)
class LoopState:
    """Attributes:
    last_ok_s: seconds since its last sweep that ended well.
    stuck: that is far longer ago than it should be.
    """

    name: str
    last_ok_s: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class Vitals:
    """Attributes:
    disk: None: it does not answer.
    database_bytes: None: it cannot be read.
    database_free_bytes: of these, what is not in use; None likewise.
    """

    started_at: Micros
    disk: Disk | None
    database_bytes: int | None
    database_free_bytes: int | None
    loops: Sequence[LoopState]
