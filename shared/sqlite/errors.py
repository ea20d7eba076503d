"""What can be wrong with a database."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class NewerSchema(Exception):
    """The database was written by a later version; this one must not touch it."""

    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(
            f"{path}: the database has schema version {version}, this program knows {known}: it "
            "was written by a newer version. Install that version again, or go back to the copy "
            "that was made before the upgrade (docs/backup.md, Rollback)"
        )


class NoRoomForCopy(Exception):
    """The disk is too full to copy the database first."""

    def __init__(self, target: Path, needed: int, free: int) -> None:
        super().__init__(
            f"{target}: a copy of the database needs {needed} bytes, the disk has {free} free"
        )


class DatabaseUnavailable(Exception):
    """The database cannot take or give data now.

    Attributes:
        full: the disk is full (HTTP 507); else it is damaged, locked or unreadable (503).
        damaged: the file is corrupt; only an operator can repair that.
    """

    def __init__(self, cause: sqlite3.Error | NoRoomForCopy) -> None:
        text = str(cause)
        self.full = isinstance(cause, NoRoomForCopy) or "full" in text
        malformed = "malformed" in text and "malformed JSON" not in text  # that is one value
        self.damaged = malformed or "not a database" in text
        if isinstance(cause, sqlite3.Error):
            text = f"the database is unusable: {text}"
            text = "no space left for the database" if self.full else text
        super().__init__(text)
