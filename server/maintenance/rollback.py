"""Back to the copy of the database that was made before an upgrade.

Jobs since then are lost and unknown, so it becomes the database of another server, as a restored
backup does.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.data_folder import move_aside
from server.maintenance.restore import as_another, skipped
from server.storage.folder import stored_path
from server.store import copies
from shared.clock import SECOND, Clock
from shared.files import durable
from shared.files.locks import FileLock, FolderLock
from shared.sqlite.copies import check_structure, copy_database, uri_of
from shared.sqlite.migrations import schema_version, unused_name

_COPIES: Final = "schema-*"


class NoCopy(Exception):
    """There is no copy to go back to."""


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What a rollback would do."""

    copy: Path
    schema: int
    made_at: int
    """Microseconds."""
    jobs: int
    lost_jobs: int | None
    """Jobs since the copy; None: the database of now cannot be read."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    jobs: int
    first_id: int
    """Of the next job."""
    left_out: int
    """Jobs of the copy whose files were removed since."""
    kept: Path | None
    """The database as it was before."""
    moved: int
    """Files that the copy does not know."""
    aside: Path
    """Where they are now."""


def copies_of(db_path: Path) -> list[Path]:
    """Copies that were made before upgrades, the newest first."""
    found = (
        path
        for path in db_path.parent.glob(f"{db_path.name}.{_COPIES}")
        if not path.name.endswith(".partial")
    )
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def plan(db_path: Path, copy: Path | None) -> RollbackPlan:
    """Look at the copy (None: the newest).

    Raises:
        NoCopy, OSError, sqlite3.Error: it is no copy.
    """
    found = [copy] if copy is not None else copies_of(db_path)
    if not found:
        raise NoCopy(f"{db_path}: there is no copy of it, such as {db_path.name}.schema-5")
    if not found[0].is_file():
        raise NoCopy(f"{found[0]}: there is no such file")
    with closing(sqlite3.connect(uri_of(found[0], "ro"), uri=True)) as connection:
        check_structure(connection)
        schema, jobs = schema_version(connection), copies.count_jobs(connection)
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()
    made_at = found[0].stat().st_mtime_ns // 1_000
    return RollbackPlan(found[0], schema, made_at, jobs, _later(db_path, last))


def _later(db_path: Path, last: int) -> int | None:
    try:
        with closing(sqlite3.connect(uri_of(db_path, "ro"), uri=True)) as connection:
            later = connection.execute("SELECT count(*) FROM jobs WHERE id > ?", (last,))
            return int(later.fetchone()[0])
    except sqlite3.Error:
        return None


def roll_back(
    data_dir: Path, db_path: Path, chosen: RollbackPlan, clock: Clock, *, skip: int | None
) -> RolledBack:
    """Put the copy in place of the database, which is kept beside it.

    A crash leaves either the one or the other in place.

    Args:
        skip: numbers of jobs to leave out; None: by the age of the copy.

    Raises:
        FolderInUse, NoRoomForCopy, OSError, sqlite3.Error
    """
    folder = FolderLock(data_dir)
    try:
        lock = FileLock(db_path.with_name(f"{db_path.name}.lock"), db_path, "database")
        try:
            return _roll_back(data_dir, db_path, chosen, clock, skip)
        finally:
            lock.close()
    finally:
        folder.close()


def _roll_back(
    data_dir: Path, db_path: Path, chosen: RollbackPlan, clock: Clock, skip: int | None
) -> RolledBack:
    staged = db_path.with_name(f"{db_path.name}.rolling-back")
    try:
        with closing(sqlite3.connect(uri_of(chosen.copy, "ro"), uri=True)) as source:
            copy_database(source, staged)
        with closing(sqlite3.connect(staged, isolation_level=None)) as copy:
            gone = {
                file.job_id
                for file in copies.stored_files(copy)
                if not stored_path(data_dir, file.kind, file.name).is_file()
            }
            copy.execute("PRAGMA foreign_keys=ON")
            copies.leave_out(copy, gone)
            jobs = copies.count_jobs(copy)
            known = {file.name for file in copies.stored_files(copy)}
        numbers = skipped(chosen.made_at // SECOND * SECOND, clock) if skip is None else skip
        first = as_another(data_dir, staged, numbers, follow=True)
        # The older version may delete what its database does not know.
        moved, aside = move_aside(data_dir, clock, known.intersection)
        if os.geteuid() == 0:  # the server runs as another user
            owner = data_dir.stat()
            os.chown(staged, owner.st_uid, owner.st_gid)
        durable.fsync_file(staged)
        kept = _keep(db_path) if db_path.exists() else None
        durable.replace(staged, db_path)
    finally:
        for left in db_path.parent.glob(f"{staged.name}*"):
            durable.remove_quietly(left)
    return RolledBack(jobs, first, len(gone), kept, moved, aside)


def _keep(db_path: Path) -> Path:
    """A second name for the database of now, whole without its log."""
    kept = unused_name(db_path.with_name(f"{db_path.name}.rolled-back"))
    try:
        with closing(sqlite3.connect(db_path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.DatabaseError:  # damaged: the copy must not see its log
        for suffix in ("-wal", "-shm"):
            beside = db_path.with_name(f"{db_path.name}{suffix}")
            if beside.exists():
                beside.rename(kept.with_name(f"{kept.name}{suffix}"))
    kept.hardlink_to(db_path)
    durable.fsync_folder(db_path.parent)
    return kept
