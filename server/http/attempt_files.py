"""The files of one attempt, wherever they are: in its stored result, or at its agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web

from server.domain.jobs import Attempt, Job
from server.http import documents
from server.http.context import Context
from server.http.log_source import FILES, find_attempt, live_agent
from server.http.params import int_param
from server.http.problems import Refusal
from server.http.running_files import running_file
from server.http.stored_files import stored_file

MAX_ATTEMPT: Final = 2**31 - 1


class OpenedFile(Protocol):
    """A file of an attempt.

    Attributes:
        size: bytes.
        etag: of its content, without quotes; None: it may change.
        crc: CRC-32 of its content; None: it is not known.
    """

    @property
    def size(self) -> int: ...

    @property
    def etag(self) -> str | None: ...

    @property
    def crc(self) -> int | None: ...

    def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]: ...


async def requested_attempt(
    request: web.Request, context: Context, job: Job, number: int | None = None
) -> Attempt:
    """The attempt that is asked for, or the latest one.

    Raises:
        Refusal: none has started.
        BadField, NoSuchAttempt
    """
    if "attempt" in request.query:
        number = int_param(request, "attempt", 1, 1, MAX_ATTEMPT)
    attempt = await find_attempt(context, job, number)
    if attempt is not None:
        return attempt
    if job.deferred:
        message = f"job {job.id} is the parent of a batch: its children have the files"
        raise Refusal(HTTPStatus.CONFLICT, "files_of_children", message)
    message = f"job {job.id} is {job.state}, and no attempt of it has started: {job.message}"
    headers = documents.when_to_ask_again(job, context.clock.now())
    raise Refusal(HTTPStatus.CONFLICT, "not_started", message, headers=headers)


def opened_file(
    context: Context, job: Job, attempt: Attempt, path: str
) -> AbstractAsyncContextManager[OpenedFile]:
    """One file of an attempt.

    Raises:
        Refusal: there is none, or it cannot be read now; the latter on entering, too.
    """
    agent = live_agent(context, job, attempt, FILES)
    if agent is None:
        return stored_file(context, job, attempt, path)
    return running_file(agent, job, attempt, path)
