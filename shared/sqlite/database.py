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

from shared.files.locks import FileLock
from shared.sqlite.migrations import Migration, NoRoomForCopy, check, file_size, migrate

T = TypeVar("T")
Row: TypeAlias = sqlite3.Row
Params: TypeAlias = Mapping[str, Any]

_KEPT_FREE: Final = 1_000  # pages that are not given back, because they will soon be needed
_GIVEN_BACK: Final = 1_000  # pages at a time: some milliseconds, in which others wait
_CHECKED: Final = 1 << 30
"""Bytes up to which a database is checked after a crash: some seconds of a slow disk."""
_CHUNK: Final = 64  # rows that aiosqlite fetches at once, where it iterates
_BATCH: Final = 256  # changes in one commit: bounds how long the first of them waits


class DatabaseUnavailable(Exception):
    """The database cannot take or give data now.

    Attributes:
        full: the disk is full (HTTP 507); else it is damaged, locked or unreadable (503).
        damaged: the file is corrupt; only an operator can mend that.
    """

    def __init__(self, cause: sqlite3.Error | NoRoomForCopy) -> None:
        text = str(cause)
        self.full = isinstance(cause, NoRoomForCopy) or "full" in text
        self.damaged = "malformed" in text or "not a database" in text
        if isinstance(cause, sqlite3.Error):
            text = f"the database is unusable: {text}"
            text = "no space left for the database" if self.full else text
        super().__init__(text)


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


def _commit(
    changes: Sequence[Change[Any]],
) -> Callable[[sqlite3.Connection], tuple[list[Any], bool]]:
    """Work for the connection's thread: all changes in one transaction; their values, and whether
    anything had to be written for them.
    """

    def work(connection: sqlite3.Connection) -> tuple[list[Any], bool]:
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        try:
            values = [_drive(change(_Here(connection))) for change in changes]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.rollback()
            raise
        return values, connection.total_changes > before

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

    def __init__(self, writer: _Connection, reader: _Connection, lists: _Connection) -> None:
        self._writer, self._reader, self._lists = writer, reader, lists
        self._lock: FileLock | None = None
        self._waiting: asyncio.Queue[tuple[Change[Any], asyncio.Future[Any]] | None] = (
            asyncio.Queue()
        )
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._troubles: dict[str, DatabaseUnavailable] = {}
        """What fails: "damage" until the next start, "read" and "write" until one succeeds."""
        self.upgraded_from: Path | None = None
        """The copy that was made before the schema was brought up to date, if it was just now."""

    @property
    def trouble(self) -> DatabaseUnavailable | None:
        """Why it cannot be used; None while it can. For ``/health``."""
        return next(iter(self._troubles.values()), None)

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[Migration]) -> Database:
        """Open or create the file and bring its schema up to date; a copy of it is made before.
        What is created is closed to others, whatever the folder lets through; SQLite gives its
        other files the same mode.

        Raises:
            DatabaseUnavailable: damaged, not a database, no space, not writable.
            NewerSchema: written by a newer version.
            FolderInUse: another process has it open.
            OSError: its lock file cannot be written.
        """
        lock = _lock(path)
        opened: list[_Connection] = []
        crashed = file_size(path.with_name(f"{path.name}-wal")) > 0
        with contextlib.suppress(OSError):  # SQLite says why it cannot be made
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            for _ in range(3):
                connection = _Connection(path)
                await connection
                opened.append(connection)
                connection.row_factory = sqlite3.Row
                if not file_size(path):  # only a new file can learn to shrink, and only now
                    await connection.execute_fetchall("PRAGMA auto_vacuum=INCREMENTAL")
                for pragma in (
                    "busy_timeout=10000",
                    "journal_mode=WAL",
                    "synchronous=FULL",
                    "foreign_keys=ON",
                ):
                    await connection.execute_fetchall(f"PRAGMA {pragma}")
            writer, *readers = opened
            for reader in readers:
                await reader.execute_fetchall("PRAGMA query_only=ON")
            database = cls(*opened)
            if crashed and file_size(path) <= _CHECKED:
                await writer.run(check)
            database.upgraded_from = await writer.run(
                lambda connection: migrate(connection, path, migrations)
            )
        except BaseException as problem:
            for connection in opened:
                await connection.close()
            lock.close()
            if isinstance(problem, sqlite3.Error | NoRoomForCopy):
                raise DatabaseUnavailable(problem) from problem
            raise
        database._lock = lock
        database._task = asyncio.create_task(database._commit_batches(), name="database-writer")
        return database

    async def close(self) -> None:
        """Finish what was handed in, then close: aiosqlite's threads would keep us alive."""
        self._closed = True
        if self._task is not None:
            self._waiting.put_nowait(None)
            await self._task
        for connection in (self._reader, self._lists, self._writer):
            await connection.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        """Read committed rows.

        Raises:
            DatabaseUnavailable
        """
        return await self._read(self._reader, sql, params)

    async def list_rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        """Read committed rows for somebody's list: whoever calls :meth:`rows` never waits for it.

        Raises:
            DatabaseUnavailable
        """
        return await self._read(self._lists, sql, params)

    async def _read(
        self, connection: _Connection, sql: str, params: Params | None
    ) -> Sequence[Row]:
        try:
            found = await connection.rows(sql, params)
        except sqlite3.DatabaseError as problem:
            raise self._unavailable("read", problem) from problem
        self._troubles.pop("read", None)
        return found

    async def probe(self) -> None:
        """Make a durable change of nothing: it succeeds only if changes can be made.

        Raises:
            DatabaseUnavailable
        """
        await self.write(lambda tx: tx.rows("UPDATE schema_version SET version = version"))

    async def maintain(self) -> bool:
        """To be called now and then: give unused space back to the disk, some at a time, and find
        out whether changes that failed can be made again.

        Returns:
            Whether there is more to give back.

        Raises:
            DatabaseUnavailable
        """
        if self.trouble is not None:
            await self.probe()
        (free,), (can,) = [
            (await self.rows(f"PRAGMA {name}"))[0] for name in ("freelist_count", "auto_vacuum")
        ]
        if can and free > _KEPT_FREE:
            await self._shrink(_GIVEN_BACK)
        return bool(can) and free > _KEPT_FREE + _GIVEN_BACK

    async def _shrink(self, most: int) -> None:
        # A page at each step of the statement; ``execute`` would make one step.
        script = f"PRAGMA incremental_vacuum({most:d})"
        try:
            await self._writer.run(lambda connection: connection.executescript(script))
        except sqlite3.DatabaseError as problem:
            raise self._unavailable("write", problem) from problem

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
            values, written = await self._writer.run(_commit([change for change, _ in changes]))
        except Exception as problem:  # noqa: BLE001 - handed to whoever asked for the change
            if len(changes) == 1:
                told = (
                    self._unavailable("write", problem)
                    if isinstance(problem, sqlite3.DatabaseError)
                    and not isinstance(problem, sqlite3.IntegrityError)
                    else problem
                )
                if not changes[0][1].cancelled():
                    changes[0][1].set_exception(told)
            return False
        if written:  # a change of nothing succeeds on a full disk, too
            self._troubles.pop("write", None)
        for (_, future), value in zip(changes, values, strict=True):
            if not future.cancelled():
                future.set_result(value)
        return True

    def _unavailable(self, which: str, problem: sqlite3.Error) -> DatabaseUnavailable:
        found = DatabaseUnavailable(problem)
        self._troubles["damage" if found.damaged else which] = found
        return found


def _lock(path: Path) -> FileLock:
    real = path.resolve()  # one lock, whatever link leads there
    return FileLock(real.with_name(f"{real.name}.lock"), path, "database")
