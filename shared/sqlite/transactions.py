"""Transactions: what a change of the database works with, and how several share one commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Sequence
from typing import Any

from shared.sql import Change, Params, T


class InThreadTransaction:
    """A transaction in the connection's own thread: no statement has to be waited for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[sqlite3.Row]:
        return self._connection.execute(sql, params or {}).fetchall()

    locked_rows = rows  # there is one writer


def commit_together(
    connection: sqlite3.Connection, changes: Sequence[Change[Any]]
) -> tuple[list[Any], bool]:
    """Run all changes in one transaction, in the connection's thread.

    Returns:
        The values of the changes, and whether anything was written.
    """
    before = connection.total_changes
    connection.execute("BEGIN IMMEDIATE")
    try:
        values = [_run(change(InThreadTransaction(connection))) for change in changes]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise
    return values, connection.total_changes > before


def _run(change: Awaitable[T]) -> T:
    """The value of a change that never has to wait."""
    steps = change.__await__()
    try:
        next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("a change of the database waited for something else")
