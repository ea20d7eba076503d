"""Agents as the server remembers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shared.clock import Micros


class AgentState(StrEnum):
    """What an operator wants of an agent, and what became of it."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It gets no new jobs; those that it has are followed to their end."""
    LOST = "lost"
    """Given up: its attempts were ended. It is active again once it is reached."""
    RETIRED = "retired"
    """Not used any more."""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """A row of the store."""

    id: str
    name: str
    kind: str
    """"ferryman" or "job-orchestrator"."""
    address: str
    state: AgentState
    created_at: Micros
    message: str = ""
    """Why it is in this state."""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    last_heard_at: Micros | None = None
