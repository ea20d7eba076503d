"""The payloads that changed last, in memory: most reads are about these."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from client_agent.payloads.payload import Payload

KEPT: Final = 200
"""Payloads; one may have some 100 KB of live values."""


class RecentPayloads:
    """The latest state of each payload that changed since the start, but for those that were
    acknowledged, and the oldest, if there are too many.

    Args:
        last: number of the latest change before.
    """

    def __init__(self, last: int) -> None:
        self._complete_after = last
        """Of every later change the payload is here, unless it was acknowledged."""
        self._payloads: dict[int, Payload] = {}
        """In the order of changes."""

    def get(self, payload_id: int) -> Payload | None:
        """None: it is not here; it may be stored all the same."""
        return self._payloads.get(payload_id)

    def put(self, payload: Payload) -> None:
        """To be called with each change, in their order."""
        self._payloads.pop(payload.id, None)
        self._payloads[payload.id] = payload
        if len(self._payloads) > KEPT:
            oldest = self._payloads.pop(next(iter(self._payloads)))
            self._complete_after = oldest.changed

    def forget(self, payload_id: int) -> None:
        """It was acknowledged, or removed."""
        self._payloads.pop(payload_id, None)

    def changed_after(self, after: int, server: str | None, limit: int) -> Sequence[Payload] | None:
        """The oldest of the later changes, in their order; None: some of them may be missing.

        Args:
            server: only payloads of that server; None: of all.
        """
        if after < self._complete_after:
            return None
        later = takewhile(lambda one: one.changed > after, reversed(self._payloads.values()))
        found = [one for one in later if server is None or one.server == server]
        return found[::-1][:limit]
