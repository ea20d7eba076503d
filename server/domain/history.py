"""How long a job was in which state, from its moves."""

from __future__ import annotations

from collections.abc import Sequence

from server.domain.jobs import Event
from shared.clock import SECOND, Micros, utc
from shared.wire import HistoryEntry


def history(moves: Sequence[Event], now: Micros) -> list[HistoryEntry]:
    """The states that a job had, each with the time for which it was in it.

    Args:
        moves: events of its moves, oldest first.

    Returns:
        An entry for each; the last one lasts until now. A clock that was set back makes no time
        negative.
    """
    ends = [*(move.at for move in moves[1:]), now]
    return [
        HistoryEntry(
            status=move.state,
            at=utc(move.at),
            seconds=max(0, end - move.at) / SECOND,
            attempt=move.attempt,
            agent=move.agent,
            reason=move.reason,
            message=move.message if move.reason else None,
        )
        for move, end in zip(moves, ends, strict=bool(moves))
    ]
