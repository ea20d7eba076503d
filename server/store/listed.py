"""What lists and counts read of the jobs, in the words of the indexes ``jobs_listed*``.

Each of these has the jobs of one choice by whether they are children, state and number. So the
newest of each state are read, and put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from server.store.migrations import TOP
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


Which: TypeAlias = Mapping[str, str]
"""Columns of a job, user or service, and what each is equal to."""
_NEWEST: Final = "id >= :least AND id < :before ORDER BY id DESC LIMIT :limit"


def counted(which: Which, *, top_level: bool = False) -> str:
    """How many jobs of each state there are, each counted up to ``:most``."""
    parts = []
    for state in JobState:
        found = _together(which, [state], "1 = 1 LIMIT :most", top_level=top_level)
        one = f"SELECT 1 FROM ({found}) AS found LIMIT :most"  # noqa: S608 - no user input
        parts.append(f"SELECT '{state.value}' AS state, count(*) AS jobs FROM ({one}) AS counted")  # noqa: S608 - no user input
    return " UNION ALL ".join(parts)


def newest(which: Which, among: Sequence[JobState] | None, *, top_level: bool) -> str:
    """The ids of the newest ``:limit`` jobs from ``:least`` on and below ``:before``. ``among``:
    their states; None: any.
    """
    found = _together(which, among or JobState, _NEWEST, top_level=top_level)
    return f"SELECT id FROM ({found}) AS found ORDER BY id DESC LIMIT :limit"  # noqa: S608 - no user input


def _together(which: Which, among: Iterable[JobState], end: str, *, top_level: bool = False) -> str:
    fits = "".join(f"{name} = {value} AND " for name, value in which.items())
    return " UNION ALL ".join(
        f"SELECT * FROM (SELECT id FROM jobs WHERE {fits}{TOP} = {top} "  # noqa: S608 - no user input
        f"AND state = '{state.value}' AND {end}) AS part"
        for state in among
        for top in ((1,) if top_level else (1, 0))
    )
