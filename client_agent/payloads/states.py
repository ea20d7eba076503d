"""The life of a payload: one table, and every set derived from it."""

from __future__ import annotations

from typing import Final

from shared.wire import PayloadState

S = PayloadState

FIRST: Final = S.PREPARED

NEXT: Final[dict[PayloadState, frozenset[PayloadState]]] = {
    S.PREPARED: frozenset({S.RUNNING, S.INVALID, S.FAILED, S.KILLED}),
    S.RUNNING: frozenset({S.COMPLETED, S.FAILED, S.KILLED}),
    S.COMPLETED: frozenset({S.CLEANED}),
    S.FAILED: frozenset({S.CLEANED}),
    S.INVALID: frozenset({S.CLEANED}),
    S.KILLED: frozenset({S.CLEANED}),
    S.CLEANED: frozenset(),
}

ENDED: Final = frozenset(s for s, after in NEXT.items() if S.CLEANED in after) | {S.CLEANED}
LIVE: Final = frozenset(S) - ENDED
