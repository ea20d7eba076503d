"""Who makes a request, and in which role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a principal is for."""

    USER = "user"
    """A person, with jobs of their own."""
    PORTAL = "portal"
    """A program that submits jobs for its users."""
    OPERATOR = "operator"
    """Whoever runs the service."""
    AGENT = "agent"
    """A compute host."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request.

    Attributes:
        name: one principal's only; for logs, and kept with the jobs that it submits.
        role: None: not authenticated.
        user_id: whose jobs a ``user`` has; no other role has one.
    """

    name: str
    role: Role | None
    user_id: str | None = None

    def __post_init__(self) -> None:
        if (self.role is Role.USER) != bool(self.user_id):
            raise ValueError(f"principal {self.name}: a user has a user_id, nobody else has one")

    @property
    def authenticated(self) -> bool:
        return self.role is not None


ANONYMOUS: Final = Principal("anonymous", None)
LOCAL: Final = Principal("local", Role.OPERATOR)
"""Whoever calls a program without tokens, which listens on loopback only."""
