"""What an attempt writes while it runs, as its agent shows it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from server.domain.jobs import Job
from shared.running_files import RunningFiles


class LiveAgent(Protocol):
    """The part of :class:`server.ports.Agent` that only Ferryman agents have."""

    async def log_size(self, job: Job, stream: str) -> int:
        """How many bytes the job's current attempt has written so far to "stdout" or "stderr".
        Ferryman agents only, as is :meth:`log`.

        Raises:
            NoSuchPayload: it has ended there, so its logs are in its result.
        """
        ...

    def log(
        self, job: Job, stream: str, offset: int, *, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        """What it has written, from ``offset`` on.

        Args:
            follow: goes on with what it writes; ends when it has ended, or wrote nothing for a
                while.

        Raises:
            NoSuchPayload: as above.
        """
        ...

    async def list_files(self, job: Job, after: str, limit: int) -> RunningFiles:
        """The files that the job's current attempt has now, behind the path ``after``; not more
        than ``limit``. Ferryman agents only, as are the next two.

        Raises:
            NoSuchPayload: it does not run any more: they are in its result.
        """
        ...

    async def file_size(self, job: Job, path: str) -> int:
        """Bytes of one of them.

        Raises:
            RefusedByAgent: code ``file_not_found``.
            NoSuchPayload: as above.
        """
        ...

    def file(self, job: Job, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``; fewer where it has changed.

        Raises:
            RefusedByAgent, NoSuchPayload: as above.
        """
        ...
