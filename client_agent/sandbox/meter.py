"""What the host measures about an attempt while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.sandbox.attempt import Attempt, Verdict


class NoMeter:
    """Measures nothing. Implements :class:`client_agent.sandbox.attempt.Meter`."""

    def start(self, attempt: Attempt) -> None:
        pass

    def stop(self) -> None:
        pass

    def verdict(self) -> Verdict | None:
        return None

    def warnings(self) -> Sequence[str]:
        return ()

    def usage(self) -> tuple[float | None, int | None]:
        return None, None

    def kill(self) -> None:
        pass
