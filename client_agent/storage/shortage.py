"""Errors of the agent, not of the file that it wanted to open."""

from __future__ import annotations

import errno
from typing import Final

SHORTAGE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The agent has too few descriptors or too little memory. It should try again later."""
