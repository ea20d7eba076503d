"""What the stores need of a database, whichever it is.

SQL stays in the subset that SQLite and PostgreSQL share: named parameters, ``RETURNING``,
``ON CONFLICT``, and ``now_us()``, the database's own clock in microseconds, which each adapter
defines. ``shared.sqlite`` is the adapter of today.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Params: TypeAlias = Mapping[str, Any]


class Row(Protocol):
    """A row that a statement returned."""

    def __getitem__(self, column: str, /) -> Any: ...

    def keys(self) -> Sequence[str]:
        """The names of its columns, in their order."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Its values, in the order of the columns."""
        ...


class Tx(Protocol):
    """A transaction, in the database's thread. All that is done with it is kept, or nothing is.

    Attributes:
        listener: hears of what was committed; whoever opened the database gave it.
        memory: what is known of the database as this transaction left it, for those that come;
            emptied when anything that was written is undone. One that only reads has its own.
    """

    listener: Any
    memory: dict[str, Any]

    def rows(self, sql: str, params: Params = ...) -> Sequence[Row]:
        """Run one statement; the rows it returns."""
        ...

    def after(self, call: Callable[[], None]) -> None:
        """To be called in the event loop once the transaction is durable, in the order of the
        commits, whatever has become of the caller; it must not raise.
        """
        ...


class Database(Protocol):
    """Reads committed rows, and makes changes durable.

    Attributes:
        listener: given to all transactions.
        memory: of the transactions that write; their thread changes it.
    """

    listener: Any
    memory: dict[str, Any]

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        """Read committed rows."""
        ...

    async def read(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> T:
        """Run ``work`` on one committed state of the database."""
        ...

    async def read_list(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> T:
        """As :meth:`read`, for a caller's list: calls of :meth:`read` never wait for it."""
        ...

    async def write(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> T:
        """Run ``work`` in a transaction; return its value once that is durable."""
        ...

    def submit(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> Future[T]:
        """As :meth:`write`; several that are handed in one after the other are made in this order,
        in one transaction as far as they fit.
        """
        ...

    async def empty_log(self) -> bool:
        """Cut off the log of changes, with what it holds of deleted rows. False: somebody reads."""
        ...

    async def maintain(self) -> bool:
        """To be called now and then: give unused space back, some at a time. Returns whether there
        is more.
        """
        ...


def listed(values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """For ``IN (…)``: the names of parameters, and the parameters."""
    params = {f"listed{number}": one for number, one in enumerate(values)}
    return ", ".join(f":{name}" for name in params) or "NULL", params
