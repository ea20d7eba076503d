"""Queued → Failed for jobs that can never start, because a job that they wait for did not complete.

That they may start is no stage's work: the move of the last job that they wait for releases them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.domain import dependencies
from server.stages.stage import Resources, Stage


class Dependencies(Stage):
    """Ends jobs whose dependencies are broken.

    Args:
        more: called when a sweep has left something to the next one, which should come at once.
    """

    def __init__(self, resources: Resources, more: Callable[[], None] = lambda: None) -> None:
        super().__init__(resources)
        self._more = more

    async def run_once(self) -> int:
        """Some hundreds at a time.

        Returns:
            How many jobs were moved.
        """
        now = self._clock.now()
        repaired = await self._jobs.repair_dependencies(now)
        broken = await self._jobs.broken_dependencies()
        # At the same time, so that they share a commit.
        moved = await asyncio.gather(
            *(
                self._jobs.move(dependencies.failed(one, self._service(one.job.service), now))
                for one in broken
            )
        )
        if repaired or broken:
            self._more()  # what depends on them is to follow
        return sum(job is not None for job in moved)
