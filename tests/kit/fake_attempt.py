"""An attempt that records how it is stopped."""

from __future__ import annotations

from typing import cast

from client_agent.sandbox.base import Process
from shared.wire import Reason


class FakeAttempt:
    def __init__(self, pid: int = -1) -> None:
        self.pid = pid
        self.stops: list[tuple[Reason | None, str, bool]] = []

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        self.stops.append((reason, message, grace))


def attempt_of(fake: FakeAttempt) -> Process:
    return cast("Process", fake)
