"""The states that a job has had, as a drawing: one bar, a piece for each state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.domain import states
from shared.wire import HistoryEntry, JobState

_MOST: Final = 30
"""Pieces that are drawn; of a longer history the newest."""
_WIDTH: Final = 100.0
_LEAST: Final = 3.2
"""Width of the shortest piece, where there is room for it: its shape can be seen."""
_GAP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Piece:
    """One state.

    Attributes:
        x, width: of 100.
        going_on: it is the state now, and may change.
    """

    entry: HistoryEntry
    x: float
    width: float
    going_on: bool

    @property
    def state(self) -> JobState:
        return self.entry.status

    @property
    def room(self) -> str:
        """What can be written into it: ``long`` and ``word`` (of these not on a phone) have the
        state and its duration, ``shape`` the shape alone, as ``""`` has not even that.
        """
        if self.width >= 30:
            return "long"
        return "word" if self.width >= 20 else "shape" if self.width >= _LEAST - _GAP else ""


def pieces(history: Sequence[HistoryEntry]) -> list[Piece]:
    """What is drawn: as long as the states lasted, but each of them visible.

    An end is drawn short: how long ago it was says nothing about the job.
    """
    shown = _merged(history)[-_MOST:]
    if not shown:
        return []
    lasted = [0.0 if one.status in states.ENDED else one.seconds for one in shown]
    least = min(_LEAST, _WIDTH / len(shown))
    rest, total = _WIDTH - least * len(shown), sum(lasted)
    found, x = [], 0.0
    for number, (entry, seconds) in enumerate(zip(shown, lasted, strict=True), 1):
        part = seconds / total if total else 1 / len(shown)
        width = least + rest * part
        now = number == len(shown) and entry.status not in states.ENDED
        found.append(Piece(entry, round(x, 2), round(max(width - _GAP, 0.1), 2), now))
        x += width
    return found


def took_s(history: Sequence[HistoryEntry]) -> float:
    """Seconds from the upload to the end, or until now."""
    return sum(one.seconds for one in history if one.status not in states.ENDED)


def _merged(history: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """One entry where a state follows itself, as of a parent that goes on with its children."""
    found: list[HistoryEntry] = []
    for entry in history:
        last = found[-1] if found else None
        if last and (last.status, last.attempt) == (entry.status, entry.attempt):
            found[-1] = last.model_copy(update={"seconds": last.seconds + entry.seconds})
        else:
            found.append(entry)
    return found
