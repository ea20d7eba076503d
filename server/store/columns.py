"""Records as rows, and back: a field of a record has the column of its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from shared.sql import Row, Tx

Record = TypeVar("Record")


class Columns(Generic[Record]):
    """The columns of a kind of record.

    Args:
        read: field -> what the column's value means, where that is not NULL.
        beside: fields that have no column of their name.
    """

    def __init__(
        self,
        kind: Callable[..., Record],
        read: Mapping[str, Callable[[Any], Any]],
        beside: Collection[str] = (),
    ) -> None:
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        names = [one.name for one in fields if one.name not in beside]
        self._kind, self._names, self._values = kind, names, itemgetter(*names)
        self._read = [(name, read[name]) for name in names if name in read]

    def record(self, row: Row, **beside: Any) -> Record:
        """The record of a row. ``beside``: the fields without a column."""
        # Asked for one name, SQLite's row compares it with the names of all columns before.
        named = dict(zip(row.keys(), row, strict=True))
        fields = dict(zip(self._names, self._values(named), strict=True))
        for name, read in self._read:
            if fields[name] is not None:
                fields[name] = read(fields[name])
        return self._kind(**fields, **beside)


def insert(tx: Tx, table: str, values: Mapping[str, Any], more: str = "") -> Sequence[Row]:
    """Add a row; ``more`` stands behind the values."""
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    return tx.rows(f"INSERT INTO {table} ({names}) VALUES ({marks}) {more}", values)  # noqa: S608
