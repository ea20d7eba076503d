"""The files of attempts that run, from their agents, as they are now."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from server.domain.jobs import Attempt, Job
from server.domain.media_types import media_type
from server.http.log_source import FILES, why_not
from server.http.stored_files import no_such_file
from server.ports import Agent, AgentError, RefusedByAgent
from shared.wire import FileDoc
from shared.wire import RunningFile as FileInfo

MAX_FILES: Final = 500
"""In one answer of an agent."""
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class RunningFile:
    """One file.

    Attributes:
        size: bytes when it was asked for.
        etag, crc: None: it may change at any time.
    """

    etag: str | None = None
    crc: int | None = None

    def __init__(self, agent: Agent, job: Job, attempt: Attempt, path: str, size: int) -> None:
        self._agent, self._job, self._attempt = agent, job, attempt
        self._path, self.size = path, size

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``; fewer where it has changed.

        Raises:
            Refusal: it cannot be read now.
        """
        left = stop - start
        try:
            async with aclosing(self._agent.file(self._job, self._path, start, stop)) as some:
                async for chunk in some:
                    yield chunk[:left]
                    left -= min(left, len(chunk))
        except AgentError as problem:
            raise why_not(self._job, self._attempt, problem, FILES) from problem


async def list_running(
    agent: Agent, job: Job, attempt: Attempt, after: str, limit: int
) -> tuple[list[FileDoc], str | None]:
    """Some files of an attempt, behind the path ``after``.

    Returns:
        The files, and the path behind which others follow; None: there are no more.

    Raises:
        Refusal: they cannot be read now.
    """
    try:
        found = await agent.list_files(job, after, min(limit, MAX_FILES))
    except AgentError as problem:
        raise why_not(job, attempt, problem, FILES) from problem
    last = found.files[-1].path if found.files and found.more else None
    return [_doc(one) for one in found.files], last


@asynccontextmanager
async def running_file(
    agent: Agent, job: Job, attempt: Attempt, path: str
) -> AsyncIterator[RunningFile]:
    """One file of an attempt.

    Raises:
        Refusal: there is none, or it cannot be read now.
    """
    if path in (".", ".."):  # the address at the agent would be another one
        raise no_such_file(job, path)
    try:
        size = await agent.file_size(job, path)
    except AgentError as problem:
        if isinstance(problem, RefusedByAgent) and problem.code == "file_not_found":
            why = str(problem).removeprefix(f"{path}: ")
            raise no_such_file(job, path, why=why) from None
        raise why_not(job, attempt, problem, FILES) from problem
    yield RunningFile(agent, job, attempt, path, size)


def _doc(one: FileInfo) -> FileDoc:
    when = datetime.fromtimestamp(min(max(0.0, one.modified), _LATEST), UTC)
    return FileDoc(path=one.path, size=one.size, type=media_type(one.path), modified_at=when)
