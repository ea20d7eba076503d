"""Results that came with an agent's report, from then until they are stored."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

from shared.wire import PayloadDoc

_MAX_BYTES: Final = 8 << 20
"""Of one agent's results in memory. What comes beyond that is let go, and fetched in its turn: an
agent that is faster than this server's disk costs no more memory than this."""


class ReportedResults:
    """Each can be taken once; then, and where it is not as announced, it has to be fetched."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, int], bytes] = {}
        """(agent, payload id) -> its result"""
        self._sizes = Counter[str]()
        """agent -> bytes of all of them"""

    def put(self, agent: str, payload_id: int, result: bytes) -> None:
        """Keep it, in place of an earlier one."""
        self.drop(agent, payload_id)
        if self._sizes[agent] + len(result) <= _MAX_BYTES:
            self._results[agent, payload_id] = result
            self._sizes[agent] += len(result)

    def has(self, agent: str, payload: PayloadDoc) -> bool:
        return (agent, payload.id) in self._results

    def take(self, agent: str, payload: PayloadDoc) -> bytes | None:
        """The result of the payload; None: it has not come, or not as announced."""
        result, announced = self.drop(agent, payload.id), payload.result
        if result is None or announced is None or len(result) != announced.size:
            return None
        return result if hashlib.sha256(result).hexdigest() == announced.sha256 else None

    def drop(self, agent: str, payload_id: int) -> bytes | None:
        """Forget it; what it was."""
        result = self._results.pop((agent, payload_id), None)
        if result is not None:
            self._sizes[agent] -= len(result)
        return result

    def forget_agent(self, agent: str | None) -> None:
        """Forget those of the agent (None: all)."""
        for name, payload_id in [one for one in self._results if agent in (None, one[0])]:
            self.drop(name, payload_id)
