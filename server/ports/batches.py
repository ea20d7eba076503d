"""The children of jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from server.domain.batch import Batch, Child, NewChild
from server.domain.jobs import Bundle, Job, Move, Result
from shared.clock import Micros
from shared.wire import JobState


class Batches(Protocol):
    """The part of :class:`server.ports.Jobs` that makes and ends batches."""

    async def batch(self, parent_id: int) -> Batch | None:
        """The children of a job, as they are counted; None: it has none, and will not."""
        ...

    async def batches_of(self, parents: Sequence[int]) -> Mapping[int, Batch]:
        """Likewise, of those jobs that have some or may leave some."""
        ...

    async def due_batches(self, services: Collection[str], limit: int) -> list[tuple[Job, Batch]]:
        """Parents for which there is something to do: children to make or to cancel, or all of
        them have ended.

        Args:
            services: only of these may queued parents begin.
        """
        ...

    async def begin_batch(self, move: Move) -> Job | None:
        """Queued → Running of a parent. Children of an earlier run that failed or were cancelled
        are queued again, each with an event, in the same transaction.
        """
        ...

    async def make_children(
        self, batch: Batch, children: Sequence[NewChild], at: Micros, message: str
    ) -> bool:
        """Queue the next children in one transaction, each as its parent is.

        Returns:
            False: nothing was changed, because the parent does not wait for them or has made some
            since ``batch`` was read.
        """
        ...

    async def defer(self, move: Move, total: int, bundle: Bundle) -> Bundle | None:
        """Make the move of a job that left children: it waits for them from now on.

        Args:
            bundle: stored, with a folder for each of them.

        Returns:
            The stored bundle that they share, which may have been there before. None: the job was
            no longer as the move saw it.

        Raises:
            LeaseLost: the move's lease has another owner by now.
        """
        ...

    async def end_batch(self, move: Move, seen: Batch) -> Job | None:
        """Make a move of a parent, if the counters are as ``seen``."""
        ...

    async def cancel_children(self, parent_id: int, at: Micros, message: str) -> None:
        """Cancel the queued children, and request the cancel of the others that have not ended, in
        one transaction.
        """
        ...

    async def failed_children(self, parent_id: int, limit: int = ...) -> list[str]:
        """The first ones that failed: their names with the reasons."""
        ...

    async def active_children(self, parents: Sequence[int]) -> Mapping[int, int]:
        """How many children of each parent hold a slot; those with none are missing."""
        ...

    async def children(
        self,
        parent_id: int,
        limit: int,
        after_id: int = 0,
        among: Collection[JobState] | None = None,
    ) -> list[Child]:
        """The children of a job, the first one first, those with an id above ``after_id``.

        Args:
            among: those in one of these states; None: all.
        """
        ...

    async def child_results(self, parent_id: int) -> list[tuple[str, Result | None]]:
        """Names and results of the children, in their order."""
        ...
