"""The report about a user who is forgotten, exactly as it is on the wire."""

from __future__ import annotations

from pydantic import Field

from ferryman.models import Wire


class WaitingJob(Wire):
    """A job that is not gone yet."""

    id: int
    """Its number."""
    why: str
    """Why it is not gone."""


class ForgottenDoc(Wire):
    """``POST /api/v1/forget-user``: what was removed, and what is left."""

    found: dict[str, int] = Field(default_factory=dict)
    """With ``dry_run``: kind -> how much there is."""
    removed: dict[str, int] = Field(default_factory=dict)
    """Kind -> how much was removed. ``audit``: entries with another name now."""
    waiting: list[WaitingJob] = Field(default_factory=list)
    """Jobs that go as soon as it is known that they do not run."""
    kept: list[str] = Field(default_factory=list)
    """What stays, in sentences."""
    done: bool
    """Nothing is left; else call it again when the agents of the jobs that wait are back."""
