"""What tests send to agents."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import BundleWriter
from shared.wire import Limits

SERVER = "server-one"
LIMITS = Limits(log=1 << 16, results=1 << 20, disk=1 << 20)


def numbered(prefix: str = "f") -> Callable[[], str]:
    """File names for ``Folders``, the same in every run."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


def write_bundle(path: Path, files: Mapping[str, bytes]) -> BundleSummary:
    """A sealed bundle at ``path``."""
    writer = BundleWriter(path, max_files=1000, max_bytes=1 << 30)
    for name, data in files.items():
        writer.add(name)
        writer.write(data)
        writer.end()
    return writer.finish()
