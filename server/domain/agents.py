"""Agents as the server remembers them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shared.clock import Micros
from shared.wire import AgentState

REPLACED: Final = "another agent answers under its name"
REMOVED: Final = "it was taken out of the server's settings"
_OWN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """A row of the store."""

    id: str
    name: str
    kind: str
    """"ferryman" or "job-orchestrator"; empty: not known any more."""
    address: str
    state: AgentState
    created_at: Micros
    message: str = ""
    """Why it is in this state."""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    last_heard_at: Micros | None = None
    unreachable_s: float = 0.0
    """For how long it could not be reached, as far as a server was running."""


@dataclass(frozen=True, slots=True)
class Contact:
    """An agent of the settings, and what it says of itself.

    Attributes:
        agent_id: None: it says none, because it is an older one or job-orchestrator's.
    """

    name: str
    kind: str
    address: str
    agent_id: str | None = None
    version: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_id(self) -> str | None:
        """The id that it says, if it is well formed."""
        return self.agent_id if self.agent_id and _OWN_ID.fullmatch(self.agent_id) else None


def id_by_name(name: str) -> str:
    """The id of an agent that has not said one. The ids that agents make have no colon."""
    return f"name:{name}"
