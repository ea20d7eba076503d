"""Errors of the agent or its disk, not of the file that it wanted to open."""

from __future__ import annotations

import errno
from typing import Final

SHORTAGE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The agent has too few descriptors or too little memory. It should try again later."""
DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def raise_if_shortage(problem: OSError) -> None:
    """Raise the error if the agent is short of something. Then the file must not be skipped."""
    if problem.errno in SHORTAGE_ERRNOS:
        raise problem
