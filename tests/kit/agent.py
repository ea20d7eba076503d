"""What tests send to agents."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from shared.wire import Limits

SERVER = "server-one"
LIMITS = Limits(log=1 << 16, results=1 << 20, disk=1 << 20)


def numbered(prefix: str = "f") -> Callable[[], str]:
    """File names for ``Folders``, the same in every run."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"
