"""Agents as the server remembers them, and what can go wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shared.clock import Micros
from shared.wire import AgentState

REPLACED: Final = "another agent answers under its name"
REMOVED: Final = "it was taken out of the server's settings"
_NEW_ATTEMPT: Final = frozenset({"stale_attempt", "key_refused", "digest_mismatch"})
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
        agent_id: None: it says none, because it is job-orchestrator's.
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


class AgentError(Exception):
    """Base of what an agent, or the way to it, can answer."""


class Unreachable(AgentError):
    """No answer. ``sent``: the request may still have arrived."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RefusedByAgent(AgentError):
    """A clear no.

    Attributes:
        final: it will be the same next time.
        retry_after_s: when to ask again, where the agent said so.
    """

    def __init__(
        self, code: str, message: str, *, final: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.final, self.retry_after_s = code, final, retry_after_s

    @property
    def wants_new_attempt(self) -> bool:
        """It takes the job under another attempt's number."""
        return self.code in _NEW_ATTEMPT

    @property
    def offered(self) -> bool:
        return self.code != "not_offered"

    @property
    def declined(self) -> bool:
        """It says nothing about the job: the agent takes none of the service now."""
        if self.wants_new_attempt:
            return False
        return not self.offered or (not self.final and self.retry_after_s is not None)


class NoSuchPayload(AgentError):
    """The agent does not know the payload (any more)."""
