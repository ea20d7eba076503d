"""Heartbeats of what runs all the time: a loop that has not gone round for too long is stuck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shared.clock import Clock

PATIENCE_S: Final = 300.0
"""For one round, beside the time between rounds: a sweep over very many rows, a slow disk."""


@dataclass(slots=True)
class _Beat:
    at: float
    within_s: float


class Heartbeats:
    """When each loop went round last, successfully or not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beats: dict[str, _Beat] = {}
        self._checks: dict[str, Callable[[], bool]] = {}

    def add(self, name: str, every_s: float) -> Callable[[], None]:
        """What a loop that goes round at least that often calls in each round."""
        beat = self._beats[name] = _Beat(self._clock.monotonic(), every_s + PATIENCE_S)

        def tick() -> None:
            beat.at = self._clock.monotonic()

        return tick

    def check(self, name: str, is_alive: Callable[[], bool]) -> None:
        """Count what says itself whether it is alive as a loop."""
        self._checks[name] = is_alive

    def stuck(self) -> list[str]:
        """Those that have not gone round for too long."""
        now = self._clock.monotonic()
        late = [name for name, beat in self._beats.items() if now - beat.at > beat.within_s]
        return late + [name for name, is_alive in self._checks.items() if not is_alive()]
