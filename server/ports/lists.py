"""What is asked for of many jobs at once, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.domain.jobs import Event
from shared.clock import Micros
from shared.wire import JobState, Reason


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a list shows; None: any."""

    user_id: str | None = None
    service: str | None = None
    state: JobState | None = None
    tag: str | None = None
    submitted_by: str | None = None
    reason: Reason | None = None
    name: str | None = None
    parent_id: int | None = None
    schedule_id: int | None = None
    after: int | None = None
    """That begin after this job, or take its files."""
    dead_letter: bool = False
    """Only dead letters."""
    since: Micros | None = None
    """Uploaded then or later."""
    until: Micros | None = None
    """Uploaded before."""
    among: tuple[JobState, ...] | None = None
    """In one of these states."""
    text: str | None = None
    """With this number, or with this text in the name, a tag or the message, in any case of
    letters."""
    top_level: bool = False
    """Only jobs without a parent: a batch is one job of the list."""
    batch: bool = False
    """Only jobs with children."""

    @property
    def states(self) -> tuple[JobState, ...] | None:
        """Those that ``state`` or ``among`` allows; None: any."""
        return self.among if self.state is None else (self.state,)


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Some events, oldest first."""

    items: Sequence[Event]
    reached: int
    """Every event up to this ``seq`` was looked at."""
    more: bool
    """There are later ones already."""


@dataclass(frozen=True, slots=True)
class Held:
    """Slots that one user's jobs of one service hold on one agent."""

    service: str
    user_id: str
    agent: str
    slots: int
    running: int = 0
    """Those of them whose job is Running."""
