"""Lists of values in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def batches(values: Sequence[Any], size: int = 500) -> Iterator[tuple[str, dict[str, Any]]]:
    """Placeholders and parameters for ``IN (…)``, some hundreds at a time: SQLite's limit is
    32,766.
    """
    for start in range(0, len(values), size):
        params = {f"v{n}": value for n, value in enumerate(values[start : start + size])}
        yield ", ".join(f":{name}" for name in params), params
