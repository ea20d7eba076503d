"""The database, every stored file and its digest: whether they are whole and agree."""

from __future__ import annotations

import hashlib
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

from server.domain.jobs import ROW_BYTES, FileKind
from server.maintenance.doctor import holder
from server.storage.contents import memory_file
from server.storage.folder import stored_names, stored_path
from server.store import bundles, stored_rows
from server.store.data_folder import WrongDatabase, look
from server.store.migrations import MIGRATIONS
from server.store.retention import files_in_use
from server.store.stored_rows import StoredFile
from shared.clock import Clock, Micros
from shared.files import durable
from shared.files.bundles.reader import BundleReader
from shared.files.durable import FolderLock
from shared.files.names import BundleError
from shared.sql import Tx
from shared.sqlite.database import lock_database
from shared.sqlite.files import DatabaseUnavailable, check_version, connected, file_size

MOST_NAMED: Final = 1_000
"""Findings that are kept; more are only counted."""
FileTrouble: TypeAlias = tuple[str, str]
"""What is wrong with a stored file: a word for programs, and a text."""
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


@dataclass(slots=True)
class Verification:
    """A look at everything, which repairs what can be repaired.

    Attributes:
        repair: the server must not run then.
        digests: read every file; else only their sizes are compared.
        since: only results of attempts that began then or later.
    """

    data_dir: Path
    db_path: Path
    repair: bool
    digests: bool
    since: Micros | None
    clock: Clock
    progress: Progress
    done: Verified = field(default_factory=Verified)

    def run(self) -> Verified:
        """Look at everything once.

        Raises:
            FolderInUse: a server runs, and it is to be repaired.
            WrongDatabase: there is none, or it is to repair a folder that is not its own: every
                file would be one that no row refers to.
            FileNotFoundError, NewerSchema, DatabaseUnavailable, OSError, sqlite3.Error
        """
        with ExitStack() as stack:
            if self.repair:
                stack.callback(FolderLock(self.data_dir).close)
                stack.callback(lock_database(self.db_path).close)
            if not file_size(self.db_path) and (wrong := look(self.data_dir, self.db_path)):
                raise wrong
            if not self.db_path.is_file():
                raise FileNotFoundError(2, "there is no database of a server", str(self.db_path))
            database = stack.enter_context(connected(self.db_path, "rw" if self.repair else "ro"))
            version = check_version(database, self.db_path, len(MIGRATIONS))
            if version < len(MIGRATIONS):  # it has to be upgraded first
                cause = sqlite3.DatabaseError(
                    f"{self.db_path} has schema version {version}, this program works with "
                    f"{len(MIGRATIONS)}: start the server once"
                )
                raise DatabaseUnavailable(cause)
            if (wrong := look(self.data_dir, self.db_path)) and self.repair:
                raise WrongDatabase(f"nothing was repaired: {wrong.text}", wrong.advice)
            self._look(database, wrong)
        return self.done

    def _look(self, database: sqlite3.Connection, wrong: WrongDatabase | None) -> None:
        tx = Tx(database)
        if wrong is not None:
            self._add("wrong_database", "database", str(wrong))
        damages = [line for (line,) in database.execute("PRAGMA integrity_check(100)")]
        damages = [line for line in damages if line != "ok"]
        for line in damages:
            self._add("database_damaged", "database", f"the database file is damaged: {line}")
        if damages and self.repair:
            # With an index that lacks rows, every result would seem to be nobody's.
            self.repair = False
            why = "nothing is repaired by what a damaged database says: restore a backup"
            self._add("not_repaired", "database", why)
        for table, row, parent, _ in database.execute("PRAGMA foreign_key_check").fetchall():
            which = "" if row is None else f" {row}"
            text = f"row{which} of {table} refers to a row of {parent} that is not there"
            self._add("database_damaged", "database", text)
        for miscount in stored_rows.miscounts(tx):
            if self.repair:
                stored_rows.mend(tx, miscount)
            done = "counted again" if self.repair else ""
            self._add(miscount.counted.name, str(miscount.key), miscount.text, done)
        for file in chain(stored_rows.bundles(tx), stored_rows.results(tx, self.since)):
            self._check(database, file)
        if self.repair or holder(self.data_dir) is None:  # a server is storing some, else
            then = "; a server removes it after a day" if wrong is None else ""
            for kind in FileKind:
                self._strays(tx, kind, then)
        for name in stored_rows.stray_rows(tx, delete=self.repair):
            done = "removed" if self.repair else ""
            self._add("stray_row", f"contents/{name}", "nothing refers to it", done)
        if self.repair:
            self._staging()

    def _count(self, what: str) -> None:
        self.done.checked[what] += 1
        self.progress(what, self.done.checked[what])

    def _add(self, kind: str, about: str, message: str, repaired: str = "") -> None:
        if repaired:
            self.done.repaired += 1
        else:
            self.done.left += 1
        if len(self.done.findings) < MOST_NAMED:
            self.done.findings.append(Finding(kind, about, message, repaired))

    def _check(self, database: sqlite3.Connection, file: StoredFile) -> None:
        self._count(f"{file.kind}")
        with readable(self.data_dir, Tx(database), file) as path:
            trouble = trouble_of(path, file, digests=self.digests)
            if trouble is None and self.digests and file.kind is FileKind.RESULT:
                trouble = _no_zip(path)
        if trouble is None or not files_in_use(Tx(database), [file.name]):
            return  # removed meanwhile, with its row
        kind, text = trouble
        repaired = ""
        if self.repair and self._is_lost(file, kind):
            repaired = stored_rows.give_up(database, file, text, self.clock.now())
        owner = f"{file.kind}/{file.name}" if file.kind is FileKind.BUNDLE else file.owner
        self._add(kind, owner, f"{file.kind}/{file.name}: {text}", repaired)

    def _is_lost(self, file: StoredFile, trouble: str) -> bool:
        """Whether the file is gone for good: a disk that fails to read, or is not mounted, may come
        back, and what is given up does not.
        """
        if trouble == "missing_file" and file.size > ROW_BYTES:
            folder = self.data_dir / file.kind
            return folder.is_dir() and any(folder.iterdir())
        return trouble != "unreadable_file"

    def _strays(self, tx: Tx, kind: FileKind, then: str) -> None:
        for names in stored_names(self.data_dir, kind):
            used = files_in_use(tx, names)
            for name in names:
                self._count("files")
                if name in used:
                    continue
                path = stored_path(self.data_dir, kind, name)
                if self.repair:
                    durable.remove_quietly(path)
                    self._add("stray_file", f"{kind}/{name}", "no row refers to it", "removed")
                elif path.exists():
                    self._add("stray_file", f"{kind}/{name}", f"no row refers to it{then}")

    def _staging(self) -> None:
        """What was being written when the server ended."""
        folder = self.data_dir / "staging"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            durable.remove_quietly(path)
            self._add("staging_file", f"staging/{path.name}", "an upload's that ended", "removed")


def _no_zip(path: Path) -> FileTrouble | None:
    try:
        with zipfile.ZipFile(path):
            return None
    except OSError as problem:
        return _unreadable(problem)
    except (zipfile.BadZipFile, ValueError) as problem:
        return "no_zip", f"it is no ZIP: {problem}"


@contextmanager
def readable(folder: Path, tx: Tx, file: StoredFile) -> Iterator[Path]:
    """Where it can be read: its bytes in memory where they are a row, else below the folder."""
    if (row := bundles.content(tx, file.name)) is None:
        yield stored_path(folder, file.kind, file.name)
    else:
        with memory_file(row) as path:
            yield path


def trouble_of(path: Path, file: StoredFile, *, digests: bool) -> FileTrouble | None:
    """Compare a stored file with its row; None: it is as it should be."""
    try:
        size = path.stat().st_size
        if size != file.size:
            return "wrong_size", f"it has {size} bytes, not {file.size}"
        if not digests:
            return None
        if file.kind is FileKind.RESULT:
            with path.open("rb") as content:
                same = hashlib.file_digest(content, "sha256").hexdigest() == file.digest
        else:
            with BundleReader(path, max_files=1_000_000) as reader:
                same = reader.summary().digest == file.digest
    except FileNotFoundError:
        return "missing_file", "it is not there"
    except BundleError as problem:
        return "damaged_bundle", f"it is no bundle: {problem}"
    except OSError as problem:
        return _unreadable(problem)
    return None if same else ("wrong_digest", "its digest is not that of its row")


def _unreadable(problem: OSError) -> FileTrouble:
    """It may be whole all the same."""
    return "unreadable_file", f"it cannot be read: {problem.strerror or problem}"
