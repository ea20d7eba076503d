"""The states of a payload: one table of transitions, and the sets derived from it."""

from __future__ import annotations

from typing import Final

from shared.wire import PayloadState

FIRST: Final = PayloadState.PREPARED

NEXT: Final[dict[PayloadState, frozenset[PayloadState]]] = {
    PayloadState.PREPARED: frozenset(
        {PayloadState.RUNNING, PayloadState.INVALID, PayloadState.FAILED, PayloadState.KILLED}
    ),
    PayloadState.RUNNING: frozenset(
        {PayloadState.COMPLETED, PayloadState.FAILED, PayloadState.KILLED}
    ),
    PayloadState.COMPLETED: frozenset({PayloadState.CLEANED}),
    PayloadState.FAILED: frozenset({PayloadState.CLEANED}),
    PayloadState.INVALID: frozenset({PayloadState.CLEANED}),
    PayloadState.KILLED: frozenset({PayloadState.CLEANED}),
    PayloadState.CLEANED: frozenset(),
}

ENDED: Final = frozenset(s for s, after in NEXT.items() if after <= {PayloadState.CLEANED})
LIVE: Final = frozenset(PayloadState) - ENDED
