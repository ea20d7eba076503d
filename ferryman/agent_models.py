"""The documents about agents, exactly as they are on the wire."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from ferryman.models import Wire


class AgentState(StrEnum):
    """What an operator wants of an agent, and what became of it."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It gets no new jobs; those that it has are followed to their end."""
    LOST = "lost"
    """Given up: its attempts were ended. It is active again once it is reached."""
    RETIRED = "retired"
    """Not used any more: it gets no jobs and is not contacted."""


AgentAction: TypeAlias = Literal["drain", "resume", "retire", "lost"]


class AgentDoc(Wire):
    """An agent, as an operator sees it."""

    name: str
    id: str
    """Its own, which it keeps under another name or address."""
    state: AgentState
    message: str = ""
    """Why it is in this state."""
    up: bool
    """Whether it may get new jobs."""
    reachable: bool
    trouble: str = ""
    """Why it gets no new jobs, or that it is silent, in a sentence; empty: all is well."""
    warnings: list[str] = Field(default_factory=list)
    """What is wrong with it although it may get jobs: its clock, its version, its sandbox."""
    clock_ahead_s: float | None = None
    """How far its clock is ahead of the server's, as far as an HTTP date says; None: not known."""
    kind: str
    """"ferryman" or "job-orchestrator"; empty: not known any more."""
    address: str
    in_settings: bool
    jobs: int
    """Jobs of this server that it has."""
    running: int | None = None
    """Those of them that run now; None: it cannot be reached, or has been silent for 2 s."""
    slots: int | None = None
    max_runs: dict[str, int] = Field(default_factory=dict)
    """service -> most jobs of it that it may have at once; missing: any number."""
    load: float | None = None
    """CPU use of its host, in percent; None: not known now."""
    version: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    health: dict[str, Any] | None = None
    """What it said of itself last; ``running`` and ``load`` as above."""
    created_at: AwareDatetime
    last_heard_at: AwareDatetime | None = None
    unreachable_s: float | None = None
    """Seconds since it could be reached, as far as a server was running; None: it can be."""


class AgentPage(Wire):
    """``GET /api/v1/agents``."""

    items: list[AgentDoc]
