"""What ``ferryman agent check`` found last, kept for ``GET /health``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from client_agent.check.table import Table
from shared.clock import Micros, iso
from shared.files import durable

_FILE: Final = "check.json"


def write(home: Path, table: Table, at: Micros, version: str) -> None:
    """Keep it below the agent's folder, in place of the one before.

    Raises:
        OSError
    """
    told = {
        "at": iso(at),
        "version": version,
        "passed": table.passed,
        "rows": [asdict(row) for row in table.rows],
    }
    staged = home / f".{_FILE}"
    staged.write_text(json.dumps(told))
    durable.replace(staged, home / _FILE)


def read(home: Path) -> dict[str, Any] | None:
    """As written; None: there was no check, or what it left cannot be read."""
    try:
        told = json.loads((home / _FILE).read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None
