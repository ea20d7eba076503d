"""Commits, measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.registry import Collector

from shared.metrics import counter, seconds


class Commits:
    """How long they take, and how many changes they make."""

    def __init__(self) -> None:
        self._seconds = seconds(
            "ferryman_database_commit_seconds", "Transactions, from their begin until durable."
        )
        self._changes = counter(
            "ferryman_database_changes", "Changes that were made; several share a transaction."
        )
        self._failures = counter(
            "ferryman_database_failures", "Transactions that were rolled back."
        )

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        return self._seconds, self._changes, self._failures

    @contextmanager
    def commit(self, changes: int) -> Iterator[None]:
        """Around a transaction with so many changes."""
        since = asyncio.get_running_loop().time()
        try:
            yield
        except BaseException:
            self._failures.inc()
            raise
        self._seconds.observe(asyncio.get_running_loop().time() - since)
        self._changes.inc(changes)
