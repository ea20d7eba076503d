"""Data folders of the first release, with schema 1: ``tests/data/first_release/make.py`` made them.

Jobs 1 to 3 ended as Completed, Failed and Cancelled, 4 and 5 were Running, 6 and 7 Queued when both
programs were killed; the agent had finished 5 by then, and the server does not know it.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

_MADE: Final = Path(__file__).resolve().parents[1] / "data" / "first_release"
DATABASES: Final = {"server": "ferryman.sqlite", "client_agent": "agent.sqlite"}


def lay_out(program: str, folder: Path) -> Path:
    """Make ``folder`` the data folder of the program; its database."""
    shutil.copytree(_MADE / program, folder)
    folder.chmod(0o700)
    dump = folder / f"{DATABASES[program]}.sql"
    path = folder / DATABASES[program]
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(dump.read_text())
    dump.unlink()
    path.chmod(0o600)
    return path
