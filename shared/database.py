"""SQLite behind a thin adapter: one writer that shares commits, readers that never wait for it.

Each change runs in a transaction and is durable (``synchronous=FULL``) before
:meth:`Database.write` returns. Changes that arrive while a commit is under way share the next one,
and so its fsync, and its one hop to the connection's thread: waking a thread and being woken by it
costs more than most statements. SQL stays in the subset that PostgreSQL has too: named parameters,
``RETURNING``, ``ON CONFLICT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import aiosqlite

T = TypeVar("T")
Row: TypeAlias = sqlite3.Row
Params: TypeAlias = Mapping[str, Any]
Migration: TypeAlias = tuple[str, ...]
"""Statements that lead from one version of the schema to the next."""

_CHUNK: Final = 64  # rows that aiosqlite fetches at once, where it iterates
_BATCH: Final = 256  # changes in one commit: bounds how long the first of them waits


class DatabaseUnavailable(Exception):
    """The database cannot take or give data now.

    Attributes:
        full: the disk is full (HTTP 507); else it is damaged, locked or unreadable (503).
        damaged: the file is corrupt; only an operator can mend that.
    """

    def __init__(self, cause: sqlite3.Error) -> None:
        text = str(cause)
        self.full = "full" in text
        self.damaged = "malformed" in text or "not a database" in text
        super().__init__(
            "no space left for the database" if self.full else f"the database is unusable: {text}"
        )


class Transaction(Protocol):
    """What a change works with. Everything it does is kept, or nothing is."""

    async def rows(self, sql: str, params: Params = ...) -> Sequence[Row]:
        """Run one statement; the rows it returns."""
        ...


Change: TypeAlias = Callable[[Transaction], Awaitable[T]]
"""Runs in the connection's thread, and may wait for its transaction only. May be run a second time
from the start, when another change spoilt the shared transaction."""


class _Connection(aiosqlite.Connection):
    """Runs whole pieces of work in its thread, where aiosqlite's own methods run one statement."""

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: sqlite3.connect(path, isolation_level=None), _CHUNK)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        value: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return value

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        return list(await self.execute_fetchall(sql, params or {}))


class _Here:
    """A transaction in the thread that the connection belongs to: nothing is waited for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        return self._connection.execute(sql, params or {}).fetchall()


def _commit(changes: Sequence[Change[Any]]) -> Callable[[sqlite3.Connection], list[Any]]:
    """Work for the connection's thread: all changes in one transaction; their values."""

    def work(connection: sqlite3.Connection) -> list[Any]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            values = [_drive(change(_Here(connection))) for change in changes]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.rollback()
            raise
        return values

    return work


def _drive(change: Awaitable[T]) -> T:
    """The value of a change that never has to wait."""
    steps = change.__await__()
    try:
        next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("a change of the database waited for something else")


class Database:
    """One SQLite file, opened by :meth:`open` and closed by :meth:`close`."""

    def __init__(self, writer: _Connection, reader: _Connection) -> None:
        self._writer, self._reader = writer, reader
        self._waiting: asyncio.Queue[tuple[Change[Any], asyncio.Future[Any]] | None] = (
            asyncio.Queue()
        )
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.trouble: DatabaseUnavailable | None = None
        """The last failure, until a commit succeeds again; for ``/health``."""

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[Migration]) -> Database:
        """Open or create the file and bring its schema up to date. What is created is closed to
        others, whatever the folder lets through; SQLite gives its other files the same mode.

        Raises:
            DatabaseUnavailable: damaged, not a database, no space, not writable.
            ValueError: written by a newer version.
        """
        opened: list[_Connection] = []
        with contextlib.suppress(OSError):  # SQLite says why it cannot be made
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            for _ in range(2):
                connection = _Connection(path)
                await connection
                opened.append(connection)
                connection.row_factory = sqlite3.Row
                for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                    await connection.execute_fetchall(f"PRAGMA {pragma}")
                await connection.execute_fetchall("PRAGMA busy_timeout=10000")
            await opened[1].execute_fetchall("PRAGMA query_only=ON")
            database = cls(*opened)
            await database._migrate(migrations)
        except BaseException as problem:
            for connection in opened:
                await connection.close()
            if isinstance(problem, sqlite3.Error):
                raise DatabaseUnavailable(problem) from problem
            raise
        database._task = asyncio.create_task(database._commit_batches(), name="database-writer")
        return database

    async def _migrate(self, migrations: Sequence[Migration]) -> None:
        await self._writer.rows(
            "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL) STRICT"
        )
        found = await self._writer.rows("SELECT max(version) AS version FROM schema_version")
        version = found[0]["version"] or 0
        if version > len(migrations):
            raise ValueError(
                f"the database has schema version {version}, this program knows {len(migrations)}: "
                "it was written by a newer version"
            )
        for number in range(version, len(migrations)):
            await self._writer.rows("BEGIN IMMEDIATE")
            for statement in migrations[number]:
                await self._writer.rows(statement)
            await self._writer.rows(
                "INSERT INTO schema_version (version) VALUES (:version)", {"version": number + 1}
            )
            await self._writer.rows("COMMIT")

    async def close(self) -> None:
        """Finish what was handed in, then close: aiosqlite's threads would keep us alive."""
        self._closed = True
        if self._task is not None:
            self._waiting.put_nowait(None)
            await self._task
        await self._reader.close()
        await self._writer.close()

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        """Read committed rows.

        Raises:
            DatabaseUnavailable
        """
        try:
            return await self._reader.rows(sql, params)
        except sqlite3.DatabaseError as problem:
            raise self._unavailable(problem) from problem

    async def write(self, change: Change[T]) -> T:
        """Run ``change`` in a transaction; return its value once that is durable.

        Raises:
            DatabaseUnavailable: nothing was kept.
            Whatever ``change`` raises: nothing of it was kept.
        """
        if self._closed:
            raise DatabaseUnavailable(sqlite3.ProgrammingError("it is closed"))
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((change, future))
        # Shielded by nature: a cancelled caller leaves its change in the queue, where it is kept
        # whole.
        return await future

    async def _commit_batches(self) -> None:
        last = False
        while not last:
            batch = [await self._waiting.get()]
            while len(batch) < _BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            last = None in batch
            changes = [item for item in batch if item is not None]
            if changes and not await self._commit(changes) and len(changes) > 1:
                for change in changes:  # one of them spoilt the shared transaction
                    await self._commit([change])
            elif changes:
                continue

    async def _commit(self, changes: list[tuple[Change[Any], asyncio.Future[Any]]]) -> bool:
        """One transaction. False: rolled back, and with several changes none was told yet."""
        try:
            values = await self._writer.run(_commit([change for change, _ in changes]))
        except Exception as problem:  # noqa: BLE001 - handed to whoever asked for the change
            if len(changes) == 1:
                told = (
                    self._unavailable(problem)
                    if isinstance(problem, sqlite3.DatabaseError)
                    and not isinstance(problem, sqlite3.IntegrityError)
                    else problem
                )
                if not changes[0][1].cancelled():
                    changes[0][1].set_exception(told)
            return False
        self.trouble = None
        for (_, future), value in zip(changes, values, strict=True):
            if not future.cancelled():
                future.set_result(value)
        return True

    def _unavailable(self, problem: sqlite3.Error) -> DatabaseUnavailable:
        self.trouble = DatabaseUnavailable(problem)
        return self.trouble
