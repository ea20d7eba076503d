"""One action on many jobs: each as if it had been asked for alone, some of them at a time.

Those of a slice are handed to the database together and share a commit, so other changes get their
turn after each slice. A crash in between leaves the rest undone; what is done again does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

import structlog

from server.domain import states
from server.domain.errors import FerrymanError
from server.stages.by_hand import Delete, RetryByHand
from server.stages.read import read_job, read_list
from server.stages.stage import Core, Stage
from server.store import pages, requests
from server.store.pages import Filter
from shared.principals import Principal
from shared.wire import BulkItem, JobState


class BulkAction(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    TAG = "tag"
    UNTAG = "untag"
    MOVE = "move"


_OPEN: Final = tuple(state for state in JobState if state not in states.ENDED)
AMONG: Final = {
    BulkAction.CANCEL: _OPEN,
    BulkAction.MOVE: _OPEN,
    BulkAction.RETRY: tuple(state for state in JobState if state in states.RETRIED_BY_HAND),
}
"""Where a filter names no state: those whose jobs the action can change."""


log = structlog.get_logger()
_SLICE: Final = 50
_PAGES: Final = 20
"""Most pages of a list that one request looks at for jobs that fit."""


class Bulk(Stage):
    """Cancels, retries, deletes, tags and moves jobs."""

    def __init__(self, core: Core, retry: RetryByHand, delete: Delete) -> None:
        super().__init__(core)
        self._retry, self._delete = retry, delete

    async def choose(
        self,
        principal: Principal,
        action: BulkAction,
        where: Filter,
        before_id: int | None,
        most: int,
    ) -> tuple[list[int], int | None]:
        """The next jobs that fit and that the principal may see, the newest first. Raises
        NotAllowed. Returns their numbers, and the ``before_id`` of what follows (None: nothing
        does).
        """
        if where.states is None:
            where = replace(where, among=AMONG.get(action))
        found: list[int] = []
        for _ in range(_PAGES):
            ids, before_id = await read_list(
                self.core.database, principal, pages.ids, where, before_id, most - len(found)
            )
            found += ids
            if before_id is None or len(found) >= most:
                break
        return found, before_id

    async def __call__(
        self,
        principal: Principal,
        action: BulkAction,
        job_ids: Sequence[int],
        words: Sequence[str] = (),
    ) -> list[BulkItem]:
        """Do it, and say of each job what became of it. ``words``: tags; of a move the service.
        Raises NotAllowed: the principal has no jobs.
        """
        done: list[BulkItem] = []
        for start in range(0, len(job_ids), _SLICE):
            calls = [
                self._one(principal, action, job_id, words)
                for job_id in job_ids[start : start + _SLICE]
            ]
            done += await asyncio.gather(*calls)
        log.info(
            "bulk.done",
            action=action.value,
            by=principal.name,
            jobs=len(done),
            refused=sum(not one.ok for one in done),
        )
        return done

    async def _one(
        self, principal: Principal, action: BulkAction, job_id: int, words: Sequence[str]
    ) -> BulkItem:
        try:
            code, message = await self._do(principal, action, job_id, words)
        except FerrymanError as problem:
            return BulkItem(id=job_id, ok=False, code=problem.code, message=str(problem))
        return BulkItem(id=job_id, ok=True, code=code, message=message)

    async def _do(
        self, principal: Principal, action: BulkAction, job_id: int, words: Sequence[str]
    ) -> tuple[str, str]:
        """Code and message of what was done. Raises FerrymanError: why it was not."""
        by, now = principal.name, self.core.clock.now()
        match action:
            case BulkAction.CANCEL:
                await read_job(self.core.database, principal, job_id)
                job = await self._request_cancel(job_id, now, by)
                if job.ended:
                    return "already_ended", f"job {job_id} has ended already, as {job.state}"
                return "requested", f"job {job_id} ends as soon as its processes are dead"
            case BulkAction.RETRY:
                job = await self._retry(principal, job_id)
                return "queued", f"job {job_id} is Queued, run {job.run}"
            case BulkAction.DELETE:
                kept = await self._delete(principal, job_id, 0.0)
                if kept is None:
                    return "deleted", f"job {job_id} is deleted"
                if kept.ended:
                    why = f"job {job_id} had not ended: it is {kept.state} now, and kept"
                    return "cancelled", why
                why = f"job {job_id} had not ended: it is being cancelled, and kept"
                return "requested", why
            case BulkAction.TAG | BulkAction.UNTAG:
                await read_job(self.core.database, principal, job_id)
                add, remove = (words, ()) if action is BulkAction.TAG else ((), words)
                job = await self.core.database.write(
                    requests.change_tags, job_id, add, remove, now, by
                )
                return "tagged", f"job {job_id} has {len(job.tags)} tags"
            case BulkAction.MOVE:
                (service,) = words
                job = await self.core.database.write(
                    requests.change_service, job_id, service, now, by
                )
                if job.ended:
                    return "already_ended", f"job {job_id} has ended already, as {job.state}"
                return "moved", f"job {job_id} is of service {service}"
