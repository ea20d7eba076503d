"""What is counted of attempts while the agent runs, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector

from shared.clock import Clock
from shared.metrics import LONG_S, seconds


class Measures:
    """The steps of attempts, timed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phases = seconds(
            "ferryman_attempt_phase_seconds",
            "Steps of attempts that went well, by their names.",
            "phase",
            bounds=LONG_S,
        )

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        return (self._phases,)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around a step: sandbox (its directory is made), unpack, start (up to the closed gate),
        slot (waits for one), run, pack.
        """
        began = self._clock.monotonic()
        yield
        self.took(name, self._clock.monotonic() - began)

    def took(self, name: str, took_s: float) -> None:
        """A step that went well took so long."""
        self._phases.labels(name).observe(took_s)
