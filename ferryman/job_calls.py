"""What becomes of jobs that have ended, of many at once, and of batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from ferryman.bulk_models import BulkAnswer, BulkItem
from ferryman.calls import Calls
from ferryman.errors import BadArgument
from ferryman.fields import JobFilter, filter_query
from ferryman.models import JobDoc

BulkAction: TypeAlias = Literal["cancel", "retry", "delete", "tag", "untag", "move"]
_MAX_IDS: Final = 1_000
"""That the server takes in one request."""


class JobCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def retry(self, job_id: int) -> JobDoc:
        """Begin a new run of a job that failed or was cancelled, with fresh retries.

        Raises:
            Conflict: it cannot be retried; the text says why.
            NotFound, and as :meth:`submit`
        """
        return (await self._transport.post(f"api/v1/jobs/{job_id}/retry", JobDoc))[1]

    async def delete(self, job_id: int) -> JobDoc | None:
        """Delete a job that has ended, with all that it left; cancel one that has not.

        Returns:
            None: it is deleted. The job: it had not ended, so it is cancelled and kept; it is not
            ``ended`` yet while its processes may be alive.

        Raises:
            Conflict: others need it; the text says who.
            NotFound, and as :meth:`submit`
        """

        async def once() -> JobDoc | None:
            async with self._transport.answer("DELETE", f"api/v1/jobs/{job_id}") as answer:
                return None if answer.status == 204 else await self._transport.read(answer, JobDoc)

        return await self._transport.retry(once)

    async def bulk(
        self,
        action: BulkAction,
        ids: Iterable[int] | None = None,
        where: JobFilter | None = None,
        *,
        tags: Iterable[str] = (),
        service: str | None = None,
    ) -> AsyncGenerator[BulkItem, None]:
        """Do the same to many jobs.

        Args:
            ids: which ones; None: those that fit ``where``; all where that is empty.
            tags: to add or take away.
            service: that jobs are moved to; for operators.

        Returns:
            What became of each.
        """
        body: dict[str, Any] = {"action": action}
        if tags:
            body["tags"] = list(tags)
        if service is not None:
            body["service"] = service
        if ids is None:
            if where is None:
                raise BadArgument("say which jobs: ids, or where; where={} is all of them")
            chosen = filter_query(where)
            body |= {"filter": chosen} if chosen else {"all": True}
            more = True
            while more:
                answer = await self._bulk(body)
                for item in answer.items:
                    yield item
                more, body["cursor"] = answer.more, answer.next
            return
        wanted = list(ids)
        for start in range(0, len(wanted), _MAX_IDS):
            answer = await self._bulk({**body, "ids": wanted[start : start + _MAX_IDS]})
            for item in answer.items:
                yield item

    async def _bulk(self, body: Mapping[str, Any]) -> BulkAnswer:
        return (await self._transport.post("api/v1/jobs/bulk", BulkAnswer, json=body))[1]
