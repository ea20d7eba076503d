"""Errors that say nothing about the file at hand."""

from __future__ import annotations

import errno
from typing import Final

SHORTAGE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Numbers of errors that say nothing about the file at hand: the agent is short of descriptors or
memory, and tries again."""
