"""What an order says of the attempts that may share the start of a sandbox."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from ferryman.models.jobs import Wire

_MAX_ID: Final = 2**63 - 1


class PackTask(Wire):
    """The attempt may share the start of its sandbox with others of its batch, see ADR 32."""

    batch: int = Field(ge=0, le=_MAX_ID)
    """The job whose children they are."""
    most: int = Field(ge=1)
    """Attempts that may share one start."""
