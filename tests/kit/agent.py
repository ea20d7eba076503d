"""What tests send to agents."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.wire import Limits, Order
from tests.kit.raw_archives import write_bundle

SERVER = "server-one"
LIMITS = Limits(log=1 << 16, results=1 << 20, disk=1 << 20)


def numbered(prefix: str = "f") -> Callable[[], str]:
    """File names for ``Folders``, the same in every run."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


def bundle_of(folder: Path, files: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Bytes of a sealed bundle and its digest."""
    path = folder / "bundle"
    sealed = write_bundle(path, files)
    data = path.read_bytes()
    path.unlink()
    return data, sealed.digest


def order_of(key: str, data: bytes, digest: str, **changed: Any) -> Order:
    given: dict[str, Any] = {
        "server": SERVER,
        "key": key,
        "service": "example",
        "user_id": "ann",
        "timeout_s": 60.0,
        "limits": LIMITS,
        "bundle_digest": digest,
        "bundle_size": len(data),
    }
    return Order(**(given | changed))
