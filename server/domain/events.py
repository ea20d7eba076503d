"""What happens to a job beside its moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.wire import Level


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is no move, to be written."""

    event: str
    """Dotted name."""
    message: str
    level: Level = "info"
    fields: Mapping[str, Any] = field(default_factory=dict)
    """For programs, beside the message."""
