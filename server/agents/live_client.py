"""What an attempt has written while it runs: its logs and its files, from a Ferryman agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from server.agents import answers
from server.agents.bulk_client import BulkClient
from server.domain.jobs import Job
from server.ports import NoSuchPayload, RefusedByAgent
from shared.http.numbers import whole_number
from shared.wire import FILE_SIZE, LOG_SIZE, RunningFiles

STREAM: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=45)
"""A log that is followed ends after 15 s in which nothing was written."""
_NO_BYTES: Final = 2**62
"""An offset behind every log."""
_GONE: Final = frozenset({"log_gone", "files_gone"})


class LiveClient(BulkClient):
    """The part of :class:`server.agents.ferryman_agent.FerrymanAgent` for attempts that run."""

    async def log_size(self, job: Job, stream: str) -> int:
        async with self._live(job, f"logs/{stream}", offset=_NO_BYTES) as answer:
            return _size(answer, LOG_SIZE)

    async def log(
        self, job: Job, stream: str, offset: int, *, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        async with self._live(job, f"logs/{stream}", offset=offset, follow=int(follow)) as answer:
            while chunk := await answer.content.readany():
                yield chunk

    async def list_files(self, job: Job, after: str, limit: int) -> RunningFiles:
        async with self._live(job, "files", "application/json", after=after, limit=limit) as answer:
            return await answers.document(answer, RunningFiles)

    async def file_size(self, job: Job, path: str) -> int:
        async with self._live(job, f"files/{quote(path, safe='')}", stop=0) as answer:
            return _size(answer, FILE_SIZE)

    async def file(self, job: Job, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        part = f"files/{quote(path, safe='')}"
        async with self._live(job, part, offset=start, stop=stop) as answer:
            while chunk := await answer.content.readany():
                yield chunk

    @asynccontextmanager
    async def _live(
        self,
        job: Job,
        part: str,
        content_type: str = "application/octet-stream",
        **query: str | int,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer about the job's current attempt.

        Args:
            part: of the payload's address, percent-encoded.

        Raises:
            NoSuchPayload: it does not run any more.
        """
        url = f"{self.base}/payloads/{job.payload_id}/{part}"
        asked: dict[str, str | int] = {"key": str(job.key)}
        named = URL(url, encoded=True).update_query(asked | query)
        try:
            async with self._call("GET", str(named), timeout=STREAM) as answer:
                if answer.content_type != content_type:
                    raise ValueError(f"{answer.content_type} in place of {content_type}")
                yield answer
        except RefusedByAgent as problem:
            if problem.code in _GONE:
                raise NoSuchPayload(str(problem)) from problem
            raise


def _size(answer: aiohttp.ClientResponse, header: str) -> int:
    size = whole_number(answer.headers.get(header, ""))
    if size is None:
        raise ValueError(f"an answer without {header}")
    return size
