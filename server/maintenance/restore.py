"""A backup into an empty data folder, as the folder of a new server.

Everything that came after the backup is unknown: jobs that it had not seen, attempts that agents
took. So the restored server has an identity of its own: it never takes an answer to the former
server for an answer to itself. It skips job numbers that the former server may have used. Before it
gives agents work, it makes them end what they hold for the former server. Then jobs that were at an
agent are not found there, and are queued again.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server.domain.jobs import FileKind
from server.maintenance.backup import DATABASE, FORMAT, MANIFEST
from server.maintenance.files import bring
from server.store import copies
from server.store.data_folder import RECORD, UNKNOWN, read_record, write_record
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND, Clock, from_iso
from shared.files import durable
from shared.files.durable import FolderLock
from shared.sql import Tx
from shared.sqlite.files import connected, copy_database, migrate
from shared.steady_clock import FILE as CLOCK

PER_SECOND: Final = 10
"""Numbers of jobs that are left out for each second since the backup."""
_HARMLESS: Final = frozenset({"lost+found", "lock", RECORD, CLOCK, UNKNOWN})
"""What a folder may hold that is empty else: also what a server leaves whose files are gone."""


class BadBackup(Exception):
    """It is no backup, or damaged; nothing was restored."""


class NotEmpty(Exception):
    """The data folder holds something already."""


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
        skip = copies.LEAST_SKIPPED + PER_SECOND * (passed_us // SECOND)
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
                tokens = tuple(copies.live_tokens(tx, clock.now()))
                new, beside = secrets.token_hex(16), read_record(data_dir)
                first = copies.become_another(copy, new, skip, follow=not rehearsal, beside=beside)
                # Until the copy is in place, no server starts with the folder.
                write_record(data_dir, copies.marks(tx))
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
