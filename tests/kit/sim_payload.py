"""What a simulated agent holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from shared.clock import Micros, iso
from shared.ids import AttemptKey
from shared.wire import LiveDoc, PayloadDoc, PayloadState, Reason, ResultInfo, RetryLater

FANS_OUT = "fan-out"
"""The token of a bundle that leaves children begins so."""
ALIVE = frozenset({PayloadState.PREPARED, PayloadState.RUNNING})


@dataclass
class Payload:
    """What a simulated agent holds."""

    id: int
    key: AttemptKey
    status: PayloadState = PayloadState.PREPARED
    result: bytes = b""
    reason: Reason | None = None
    interrupted: bool = False
    started: bool = False
    token: str = ""
    live: LiveDoc | None = None
    created: Micros | None = None
    exit_code: int = 3
    retry_later: RetryLater | None = None

    def doc(self, now: Micros) -> PayloadDoc:
        ended = self.status not in ALIVE
        info = ResultInfo(
            size=len(self.result),
            sha256=hashlib.sha256(self.result).hexdigest(),
            children=2 if self.token.startswith(FANS_OUT) else 0,
        )
        return PayloadDoc(
            id=self.id,
            status=self.status,
            server="sim",
            key=str(self.key),
            bundle_digest=self.token,
            reason=self.reason,
            live=self.live,
            retry_later=self.retry_later,
            created_at=None if self.created is None else iso(self.created),
            message="simulated",
            exit_code=self.exit_code if self.reason is Reason.EXIT_CODE else None,
            interrupted=self.interrupted,
            killed=self.status is PayloadState.KILLED,
            result=info if ended and self.result else None,
            started_at=iso(now) if self.started else None,
        )
