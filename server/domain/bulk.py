"""What is done with many jobs in one request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from server.domain import states
from shared.wire import JobState


class BulkAction(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    TAG = "tag"
    UNTAG = "untag"
    MOVE = "move"


_OPEN: Final = tuple(state for state in JobState if state not in states.ENDED)
AMONG: Final = {
    BulkAction.CANCEL: _OPEN,
    BulkAction.MOVE: _OPEN,
    BulkAction.RETRY: tuple(state for state in JobState if state in states.RETRIED_BY_HAND),
}
"""Where a filter names no state: those whose jobs the action can change."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one job."""

    job_id: int
    ok: bool
    code: str
    message: str
