"""The database, every stored file and its digest: whether they are whole and agree."""

from __future__ import annotations

import sqlite3
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from server.domain.jobs import FileKind
from server.maintenance.files import FileTrouble, open_section, trouble_of, unreadable
from server.storage.folder import stored_names, stored_path
from server.store import recount, stored_rows
from server.store.data_folder import WrongDatabase, look
from server.store.migrations import MIGRATIONS
from server.store.stored_rows import StoredFile
from shared.clock import Clock, Micros
from shared.files import durable
from shared.files.durable import FileLock, FolderInUse, FolderLock
from shared.sqlite.files import DatabaseUnavailable, NewerSchema, file_size, schema_version, uri_of

MOST_NAMED: Final = 1_000
"""Findings that are kept; more are only counted."""
Progress: TypeAlias = Callable[[str, int], None]
"""Called with what is looked at, and how many of them were."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        kind: for programs.
        about: the job, bundle or file.
        repaired: what was done about it; empty: nothing.
    """

    kind: str
    about: str
    message: str
    repaired: str = ""


@dataclass(slots=True)
class Verified:
    """What was looked at, and what is wrong."""

    checked: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    repaired: int = 0
    left: int = 0

    def add(self, finding: Finding) -> None:
        if finding.repaired:
            self.repaired += 1
        else:
            self.left += 1
        if len(self.findings) < MOST_NAMED:
            self.findings.append(finding)


class OldSchema(DatabaseUnavailable):
    """It has to be upgraded first, by a start."""

    def __init__(self, path: Path, version: int) -> None:
        cause = sqlite3.DatabaseError(
            f"{path} has schema version {version}, this program works with {len(MIGRATIONS)}: "
            "start the server once"
        )
        super().__init__(cause)


def open_known(path: Path, *, writable: bool = False) -> sqlite3.Connection:
    """Open the database of a server, which may run.

    Raises:
        FileNotFoundError, NewerSchema, OldSchema, sqlite3.Error
    """
    if not path.is_file():
        raise FileNotFoundError(2, "there is no database of a server", str(path))
    mode = "rw" if writable else "ro"
    connection = sqlite3.connect(uri_of(path, mode), uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA busy_timeout=10000")
        _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    version = schema_version(connection)
    if version > len(MIGRATIONS):
        raise NewerSchema(path, version, len(MIGRATIONS))
    if version < len(MIGRATIONS):
        raise OldSchema(path, version)


def verify(
    data_dir: Path,
    db_path: Path,
    *,
    repair: bool,
    digests: bool,
    since: Micros | None,
    clock: Clock,
    progress: Progress,
) -> Verified:
    """Look at everything, and repair what can be repaired.

    Args:
        repair: the server must not run then.
        digests: read every file; else only their sizes are compared.
        since: only results of attempts that began then or later.

    Raises:
        FolderInUse: a server runs, and it is to be repaired.
        WrongDatabase: there is none, or it is to repair a folder that is not its own: every file
            would be one that no row refers to.
        FileNotFoundError, NewerSchema, OldSchema, OSError, sqlite3.Error
    """
    locks: list[FileLock] = []
    try:
        if repair:
            locks.append(FolderLock(data_dir))
            locks.append(FileLock(db_path.with_name(f"{db_path.name}.lock"), db_path, "database"))
        if not file_size(db_path) and (wrong := look(data_dir, db_path)):
            raise wrong
        with closing(open_known(db_path, writable=repair)) as connection:
            if (wrong := look(data_dir, db_path)) and repair:
                raise WrongDatabase(f"nothing was repaired: {wrong.text}", wrong.advice)
            alone = repair or not _in_use(data_dir)
            work = _Verification(
                data_dir, connection, alone, wrong, repair, digests, since, clock, progress
            )
            return work.run()
    finally:
        for lock in locks:
            lock.close()


class _Verification:
    def __init__(
        self,
        data_dir: Path,
        connection: sqlite3.Connection,
        alone: bool,
        wrong: WrongDatabase | None,
        repair: bool,
        digests: bool,
        since: Micros | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._data_dir, self._connection, self._repair = data_dir, connection, repair
        self._alone, self._wrong, self._clock = alone, wrong, clock
        self._digests, self._since, self._progress = digests, since, progress
        self._done = Verified()

    def run(self) -> Verified:
        if self._wrong is not None:
            self._add("wrong_database", "database", str(self._wrong))
        damages = [line for (line,) in self._connection.execute("PRAGMA integrity_check(100)")]
        damages = [line for line in damages if line != "ok"]
        for line in damages:
            self._add("database_damaged", "database", f"the database file is damaged: {line}")
        if damages and self._repair:
            # With an index that lacks rows, every result would seem to be nobody's.
            self._repair = False
            why = "nothing is repaired by what a damaged database says: restore a backup"
            self._add("not_repaired", "database", why)
        dangling = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        for table, row, parent, _ in dangling:
            which = "" if row is None else f" {row}"
            text = f"row{which} of {table} refers to a row of {parent} that is not there"
            self._add("database_damaged", "database", text)
        for miscount in recount.miscounts(self._connection):
            repaired = self._repair and recount.mend(self._connection, miscount)
            done = "counted again" if repaired else ""
            self._add(miscount.counted.name, str(miscount.key), miscount.text, done)
        for file in stored_rows.bundles(self._connection):
            self._check(file)
        for file in stored_rows.results(self._connection, self._since):
            self._check(file)
        for kind in FileKind if self._alone else ():  # a server is storing some, else
            self._strays(kind)
        if self._repair:
            self._staging()
        return self._done

    def _count(self, what: str) -> None:
        self._done.checked[what] += 1
        self._progress(what, self._done.checked[what])

    def _add(self, kind: str, about: str, message: str, repaired: str = "") -> None:
        self._done.add(Finding(kind, about, message, repaired))

    def _check(self, file: StoredFile) -> None:
        """One stored file against its row."""
        self._count(f"{file.kind}")
        path = stored_path(self._data_dir, file.kind, file.name)
        trouble = trouble_of(path, file, digests=self._digests)
        if trouble is None and self._digests and file.kind is FileKind.RESULT:
            trouble = _no_zip(path, file)
        if trouble is None or not stored_rows.refers_to(self._connection, file):
            return  # removed meanwhile, with its row
        repaired = ""
        if self._repair and self._is_lost(file.kind, trouble):
            repaired = stored_rows.give_up(self._connection, file, trouble.text, self._clock.now())
        owner = f"{file.kind}/{file.name}" if file.kind is FileKind.BUNDLE else file.owner
        self._add(trouble.kind, owner, f"{file.kind}/{file.name}: {trouble.text}", repaired)

    def _is_lost(self, kind: FileKind, trouble: FileTrouble) -> bool:
        """Whether the file is gone for good: a disk that fails to read, or is not mounted, may come
        back, and what is given up does not.
        """
        if trouble.kind == "missing_file":
            folder = self._data_dir / kind
            return folder.is_dir() and any(folder.iterdir())
        return trouble.kind != "unreadable_file"

    def _strays(self, kind: FileKind) -> None:
        """Files that no row refers to."""
        for names in stored_names(self._data_dir, kind):
            used = stored_rows.files_in_use(self._connection, names)
            for name in names:
                self._count("files")
                if name in used:
                    continue
                path = stored_path(self._data_dir, kind, name)
                if self._repair:
                    durable.remove_quietly(path)
                    self._add("stray_file", f"{kind}/{name}", "no row refers to it", "removed")
                elif path.exists():
                    then = "; a server removes it after a day" if self._wrong is None else ""
                    self._add("stray_file", f"{kind}/{name}", f"no row refers to it{then}")

    def _staging(self) -> None:
        """What was being written when the server ended."""
        folder = self._data_dir / "staging"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            durable.remove_quietly(path)
            self._add("staging_file", f"staging/{path.name}", "an upload's that ended", "removed")


def _no_zip(path: Path, file: StoredFile) -> FileTrouble | None:
    try:
        with open_section(path, file.offset, file.size) as content, zipfile.ZipFile(content):
            return None
    except OSError as problem:
        return unreadable(problem)
    except (zipfile.BadZipFile, ValueError) as problem:
        return FileTrouble("no_zip", f"it is no ZIP: {problem}")


def _in_use(data_dir: Path) -> bool:
    """Whether a server runs, which removes stray files itself, and may be storing some."""
    try:
        FolderLock(data_dir).close()
    except (FolderInUse, OSError):
        return True
    return False
