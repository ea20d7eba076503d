"""Local files that are in the making, or needed for a short time only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from server.ports.storage import RunningServers


class ScratchFile(Protocol):
    """A file that its owner writes; iterated over, it yields its content.

    Attributes:
        path: nothing is there at first.
    """

    @property
    def path(self) -> Path: ...

    def reserve(self, count: int) -> None:
        """Before writing ``count`` more bytes, and after writing those before; for threads, too.

        Raises:
            OSError: ENOSPC: too little disk space would stay free.
        """
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Scratch(Protocol):
    """Scratch files, and how much of the disk may be used for them."""

    def file(self) -> AbstractContextManager[ScratchFile]:
        """A new scratch file. Whatever is at its path at the end is removed."""
        ...

    def free_bytes(self) -> int:
        """Bytes of the disk that are free."""
        ...

    def available_bytes(self) -> int:
        """Bytes that may still be reserved; may be negative."""
        ...

    def check_writable(self) -> None:
        """Raises OSError if a file cannot be made and written."""
        ...

    async def clear(self, running_servers: RunningServers) -> int:
        """At start: remove the files of earlier runs of a server; how many.

        Args:
            running_servers: names the runs that still go on; their files are left alone.
        """
        ...
