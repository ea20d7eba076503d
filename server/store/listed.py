"""What lists and counts read of the jobs, in the words of the indexes that hold it.

A job is in one of four groups of indexes: open or ended, and a child of a batch or not. Those of
ended jobs hold the newest of each state together. Open ones that hold a slot are few, and are read
by the index of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from server.domain import states
from server.store.statements import HELD
from shared.wire import JobState

_ENDED: Final = "state NOT IN ('Queued', 'Processing', 'Submitted', 'Running', 'Unknown')"
_OPEN: Final = frozenset(JobState) - states.ENDED
_TOP: Final = "parent_id IS NULL"
_CHILD: Final = "parent_id IS NOT NULL"
_DEFERRED: Final = "deferred = 1 AND state IN ('Queued', 'Running') AND state = 'Running'"
Which: TypeAlias = Mapping[str, str]
"""Columns of a job, user or service, and what each is equal to."""


def queued(which: Which) -> str:
    """The ids of the queued jobs, at most ``:most``."""
    return _together("SELECT id FROM jobs", which, [JobState.QUEUED], "1 = 1 LIMIT :most")


def counted(which: Which, *, top_level: bool = False) -> str:
    """How many jobs of each state there are, each counted up to ``:most``."""
    parts = []
    for state in JobState:
        found = _together(
            "SELECT 1 FROM jobs", which, [state], "1 = 1 LIMIT :most", top_level=top_level
        )
        parts.append(f"SELECT '{state.value}' AS state, count(*) AS jobs FROM ({found}) AS counted")  # noqa: S608 - no user input
    return " UNION ALL ".join(parts)


def newest(which: Which, among: Sequence[JobState] | None, *, top_level: bool) -> str:
    """The ids of the newest ``:limit`` jobs from ``:least`` on and below ``:before``.

    Args:
        among: their states; None: any.
    """
    end = "{id} >= :least AND {id} < :before ORDER BY {id} DESC LIMIT :limit"
    found = _together("SELECT id FROM jobs", which, among, end, top_level=top_level)
    return f"SELECT id FROM ({found}) AS found ORDER BY id DESC LIMIT :limit"  # noqa: S608 - no user input


def _together(
    select: str,
    which: Which,
    among: Sequence[JobState] | None,
    end: str,
    *,
    top_level: bool = False,
) -> str:
    parts = []
    for group, indexed in _groups(among, top_level=top_level):
        # What is looked up in few rows is written so that no other index is taken for it.
        number, plain = ("id", "") if indexed else ("(id + 0)", " || ''")
        fits = [f"{name}{plain} = {value}" for name, value in which.items()]
        where = " AND ".join((*fits, group, end.format(id=number)))
        parts.append(f"SELECT * FROM ({select} WHERE {where}) AS part")  # noqa: S608 - no user input
    return f"{' UNION ALL '.join(parts)}{' LIMIT :most' if 'most' in end else ''}"


def _groups(among: Sequence[JobState] | None, *, top_level: bool) -> Iterator[tuple[str, bool]]:
    """Conditions that an index each holds, and whether it has the jobs by user and service, in the
    order of their numbers."""
    chosen = set(JobState if among is None else among)
    parents = (_TOP,) if top_level else (_TOP, _CHILD)
    for parent in parents:
        for state in sorted(chosen & states.ENDED):
            yield f"{parent} AND {_ENDED} AND state = '{state.value}'", True
    open_ones = sorted(chosen & _OPEN)
    if JobState.QUEUED in open_ones:
        words = ", ".join(f"'{state.value}'" for state in open_ones)
        only = "" if chosen >= _OPEN else f" AND state || '' IN ({words})"
        for parent in parents:
            yield f"{parent} AND ended_at IS NULL{only}", True
        return
    top = f" AND {_TOP}" if top_level else ""
    for state in open_ones:
        yield f"{HELD} AND state = '{state.value}'{top}", False
        if state is JobState.RUNNING:
            yield f"{_DEFERRED}{top}", False
