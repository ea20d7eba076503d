"""Running → Running: a job that ended well and left children waits for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import Protocol

import structlog

from server.domain import batch, ending
from server.domain.files import FileKind
from server.domain.jobs import Bundle, Job, Move, Result
from server.ports import ScratchFile, Storage
from server.stages import fan_out
from server.stages.fan_out import Children
from server.stages.stage import Resources, Stage
from shared.files.errors import BundleError
from shared.wire import JobState, Reason

log = structlog.get_logger()


class ChildrenOf(Protocol):
    """As :func:`server.stages.fan_out.children_of`."""

    def __call__(
        self, storage: Storage, result: Result, to: ScratchFile, *, most: int, max_bytes: int
    ) -> Awaitable[Children]: ...


class Deferral(Stage):
    """Takes the children out of a result that was just stored.

    Args:
        children_of: makes their bundle.
    """

    def __init__(self, resources: Resources, children_of: ChildrenOf = fan_out.children_of) -> None:
        super().__init__(resources)
        self._children_of = children_of

    async def __call__(self, job: Job, ended: Move, result: Result, agent: str) -> Move | bool:
        """Defer the job.

        Args:
            ended: the move to Completed that would be made else.

        Returns:
            Whether it was made. A move: to be made instead, because the children are not run.

        Raises:
            LeaseLost, OSError
        """
        if not batch.may_fan_out(job):
            if job.gather:
                return ended  # The folders in children/ are what its children left.
            note = "the folders in children/ are not run: a child of a batch leaves no further ones"
            warnings = [*ended.facts.get("warnings", ()), note]
            return dataclasses.replace(ended, facts={**ended.facts, "warnings": warnings})
        if job.cancel_requested_at is not None:
            message = "cancelled; the children that it left are not run"
            return self._instead(job, ended, JobState.CANCELLED, message)
        async with self._scratch.file() as content:
            most = self._service(job.service).max_children
            try:
                children = await self._children_of(
                    self._storage, result, content, most=most, max_bytes=job.limits.disk
                )
            except BundleError as problem:
                message = f"the children that it left cannot be run: {problem}"
                return self._instead(job, ended, JobState.FAILED, message, Reason.INVALID_BUNDLE)
            return await self._defer(job, ended, children, content, agent)

    def _instead(
        self, job: Job, ended: Move, to: JobState, message: str, reason: Reason | None = None
    ) -> Move:
        return ending.end(
            job,
            to,
            self._service(job.service),
            ended.at,
            message,
            reason,
            changes=batch.without_end(ended),
            through=ended.through,
            facts=ended.facts,
            live=ended.live,
        )

    async def _defer(
        self, job: Job, ended: Move, children: Children, content: ScratchFile, agent: str
    ) -> bool:
        async with self._storage.pending(FileKind.BUNDLE) as pending:
            own = children.bundle
            file = await pending.put(content)
            move = dataclasses.replace(
                batch.deferred(job, ended, len(children.names)), lease=self._held_lease(agent)
            )
            bundle = Bundle(file, own.size, own.digest)
            kept = await self._jobs.defer(move, len(children.names), bundle)
            if kept is None:
                return False
            if kept.file == file:
                pending.commit()
        log.info(
            "job.deferred",
            job_id=job.id,
            user_id=job.user_id,
            service=job.service,
            attempt=job.attempt,
            agent=agent,
            run_s=ended.run_s,
            children=len(children.names),
        )
        return True
