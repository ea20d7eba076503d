"""The last result of ``ferryman agent check``, stored for ``GET /health``."""

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
    """Store the result in the agent's folder, in place of the previous one. Raises OSError."""
    document = {
        "at": iso(at),
        "version": version,
        "passed": table.passed,
        "rows": [asdict(row) for row in table.rows],
    }
    staged = home / f".{_FILE}"
    staged.write_text(json.dumps(document))
    durable.replace(staged, home / _FILE)


def read(home: Path) -> dict[str, Any] | None:
    """The stored result; None: there is none, or it cannot be read."""
    try:
        document = json.loads((home / _FILE).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
