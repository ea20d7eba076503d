"""Descriptors without a file object."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)
