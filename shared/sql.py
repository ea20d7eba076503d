"""A transaction, as the stores have it.

SQL stays in the subset that SQLite and PostgreSQL share: named parameters, ``RETURNING``,
``ON CONFLICT``. Only ``shared.sqlite`` and this file know the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from sqlite3 import Connection, Row
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

__all__ = ["AMONG", "P", "Params", "Row", "T", "Tx", "among"]
T = TypeVar("T")
P = ParamSpec("P")
Params: TypeAlias = Mapping[str, Any]


class Tx:
    """A transaction, in the database's thread. All that is done with it is kept, or nothing is.

    Attributes:
        listener: hears of what was committed; whoever opened the database gave it.
        memory: what is known of the database as this transaction left it, for those that come;
            emptied when anything that was written is undone. One that only reads has its own.
        after: what is given to it is called in the event loop once the transaction is durable, in
            the order of the commits, whatever has become of the caller; it must not raise.
    """

    __slots__ = ("_connection", "after", "calls", "listener", "memory")

    def __init__(
        self, connection: Connection, listener: Any = None, memory: dict[str, Any] | None = None
    ) -> None:
        self._connection, self.listener = connection, listener
        self.memory = {} if memory is None else memory
        self.calls: list[Callable[[], None]] = []
        self.after = self.calls.append

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        """Run one statement; the rows it returns."""
        return self._connection.execute(sql, params or {}).fetchall()

    def many(self, sql: str, params: Iterable[Params]) -> None:
        """Run one statement that returns nothing with each of the parameters."""
        self._connection.executemany(sql, params)

    def each(self, sql: str) -> Iterable[Row]:
        """As :meth:`rows`, one after the other, for rows that are too many to hold."""
        return self._connection.execute(sql)


AMONG: Final = "IN (SELECT value FROM json_each(:among))"
"""Behind a column: it is one of the values of :func:`among`."""


def among(values: Iterable[Any]) -> dict[str, Any]:
    """The parameter of :data:`AMONG`."""
    return {"among": json.dumps([*values])}
