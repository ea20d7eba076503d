"""A SQLite database: one writer that shares commits, readers that never wait for it.

Each change runs in a transaction and is durable (``synchronous=FULL``) before
:meth:`Database.write` returns. Changes that arrive while a commit is under way share the next one.
So they share its fsync, and its one hop to the connection's thread, which costs more than most
statements. SQL stays in the subset that PostgreSQL has too: named parameters, ``RETURNING``,
``ON CONFLICT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, TypeAlias

import structlog

from shared.files.durable import FileLock
from shared.metrics import seconds
from shared.sql import P, Params, T, Tx
from shared.sqlite.connection import Connection, connect, run_in
from shared.sqlite.files import (
    DatabaseUnavailable,
    Migration,
    NoRoomForCopy,
    check_structure,
    file_size,
    migrate,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Done(NamedTuple):
    """A change that is kept: its value, and what is called after the commit."""

    value: Any
    after: Sequence[Callable[[], None]]


def commit_together(
    connection: sqlite3.Connection,
    changes: Sequence[Callable[[Tx], Any]],
    listener: Any,
    memory: dict[str, Any],
) -> tuple[list[Done | Exception], bool]:
    """Run all changes in one transaction, in the connection's thread. What one raises undoes that
    one, unless SQLite has given the whole transaction up.

    Returns:
        For each change how it went, or why nothing of it is kept; and whether anything was written.
    """
    before = connection.total_changes
    alone = len(changes) == 1
    connection.execute("BEGIN IMMEDIATE")
    try:
        values = [
            _run(connection, change, Tx(connection, listener, memory), alone=alone)
            for change in changes
        ]
        connection.execute("COMMIT")
    except BaseException:
        if connection.total_changes > before:
            memory.clear()
        if connection.in_transaction:
            connection.rollback()
        raise
    return values, connection.total_changes > before


def _run(
    connection: sqlite3.Connection, change: Callable[[Tx], Any], tx: Tx, *, alone: bool
) -> Done | Exception:
    """Make one of the changes; one that is alone needs no savepoint."""
    if alone:
        return Done(change(tx), tx.calls)
    before = connection.total_changes
    connection.execute("SAVEPOINT change")
    done: Done | Exception
    try:
        done = Done(change(tx), tx.calls)
    except Exception as problem:
        if connection.total_changes > before:
            tx.memory.clear()
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO change")
        done = problem
    connection.execute("RELEASE change")
    return done


_FREE_PAGES_KEPT: Final = 1_000  # they will soon be needed again
_PAGES_FREED_AT_ONCE: Final = 1_000  # some milliseconds, in which others wait
_MAX_CHECKED_BYTES: Final = 1 << 30
"""Up to this size a database is checked after a crash: some seconds of a slow disk."""
_PROBE_BYTES: Final = 1 << 16
"""Written to find out whether there is space again."""
_MAX_BATCH: Final = 256  # changes in one commit: bounds how long the first of them waits
_Waiting: TypeAlias = tuple[Callable[[Tx], Any], asyncio.Future[Any]]
"""A change, and who waits for it."""


class Database:
    """One SQLite file, opened by :meth:`open` and closed by :meth:`close`."""

    def __init__(self, connections: Sequence[Connection], lock: FileLock) -> None:
        self._writer, self._reader, self._lists = connections
        self._lock = lock
        self._waiting: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._commit_batches(), name="database-writer")
        self._closed = False
        self._failures: dict[str, DatabaseUnavailable] = {}
        """What fails: "damage" until the next start, "read" and "write" until one succeeds, "space"
        until a probe has found some: small changes succeed on a full disk, too."""
        self.commit_s = seconds(
            "ferryman_database_commit_seconds", "Transactions, from their begin until durable."
        )
        self.listener: Any = None
        """What transactions give what they have changed to, after their commit."""
        self.memory: dict[str, Any] = {}

    @property
    def failure(self) -> DatabaseUnavailable | None:
        """Why it cannot be used; None while it can. For ``/health``."""
        return next(iter(self._failures.values()), None)

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[Migration]) -> Database:
        """Open or create the file and bring its schema up to date; a copy of it is made before.

        A new file gets mode 0600, whatever its folder allows. SQLite gives its other files the same
        mode.

        Raises:
            DatabaseUnavailable: damaged, not a database, no space, not writable.
            NewerSchema: written by a newer version.
            FolderInUse: another process has it open.
            OSError: its lock file cannot be written.
        """
        lock = lock_database(path)
        connections: list[Connection] = []
        crashed = file_size(path.with_name(f"{path.name}-wal")) > 0
        with contextlib.suppress(OSError):  # SQLite says why it cannot be made
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            for reads in (False, True, True):
                connections += [await connect(path, reads=reads)]
            writer, *_ = connections
            if crashed and file_size(path) <= _MAX_CHECKED_BYTES:
                await run_in(writer, check_structure)
            copy = await run_in(writer, lambda raw: migrate(raw, path, migrations))
        except BaseException as problem:
            for connection in connections:
                await connection.close()
            lock.close()
            if isinstance(problem, sqlite3.Error | NoRoomForCopy):
                raise DatabaseUnavailable(problem) from problem
            raise
        if copy is not None:
            log.info("database.upgraded", copy=str(copy))
        return cls(connections, lock)

    async def close(self) -> None:
        """Finish the changes that were handed in, then close: an open connection's thread would
        keep the program from ending.
        """
        self._closed = True
        self._waiting.put_nowait(None)
        await self._task
        for connection in (self._reader, self._lists, self._writer):
            await connection.close()
        self._lock.close()

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[sqlite3.Row]:
        """Read committed rows. Raises DatabaseUnavailable."""
        return await self._read_in(self._reader, Tx.rows, sql, params)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run it in the writer's thread, between two transactions. Raises DatabaseUnavailable."""
        try:
            return await run_in(self._writer, work)
        except sqlite3.DatabaseError as problem:
            raise self._unavailable("write", problem) from problem

    async def probe(self) -> None:
        """Commit a change that leaves everything as it was: it succeeds only if changes can be
        made, and after a full disk only if there is space for more. Raises DatabaseUnavailable.
        """
        if "space" in self._failures:
            await self.write(_fill)
            await self.write(lambda tx: tx.rows("DROP TABLE probe"))
            self._failures.pop("space", None)
        await self.write(lambda tx: tx.rows("UPDATE schema_version SET version = version"))

    async def sizes(self) -> tuple[int, int]:
        """Bytes that it takes on disk, and those of them that are not in use. Raises
        DatabaseUnavailable.
        """
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = [int((await self.rows(f"PRAGMA {name}"))[0][0]) for name in names]
        return pages * size, free * size

    async def empty_log(self) -> bool:
        """Move all changes from the log to the file and cut the log off, so that nothing of what
        was deleted is left there. Raises DatabaseUnavailable.

        Returns:
            False: somebody reads; part of the log is still there.
        """
        sql = "PRAGMA wal_checkpoint(TRUNCATE)"
        (busy, *_) = await self.run(lambda connection: connection.execute(sql).fetchone())
        return not busy

    async def maintain(self) -> bool:
        """To be called now and then. Gives unused space back to the disk, some at a time. After a
        failure, finds out whether changes can be made again.

        Returns:
            Whether there is more to give back.

        Raises:
            DatabaseUnavailable
        """
        if self.failure is not None:
            await self.probe()
        (free,), (can_shrink,) = [
            (await self.rows(f"PRAGMA {name}"))[0] for name in ("freelist_count", "auto_vacuum")
        ]
        if can_shrink and free > _FREE_PAGES_KEPT:
            # Each step of this statement frees one page; ``execute`` would make one step only.
            script = f"PRAGMA incremental_vacuum({_PAGES_FREED_AT_ONCE:d})"
            await self.run(lambda connection: connection.executescript(script))
        return bool(can_shrink) and free > _FREE_PAGES_KEPT + _PAGES_FREED_AT_ONCE

    async def read(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> T:
        """Run ``work`` on one committed state of the database. Raises DatabaseUnavailable."""
        return await self._read_in(self._reader, work, *args, **how)

    async def read_list(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> T:
        """As :meth:`read`, for a caller's list. Such reads take long, so they have a connection of
        their own: whoever calls :meth:`read` never waits for one.
        """
        return await self._read_in(self._lists, work, *args, **how)

    async def _read_in(
        self,
        connection: Connection,
        work: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **how: P.kwargs,
    ) -> T:
        def one_state(raw: sqlite3.Connection) -> T:
            raw.execute("BEGIN")
            try:
                return work(Tx(raw), *args, **how)
            finally:
                raw.execute("ROLLBACK")

        try:
            value = await run_in(connection, one_state)
        except sqlite3.DatabaseError as problem:
            raise self._unavailable("read", problem) from problem
        self._failures.pop("read", None)
        return value

    def write(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> asyncio.Future[T]:
        """Run ``work`` in a transaction; the value of what is returned once that is durable.

        It is handed in at once: several are made in the order of the calls, in one transaction as
        far as they fit. It is made even if its caller is cancelled, and so is what it gave to
        ``Tx.after``.

        Raises:
            DatabaseUnavailable: nothing was kept.
            Whatever ``work`` raises: nothing of it was kept.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(DatabaseUnavailable(sqlite3.ProgrammingError("it is closed")))
        else:
            self._waiting.put_nowait((lambda tx: work(tx, *args, **how), future))
        return future

    async def _commit_batches(self) -> None:
        last = False
        while not last:
            batch = [await self._waiting.get()]
            while len(batch) < _MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            last = None in batch
            changes = [item for item in batch if item is not None]
            if changes and not await self._commit(changes) and len(changes) > 1:
                for change in changes:  # one of them made the shared transaction fail
                    await self._commit([change])

    async def _commit(self, changes: list[_Waiting]) -> bool:
        """Make the changes in one transaction.

        Returns:
            False: rolled back. The error of a single change went to its caller; the callers of
            several changes know of nothing yet.
        """
        works, since = [work for work, _ in changes], asyncio.get_running_loop().time()
        try:
            values, written = await run_in(
                self._writer, lambda raw: commit_together(raw, works, self.listener, self.memory)
            )
        except Exception as problem:  # noqa: BLE001 - handed to whoever asked for the change
            if len(changes) == 1 and not changes[0][1].cancelled():
                changes[0][1].set_exception(self._say(problem))
            return False
        self.commit_s.observe(asyncio.get_running_loop().time() - since)
        if written:  # a change of nothing succeeds on a full disk, too
            self._failures.pop("write", None)
        for (_, future), done in zip(changes, values, strict=True):
            if isinstance(done, Done):
                _call(done.after)
            if future.cancelled():
                continue
            if isinstance(done, Done):
                future.set_result(done.value)
            else:
                future.set_exception(self._say(done))
        return True

    def _say(self, problem: Exception) -> Exception:
        """What the caller of a change that failed gets."""
        if isinstance(problem, sqlite3.IntegrityError):
            return problem
        if isinstance(problem, sqlite3.DatabaseError):
            return self._unavailable("write", problem)
        return problem

    def _unavailable(self, operation: str, problem: sqlite3.Error) -> DatabaseUnavailable:
        error = DatabaseUnavailable(problem)
        kind = "damage" if error.damaged else "space" if error.full else operation
        self._failures[kind] = error
        return error


def _call(after: Sequence[Callable[[], None]]) -> None:
    """What a defect in one of them breaks off must not be the writer, for whom all would wait."""
    for call in after:
        try:
            call()
        except Exception:
            log.exception("database.call_failed")


def _fill(tx: Tx) -> None:
    tx.rows("CREATE TABLE IF NOT EXISTS probe (bytes BLOB NOT NULL) STRICT")
    tx.rows("INSERT INTO probe (bytes) VALUES (zeroblob(:size))", {"size": _PROBE_BYTES})


def lock_database(path: Path) -> FileLock:
    """Held by who works with it alone. Raises FolderInUse, OSError."""
    real = path.resolve()  # one lock, whatever link leads there
    return FileLock(real.with_name(f"{real.name}.lock"), path, "database")
