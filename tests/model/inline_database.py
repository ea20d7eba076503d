"""The server's database and threads without hops; the server can crash at each step."""

import asyncio
import functools
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Concatenate

from shared.sql import P, Params, Row, T, Tx
from shared.sqlite.database import Database
from shared.sqlite.files import Migration


class SimulatedCrash(BaseException):
    """kill -9: no code under test may catch it."""


class CrashPoint:
    """Counts steps; from step ``at`` on the server has crashed, at None never."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.steps = at, 0

    def step(self) -> None:
        self.steps += 1
        if self.at is not None and self.steps >= self.at:
            raise SimulatedCrash(f"step {self.steps}")

    @property
    def crashed(self) -> bool:
        return self.at is not None and self.steps >= self.at


@functools.cache
def _empty(migrations: tuple[Migration, ...]) -> bytes:
    """A database with these tables: the statements would be half of what a short story takes."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for migration in migrations:
            for statement in migration:
                connection.execute(statement)
        return connection.serialize()


class InlineDatabase(Database):
    """``Database`` on the caller's own thread; real SQLite, real SQL."""

    def __init__(
        self, path: Path, migrations: Sequence[Migration], crash_point: CrashPoint
    ) -> None:
        if not path.exists():
            path.write_bytes(_empty(tuple(migrations)))
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")  # no power cuts here
        self._crash_point, self.listener = crash_point, None
        self.memory: dict[str, Any] = {}

    def _run(self, sql: str, params: Params | None) -> list[Row]:
        return self._connection.execute(sql, params or {}).fetchall()

    async def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        if self._crash_point.crashed:
            raise SimulatedCrash("crashed before")
        return self._run(sql, params)

    async def empty_log(self) -> Any:
        return 0

    maintain = empty_log

    async def read(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> T:
        if self._crash_point.crashed:
            raise SimulatedCrash("crashed before")
        return work(Tx(self._connection), *args, **how)

    read_list = read

    def write(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._write(work, *args, **how))
        except BaseException as problem:  # noqa: BLE001 - a crash, too
            future.set_exception(problem)
            future.exception()  # nobody has to ask for it
        return future

    def _write(self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **how: P.kwargs) -> T:
        self._run("BEGIN IMMEDIATE", None)
        tx = Tx(self._connection, self.listener, self.memory)
        try:
            self._crash_point.step()
            value = work(tx, *args, **how)
            self._crash_point.step()  # dies before the commit: nothing is kept
        except BaseException:
            self._connection.rollback()
            self.memory.clear()
            raise
        self._run("COMMIT", None)
        for call in tx.calls:
            call()
        self._crash_point.step()  # dies after the commit, before anybody knows of it
        return value

    def end(self) -> None:
        self._connection.close()


def inline_threads(crash_point: CrashPoint) -> Callable[..., Any]:
    """In place of ``asyncio.to_thread``: the file step happens here and now, or never."""

    async def to_thread(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        crash_point.step()
        value = step(*args, **kwargs)
        crash_point.step()
        return value

    return to_thread
