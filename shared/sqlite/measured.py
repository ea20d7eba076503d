"""Commits, measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector

from shared.metrics import seconds


class Commits:
    """How long they take."""

    def __init__(self) -> None:
        self._seconds = seconds(
            "ferryman_database_commit_seconds", "Transactions, from their begin until durable."
        )

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        return (self._seconds,)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Around a transaction; one that is rolled back is left out."""
        since = asyncio.get_running_loop().time()
        yield
        self._seconds.observe(asyncio.get_running_loop().time() - since)
