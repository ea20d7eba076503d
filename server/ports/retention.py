"""What removes jobs and their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.domain.files import FileKind
from server.domain.jobs import Job, Move
from shared.clock import Micros


class Retained(Protocol):
    """The part of :class:`Jobs` that the Cleaner uses."""

    async def expired(self, now: Micros, limit: int) -> list[Job]:
        """Ended jobs whose ``expires_at`` has passed."""
        ...

    async def files_in_use(self, names: Sequence[str]) -> set[str]:
        """Those of the stored files' names that a bundle or an attempt refers to."""
        ...

    async def clean(self, moves: Sequence[Move]) -> tuple[int, list[tuple[FileKind, str]]]:
        """Make the moves into Cleaned, and drop the jobs' idempotency keys.

        Returns:
            How many were made; kind and name of the files that nothing refers to any more.
        """
        ...

    async def delete(self, job_id: int) -> list[tuple[FileKind, str]]:
        """Delete an ended job, its history and its children. Its number is not given again.

        Returns:
            Kind and name of the files that nothing refers to any more.

        Raises:
            NoSuchJob, NotEnded, ChildOfBatch
        """
        ...

    async def request_delete(self, job_id: int, at: Micros, by: str) -> Job:
        """Store that the job is to be deleted as soon as it has ended.

        Raises:
            NoSuchJob
        """
        ...

    async def to_delete(self, limit: int) -> list[Job]:
        """Ended jobs that are to be deleted."""
        ...

    async def cleaned_services(self) -> list[str]:
        """Services of which there are Cleaned jobs."""
        ...

    async def forget(self, service: str, ended_before: Micros, limit: int) -> int:
        """Delete Cleaned jobs and their histories; how many, ``limit`` at most."""
        ...

    async def forget_idempotency_keys(self, before: Micros) -> int: ...

    async def forget_uploaded(self, before: Micros) -> None:
        """Forget what was uploaded on the days before."""
        ...

    async def forget_tickets(self, before: Micros) -> int:
        """Forget the used upload tickets that had to be known until then; how many."""
        ...

    async def maintain(self) -> bool:
        """Give unused space back, some at a time, and find out whether what failed works again.

        Returns:
            Whether there is more to give back.
        """
        ...
