"""What is counted where it happens, for ``/metrics``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector

from shared.metrics import OTHER, Transfers, counter


class Measures:
    """Counts since the server was started.

    Attributes:
        listeners: who follows events now, by what they follow.
    """

    def __init__(self) -> None:
        self.transfers = Transfers()
        self.dispatches = counter(
            "ferryman_dispatches",
            "Attempts that were given to an agent, or were to be, by how that went.",
            "agent",
            "outcome",
        )
        self.webhook_tries = counter(
            "ferryman_webhook_tries", "Tries to deliver a webhook.", "outcome"
        )
        self.listeners = Counter[str]()

    @contextmanager
    def listening(self, route: object) -> Iterator[None]:
        """While somebody follows the events of a route."""
        path = str(getattr(route, "canonical", OTHER))
        self.listeners[path] += 1
        try:
            yield
        finally:
            self.listeners[path] -= 1

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        sent = self.transfers
        return sent.count, sent.size, self.dispatches, self.webhook_tries
