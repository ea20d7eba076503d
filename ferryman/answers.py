"""Answers that only the client gives a shape; the others are in ``shared.wire``."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server has the bundle, safely; the job waits its turn."""

    id: int
    status: str
    message: str
    idempotency_key: str
    """Sending the same bundle under this key again gives the same job."""
    warnings: tuple[str, ...] = ()
    """What was noticed: wishes that were cut to what the service allows, for example."""


class Trouble(BaseModel):
    """Something that is wrong with a server."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    kind: str
    message: str
    advice: str
    is_serious: bool
    """Whether it keeps the server from taking new work."""


class Troubles(BaseModel):
    """``GET /api/v1/status``, of which this is a part."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    troubles: list[Trouble]


class Health(BaseModel):
    """``GET /health``; further fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    status: str
    database: str = ""
    message: str = ""
    version: str | None = None
    """Of the server; for those whom it knows."""
    agents: dict[str, str] = Field(default_factory=dict)
    """Agent -> "up" or "down"."""
    agent: str | None = None
    date: AwareDatetime | None = None
    """The server's clock when it answered, to the second."""

    @property
    def is_agents(self) -> bool:
        """Whether an agent answered, and not a server. It says its name only to whom it knows."""
        return "agent" in self.model_fields_set
