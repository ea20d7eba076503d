"""Parents of batches: their children are made, and they end with them.

A queued parent is not sent: it becomes Running and has its children made, a thousand a
transaction, which also says how many there are now; a crash in between repeats nothing. Its end
is decided when the last child has ended (:mod:`server.domain.batch`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from server.domain import batch as rules
from server.domain import ending
from server.domain.batch import Batch
from server.domain.errors import NoSuchJob
from server.domain.jobs import Bundle, FileKind, Job
from server.stages import deferral
from server.stages.array_lines import array_lines
from server.stages.stage import Stage
from server.store import batches, dependencies
from shared.files.names import BundleError
from shared.files.opened import to_end
from shared.wire import JobState

log = structlog.get_logger()
_PARENTS_AT_ONCE: Final = 100
_CHILDREN_AT_ONCE: Final = 1_000


class Batches(Stage):
    """Begins and ends batches."""

    async def run_once(self) -> int:
        """Do what is to be done for each parent; how many there were."""
        begin = [service.name for service in self.core.services.values() if not service.paused]
        due = await self.core.database.read(batches.due, begin, _PARENTS_AT_ONCE)
        for parent, batch in due:
            try:
                await self._advance(parent, batch)
            except NoSuchJob:  # it was cancelled and deleted meanwhile
                continue
            except (OSError, BundleError):
                log.exception("batch.failed", job_id=parent.id)
        if len(due) == _PARENTS_AT_ONCE:
            self.core.wakeups.batches.set()
        return len(due)

    async def _advance(self, parent: Job, batch: Batch) -> None:
        if parent.state is JobState.QUEUED:
            now = self.core.clock.now()
            begun = await self.core.database.write(batches.begin, parent.id, now)
            if begun is None:
                return
            parent, batch = begun
        if parent.cancel_requested_at is None:
            while batch.rest_after is not None:
                now = self.core.clock.now()
                again = await self.core.database.write(batches.queue_again, parent.id, now)
                if again is None:
                    return  # it is to be cancelled
                batch = again
            if batch.gives_up and batch.ended < batch.made:
                await self._cancel_children(parent.id, self.core.clock.now())
                return
            if batch.made < batch.total and not batch.gives_up:
                await self._make(parent, batch)
                return
        elif batch.ended < batch.made:  # a crash left children that were not cancelled with it
            await self._cancel_children(parent.id, self.core.clock.now())
            return
        if batch.ended == batch.made:
            service, now = self._service(parent.service), self.core.clock.now()
            await self.core.database.write(batches.end, parent.id, service, now)

    async def _make(self, parent: Job, batch: Batch) -> None:
        names = await self._read(batch.bundle, deferral.child_names) if batch.bundle else ()
        while batch.made < batch.total:
            first, last = batch.made, batch.made + _CHILDREN_AT_ONCE
            if batch.bundle is not None:
                children = rules.folders(names[first:last])
            else:
                lines: tuple[str, ...] = ()
                if batch.array_file is not None and parent.bundle is not None:
                    work = partial(_some_lines, batch.array_file, first, last)
                    with suppress(BundleError, FileNotFoundError):  # as the children will find it
                        lines = await self._read(parent.bundle, work)
                children = rules.tasks(batch, first, _CHILDREN_AT_ONCE, lines)
            message = f"a child of job {parent.id}"
            now = self.core.clock.now()
            made = await self.core.database.write(
                batches.make_children, batch, children, now, message
            )
            if made is None:
                return
            self.core.measures.jobs.uploaded(now, parent.service, len(children))
            batch = made
        log.info("batch.made", job_id=parent.id, children=batch.total)

    async def _read(
        self, bundle: Bundle, work: Callable[[Path], tuple[str, ...]]
    ) -> tuple[str, ...]:
        """What a blocking function reads from a stored bundle."""
        async with self.core.contents.local_copy(FileKind.BUNDLE, bundle) as path:
            return await to_end(partial(work, path))


def _some_lines(name: str, first: int, last: int, bundle: Path) -> tuple[str, ...]:
    return tuple(itertools.islice(array_lines(bundle, name), first, last))


class Dependencies(Stage):
    """Ends queued jobs that can never start, because a job that they wait for did not complete.

    That they may start is no stage's work: the move of the last job that they wait for releases
    them.
    """

    async def run_once(self) -> int:
        """Some hundreds at a time; how many were moved."""
        now = self.core.clock.now()
        ended = await self._move_some(
            dependencies.broken,
            lambda one: ending.dependency_failed(one, self._service(one.job.service), now),
        )
        if ended:
            self.core.wakeups.dependencies.set()  # what depends on them is to follow
        return ended
