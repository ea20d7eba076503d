"""A copy of everything that the server keeps, made while it runs.

The database first, in one read of it: every row of the copy had its files then, since bytes come
before rows. Then the files. What the server removed in between belonged to jobs that have expired
or were deleted, and the copy leaves those jobs out: every row that stays has its files.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from server.domain.jobs import FileKind
from server.maintenance.files import bring
from server.store import copies
from server.store.migrations import MIGRATIONS
from server.store.retention import files_in_use
from shared.clock import Clock, iso
from shared.files import durable
from shared.sql import Tx
from shared.sqlite.files import check_version, connected, copy_database

DATABASE: Final = "ferryman.sqlite"
MANIFEST: Final = "backup.json"
FORMAT: Final = 1


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
                copies.leave_out(copy, {file.job_id for file in gone})
                server = copies.marks(Tx(copy)).server
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
