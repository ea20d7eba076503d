"""A backup: a copy of everything that the server keeps, made while it runs, and what makes it the
data folder of a new server.

It is made of the database first, in one read of it: every row of the copy had its files then, since
bytes come before rows. Then the files. What the server removed in between belonged to jobs that
have expired or were deleted, and the copy leaves those jobs out: every row that stays has its
files. Files are linked where that can be done, else copied.

It is restored into an empty folder. Everything that came after the backup is unknown: jobs that it
had not seen, attempts that agents took. So the restored server has an identity of its own: it never
takes an answer to the former server for an answer to itself. It skips job numbers that the former
server may have used. Before it gives agents work, it makes them end what they hold for the former
server. Then jobs that were at an agent are not found there, and are queued again.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from server.domain.jobs import FileKind
from server.maintenance.verify import readable, trouble_of
from server.storage.folder import stored_path
from server.store import bundles, dependencies, identity, retention, schedules, stored_rows
from server.store.data_folder import RECORD, UNKNOWN, read_record, write_record
from server.store.migrations import MIGRATIONS
from server.store.retention import files_in_use
from server.store.stored_rows import StoredFile
from shared.clock import SECOND, Clock, from_iso, iso
from shared.files import durable
from shared.files.durable import FolderLock
from shared.sql import AMONG, Tx, among
from shared.sqlite.files import check_version, connected, copy_database, migrate
from shared.steady_clock import FILE as CLOCK

DATABASE: Final = "ferryman.sqlite"
MANIFEST: Final = "backup.json"
FORMAT: Final = 1
PER_SECOND: Final = 10
"""Numbers of jobs that are left out for each second since the backup."""
_HARMLESS: Final = frozenset({"lost+found", "lock", RECORD, CLOCK, UNKNOWN})
"""What a folder may hold that is empty else: also what a server leaves whose files are gone."""


class BadBackup(Exception):
    """It is no backup, or damaged; nothing was restored."""


class NotEmpty(Exception):
    """The data folder holds something already."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds; written last, so that a folder without it is no backup."""

    format: int
    made_at: str
    version: str
    schema: int
    server: str
    jobs: int
    bundles: int
    bundle_bytes: int
    results: int
    result_bytes: int
    database_bytes: int
    incomplete: tuple[str, ...]
    """Files that were missing or damaged on the server itself."""


def back_up(
    data_dir: Path, db_path: Path, target: Path, clock: Clock, version: str, *, digests: bool
) -> Manifest:
    """Write a backup into the new folder ``target``.

    Raises:
        FileExistsError: there is something at ``target``.
        FileNotFoundError: there is no database.
        NewerSchema, NoRoomForCopy, OSError, sqlite3.Error
    """
    if not db_path.is_file():
        raise FileNotFoundError(2, "there is no database of a server", str(db_path))
    if os.path.lexists(target):
        raise FileExistsError(17, "it exists already: give a new folder", str(target))
    if not target.parent.is_dir():  # made by itself, a disk that is not mounted would be missed
        raise FileNotFoundError(2, "no such folder: make it first", str(target.parent))
    made_at = iso(clock.now())
    work = target.with_name(f".{target.name}.{os.getpid()}.partial")
    work.mkdir(mode=0o700)
    try:
        with connected(db_path) as live:
            schema = check_version(live, db_path, len(MIGRATIONS))
            copy_database(live, work / DATABASE)
            with connected(work / DATABASE) as copy:
                copy.execute("PRAGMA foreign_keys=ON")
                brought = bring(data_dir, work, Tx(copy), digests=digests)
                used = files_in_use(Tx(live), [file.name for file in brought.missing])
                gone = [file for file in brought.missing if file.name not in used]
                leave_out(copy, {file.job_id for file in gone})
                server = identity.marks(Tx(copy)).server
                (jobs,) = copy.execute("SELECT count(*) FROM jobs").fetchone()
        lost = [file for file in brought.missing if file not in gone]
        manifest = Manifest(
            FORMAT,
            made_at,
            version,
            schema,
            server,
            jobs,
            brought.files[FileKind.BUNDLE],
            brought.bytes[FileKind.BUNDLE],
            brought.files[FileKind.RESULT],
            brought.bytes[FileKind.RESULT],
            (work / DATABASE).stat().st_size,
            tuple(
                f"{kind} of {file.owner}: {file.kind}/{file.name}"
                for kind, files in (("missing file", lost), ("damaged file", brought.damaged))
                for file in files
            ),
        )
        durable.fsync_file(work / DATABASE)
        text = work / f"{MANIFEST}.partial"
        text.touch(0o600)
        text.write_text(json.dumps(asdict(manifest), indent=1))
        durable.replace(text, work / MANIFEST)
        work.rename(target)
        durable.fsync_folder(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return manifest


def leave_out(connection: sqlite3.Connection, job_ids: Iterable[int]) -> None:
    """Take jobs, and schedules (numbers below 0), out of a copy, in one transaction."""
    tx, left_out = Tx(connection), set(job_ids)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA defer_foreign_keys=ON")  # until all of them are gone
        sql = f"SELECT id FROM jobs WHERE parent_id {AMONG}"  # noqa: S608 - no user input
        left_out |= {row["id"] for row in tx.rows(sql, among(left_out))}
        jobs = sorted(number for number in left_out if number > 0)
        for number in left_out.difference(jobs):
            schedules.delete(tx, -number)
        for number in jobs:
            dependencies.settle(tx, number, False, 0)
        bundles.release_files(tx, jobs)
        retention.delete_rows(tx, jobs)


@dataclass(frozen=True, slots=True)
class Restored:
    jobs: int
    first_id: int
    """Of the next job."""
    tokens: tuple[tuple[str, str], ...]
    """Id and name of those that are good, also if they were revoked after the backup."""


def restore(
    backup: Path,
    data_dir: Path,
    db_path: Path,
    clock: Clock,
    *,
    rehearsal: bool,
    skip: int | None,
    digests: bool,
) -> Restored:
    """Make ``data_dir`` that of a new server with the jobs of the backup.

    Args:
        rehearsal: the former server goes on: leave what agents hold for it alone.
        skip: numbers of jobs to leave out; None: by the age of the backup.
        digests: compare every file with its digest.

    Raises:
        BadBackup, NotEmpty, FolderInUse, NewerSchema, DatabaseUnavailable, NoRoomForCopy, OSError
    """
    manifest = _manifest(backup)
    if skip is None:
        passed_us = max(0, clock.now() - from_iso(manifest["made_at"]))
        skip = identity.LEAST_SKIPPED + PER_SECOND * (passed_us // SECOND)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    db_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FolderLock(data_dir)
    made: list[Path] = []
    try:
        _check_empty(data_dir, db_path)
        staged = db_path.with_name(f"{db_path.name}.restoring")
        try:
            made.append(staged)
            with connected(backup / DATABASE, "ro") as source:
                copy_database(source, staged)
            made += [data_dir / kind for kind in FileKind]
            with connected(staged) as copy:
                tx = Tx(copy)
                brought = bring(backup, data_dir, tx, digests=digests)
                lost = len(brought.missing) + len(brought.damaged)
                if lost > len(manifest["incomplete"]):
                    raise BadBackup(f"{backup}: {lost} files are missing or damaged")
                migrate(copy, staged, MIGRATIONS)
                tokens = tuple(identity.live_tokens(tx, clock.now()))
                beside = read_record(data_dir)
                first = identity.become_another(copy, skip, follow=not rehearsal, beside=beside)
                # Until the copy is in place, no server starts with the folder.
                write_record(data_dir, identity.marks(tx))
        except sqlite3.DatabaseError as problem:
            raise BadBackup(f"{backup}: {problem}") from problem
        durable.replace(staged, db_path)
    except BaseException:
        for path in made:
            shutil.rmtree(path, ignore_errors=True)
            durable.remove_quietly(path)
        raise
    finally:
        for left in db_path.parent.glob(f"{db_path.name}.restoring*"):
            durable.remove_quietly(left)
        lock.close()
    return Restored(manifest["jobs"], first, tokens)


def _manifest(backup: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((backup / MANIFEST).read_text())
    except FileNotFoundError:
        raise BadBackup(f"{backup}: there is no {MANIFEST}, it is no backup") from None
    except ValueError as problem:
        raise BadBackup(f"{backup / MANIFEST}: {problem}") from problem
    if manifest.get("format") != FORMAT:
        raise BadBackup(f"{backup}: its format is {manifest.get('format')}, this is for {FORMAT}")
    return manifest


def _check_empty(data_dir: Path, db_path: Path) -> None:
    for path in (db_path, *data_dir.iterdir()):
        if os.path.lexists(path) and path.name not in _HARMLESS:
            raise NotEmpty(f"{path} is there already: a backup is restored into an empty folder")


@dataclass(slots=True)
class Brought:
    """What was brought over.

    Attributes:
        missing: not there any more.
        damaged: there, but not what the row says.
    """

    files: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    missing: list[StoredFile] = field(default_factory=list)
    damaged: list[StoredFile] = field(default_factory=list)


def bring(source: Path, target: Path, tx: Tx, *, digests: bool = False) -> Brought:
    """Link or copy the files below ``target``, durable, mode 0600.

    Args:
        tx: of a copy, which has what is no file.
        digests: compare them with their rows, too, not only their sizes.

    Raises:
        OSError: one cannot be written.
    """
    brought = Brought()
    for kind in FileKind:
        (target / kind).mkdir(mode=0o700)
    seen = dict[Path, list[StoredFile] | None]()
    for file in stored_rows.stored_files(tx):
        there = stored_path(target, file.kind, file.name)
        if there in seen:  # jobs may share a bundle
            if (same := seen[there]) is not None:
                same.append(file)
            continue
        seen[there] = None
        try:
            with readable(source, tx, file) as path:
                if path.is_relative_to(source):
                    there.parent.mkdir(mode=0o700, exist_ok=True)
                    _link_or_copy(path, there)
                    path = there
                if trouble_of(path, file, digests=digests):
                    seen[there] = brought.damaged
                    brought.damaged.append(file)
        except FileNotFoundError:
            seen[there] = brought.missing
            brought.missing.append(file)
            continue
        brought.files[file.kind] += 1
        brought.bytes[file.kind] += file.size
    for folder, _, _ in os.walk(target):
        durable.fsync_folder(Path(folder))
    return brought


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        # A stored file is never changed, only removed: a link of it is as good as a copy.
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        durable.fsync_file(target)
    target.chmod(0o600)
