"""The folder of everything that the server keeps: locked, with its clock and database.

A record in the folder says of which server it is, and how far that server's database was. So a
start with a database that is missing, empty or another one is refused, and an older copy that was
put back is recognised: what it does not know would be taken for files that nobody needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import sqlite3
import threading
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from server.domain.jobs import FileKind
from server.settings.tables import ServerTable
from server.storage.folder import stored_names, stored_path
from server.store import bundles, identity, queue, retention, stored_rows
from server.store.identity import Identity
from server.store.migrations import MIGRATIONS
from shared.clock import Clock, utc
from shared.files import durable
from shared.files.durable import FolderLock
from shared.sql import Tx
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable, connected, file_size
from shared.steady_clock import PersistentClock

log: structlog.stdlib.BoundLogger = structlog.get_logger()
RECORD: Final = "server.json"
UNKNOWN: Final = "unknown"
"""Folder of what a database did not know."""
_OLDER: Final = "is older"
"""The one mismatch that a start takes: as another server."""
_writing = threading.Lock()
"""The last record of a run may be written while that of the loop is."""


class WrongDatabase(Exception):
    """The folder and the database are not of one server. Nothing was changed.

    Attributes:
        text: what is there, and what is not.
        advice: what to do.
    """

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(f"{text}: {advice}")
        self.text, self.advice = text, advice


def lock_folder(table: ServerTable, stack: AsyncExitStack) -> None:
    """Make the folder if it is missing, and hold its lock until the stack is closed. Raises
    FolderInUse, OSError.
    """
    table.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stack.callback(FolderLock(table.data_dir).close)


def read_record(folder: Path) -> identity.Marks | None:
    """Whose folder it is, and how far its database was at least; None: no server has written it.

    Raises:
        WrongDatabase: it cannot be understood.
        OSError
    """
    path = folder / RECORD
    try:
        record = identity.Marks(**json.loads(path.read_bytes()))
        return replace(record, former=tuple(record.former))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as problem:
        raise WrongDatabase(
            f"{path} cannot be read ({problem})",
            "put back the one of a backup of the folder, or remove it if the database is the right "
            "one",
        ) from problem


def write_record(folder: Path, marks: identity.Marks) -> None:
    """Write down where the database is; durable when it returns. Blocking. Raises OSError: the
    record is as it was.
    """
    fresh = folder / f"{RECORD}.new"
    with _writing:
        fresh.touch(0o600)
        fresh.write_text(json.dumps(asdict(marks)))
        if os.geteuid() == 0:  # written by a command, and the server runs as another user
            owner = folder.stat()
            os.chown(fresh, owner.st_uid, owner.st_gid)
        durable.fsync_file(fresh)
        fresh.replace(folder / RECORD)
        durable.fsync_folder(folder)


def _check_mounts(folder: Path) -> None:
    """Files are moved by a rename, which does not go from one mount to another. Raises OSError: a
    part of the folder is elsewhere.
    """
    for part in (folder / name for name in (*FileKind, "staging", UNKNOWN)):
        try:  # there is no such file, but it is looked for last
            (part / "none").rename(folder / "none")
        except FileNotFoundError:
            continue
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            why = f"is on another file system than {folder}: mount the whole folder there"
            raise OSError(errno.EXDEV, why, str(part)) from problem


async def open_data(
    table: ServerTable, machine: Clock, stack: AsyncExitStack, *, new_database: bool = False
) -> OpenedData:
    """Open them in the locked folder, and begin a run of the server; the stack closes them. Raises
    WrongDatabase, DatabaseUnavailable, OSError. ``new_database``: the database is to be used even
    if it is new, or not that of the folder.
    """
    _check_mounts(table.data_dir)
    path = table.database
    if not new_database and not file_size(path) and (wrong := look(table.data_dir, path)):
        # Before it is opened: nothing is to be made on a disk that hides the right one.
        raise wrong
    clock = PersistentClock(table.data_dir, machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    database = await Database.open(path, MIGRATIONS)
    stack.push_async_callback(database.close)
    known = await database.run(lambda connection: _tie(connection, table, clock, new_database))
    keeper = RecordKeeper(table.data_dir, database)
    stack.push_async_callback(keeper.run_once)  # at the end, too, before the database is closed
    return OpenedData(clock, database, known, keeper)


class RecordKeeper:
    """Writes the folder's record while the server runs."""

    def __init__(self, folder: Path, database: Database) -> None:
        self._folder, self._database = folder, database
        self._written: identity.Marks | None = None

    async def run_once(self) -> int:
        """Write it if the database has moved on."""
        with contextlib.suppress(OSError, DatabaseUnavailable):  # that is reported elsewhere
            marks = await self._database.read(identity.marks)
            if marks != self._written:
                await asyncio.to_thread(write_record, self._folder, marks)
                self._written = marks
                return 1
        return 0


class OpenedData(NamedTuple):
    """What a run of the server has opened in its data folder."""

    clock: PersistentClock
    database: Database
    identity: Identity
    record: RecordKeeper


def _tie(
    connection: sqlite3.Connection, table: ServerTable, clock: Clock, new_database: bool
) -> Identity:
    """See that the folder and the database are of one server, and begin a run in both."""
    tx = Tx(connection)
    record = read_record(table.data_dir)
    another = mismatch(tx, table.data_dir)
    if another not in ("", _OLDER) and not new_database:
        raise _wrong(table.data_dir, table.database, record, another)
    if another:
        _become_another(connection, table.data_dir, record, clock)
    above = 0 if record is None else record.start
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        known = identity.begin(tx, clock.now(), secrets.token_bytes, above)
        queue.release_ahead(tx, clock.now())
    try:
        write_record(table.data_dir, identity.marks(tx))
    except OSError:
        if another:
            raise
        # The disk is full: the record is behind the database, as after a crash, and is kept later.
    return known


def mismatch(tx: Tx, folder: Path) -> str:
    """What is wrong with the database for this folder, in words; empty: they belong together.
    Raises WrongDatabase, OSError: the record cannot be read.
    """
    record, marks = read_record(folder), identity.marks(tx)
    if record is not None:
        if not marks.server and not marks.last_job:
            return "is empty"
        # A start that was killed has made another server of an older copy, but not of the folder;
        # or the copy is from before the folder's server became another one.
        known = record.server in (marks.server, *marks.former) or marks.server in record.former
        if not known:
            return f"is that of server {marks.server[:8]}"
        # The database is written before the record: a crash in between leaves one that is newer.
        older = marks.start < record.start or marks.last_event < record.last_event
        return _OLDER if older or marks.server != record.server else ""
    pages = [page for kind in FileKind for page in stored_names(folder, kind)]
    if pages and not any(retention.files_in_use(tx, page) for page in pages):
        return "knows none of them"
    if not pages and any(
        bundles.content(tx, file.name) is None for file in stored_rows.stored_files(tx)
    ):
        return "refers to some"
    return ""


def look(folder: Path, path: Path) -> WrongDatabase | None:
    """What is wrong with the database for this folder; None: they belong together, or a first start
    makes what is missing. Nothing is changed. Raises OSError, sqlite3.Error: it cannot be read.
    """
    try:
        record = read_record(folder)
        if file_size(path):
            with connected(path, "ro", timeout_s=5) as connection:
                what = mismatch(Tx(connection), folder)
        elif record is not None or any(any(stored_names(folder, kind)) for kind in FileKind):
            what = "is empty" if path.exists() else "is missing"
        else:
            what = ""
    except WrongDatabase as problem:
        return problem
    return _wrong(folder, path, record, what) if what else None


def _become_another(
    connection: sqlite3.Connection, folder: Path, record: identity.Marks | None, clock: Clock
) -> None:
    """Go on as another server, with numbers that none of the two has given, and move aside what the
    database does not know.
    """
    identity.become_another(connection, identity.LEAST_SKIPPED, follow=True, beside=record)
    tx = Tx(connection)
    moved, to = move_aside(folder, clock, tx)
    became = identity.marks(tx)
    log.warning(
        "server.became_another",
        server=became.server,
        former=list(became.former),
        next_job=became.last_job + 1,
        files=moved,
        folder=str(to),
        tokens=[token for token, _ in identity.live_tokens(tx, clock.now())],
    )


def move_aside(folder: Path, clock: Clock, tx: Tx) -> tuple[int, Path]:
    """Move files that no row refers to; how many, and where. Blocking."""
    to, moved = folder / UNKNOWN / utc(clock.now()).date().isoformat(), 0
    for kind in FileKind:
        for names in stored_names(folder, kind):
            unknown = set(names) - retention.files_in_use(tx, names)
            targets = {name: stored_path(to, kind, name) for name in unknown}
            for parent in {path.parent for path in targets.values()}:
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, target in targets.items():
                stored_path(folder, kind, name).replace(target)
            moved += len(unknown)
    for made in [*to.rglob("*"), to, to.parent] if moved else ():
        if made.is_dir():
            durable.fsync_folder(made)
    return moved, to


def _wrong(folder: Path, path: Path, record: identity.Marks | None, what: str) -> WrongDatabase:
    """What is there, what is missing, and what to do."""
    files = sum(len(page) for kind in FileKind for page in stored_names(folder, kind))
    of = "" if record is None else f" of server {record.server[:8]}"
    there = f"{files} files{of}" if files else f"the record{of}" if record else "no files"
    text = f"{folder} holds {there}, and the database {path} {what}"
    if what == _OLDER:
        return WrongDatabase(
            text,
            "put the right one in place before a start. A start makes another server of this one: "
            "agents end what they hold, results that were not fetched are deleted, and files that "
            f"it does not know are moved to {folder / UNKNOWN}",
        )
    if not files and record is None:
        return WrongDatabase(
            f"{text} (is the folder's disk mounted?)",
            "mount it, or correct data_dir, or restore a backup into an empty folder; "
            "--new-database goes on as another server without the files: their jobs stay, and have "
            "no results",
        )
    return WrongDatabase(
        f"{text} (is its disk mounted?)",
        "put the right one in place, or restore a backup into an empty folder; --new-database "
        "begins afresh as another server, and moves what the database does not know to "
        f"{folder / UNKNOWN}",
    )
