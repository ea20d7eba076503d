"""The SDK: a server seen from a program. ``SyncClient`` is the same without ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Final, Self, Unpack

from ferryman import errors
from ferryman.browser_calls import BrowserCalls
from ferryman.bundle import Content, Files, named_files
from ferryman.client_options import ClientOptions
from ferryman.clock import RealClock
from ferryman.connection import connection
from ferryman.defaults import DEFAULT_URL
from ferryman.event_models import EventDoc
from ferryman.fields import JobFilter, JobOptions, filter_query
from ferryman.file_calls import FileCalls
from ferryman.job_calls import JobCalls
from ferryman.logs import Stream, fetch_log, follow_log
from ferryman.models import JobDoc, JobPage
from ferryman.operator_calls import OperatorCalls
from ferryman.ordered import buffered
from ferryman.polling import follow_events, wait_for_end
from ferryman.result import Result
from ferryman.schedule_calls import ScheduleCalls
from ferryman.states import JobState
from ferryman.submit_calls import SubmitCalls
from ferryman.token_calls import TokenCalls
from ferryman.transport import Transport
from ferryman.webhook_calls import WebhookCalls

PAGE_SIZE: Final = 100


class Client(
    SubmitCalls,
    BrowserCalls,
    FileCalls,
    JobCalls,
    ScheduleCalls,
    OperatorCalls,
    TokenCalls,
    WebhookCalls,
):
    """A Ferryman server.

    Use it as ``async with Client(url) as client``; one client may do many things at once.

    Args:
        url: of the server, with the path below which a proxy shows it.
        options: see :class:`~ferryman.client_options.ClientOptions`: token, user, proxy,
            certificates, and how long to try.

    Raises:
        BadArgument: not an http or https URL, a token or header that no request can carry, or
            certificates that cannot be used.
    """

    def __init__(self, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> None:
        unknown = options.keys() - ClientOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"a client has no option {min(unknown)!r}")
        token, act_as = options.get("token"), options.get("act_as")
        self.user = options.get("user") or act_as
        self._has_token = bool(token)
        self._transport = Transport(
            connection(
                url,
                token=token,
                act_as=act_as,
                headers=options.get("headers"),
                proxy=options.get("proxy"),
                trust_env=options.get("trust_env", True),
                ca_file=options.get("ca_file"),
                client_cert=options.get("client_cert"),
                client_key=options.get("client_key"),
            ),
            timeout=options.get("timeout", 60.0),
            retry_for=options.get("retry_for", 15.0),
            clock=options.get("clock") or RealClock(),
        )

    @property
    def url(self) -> str:
        return str(self._transport.base)

    @property
    def retry_for(self) -> float:
        """Seconds to keep trying while the server cannot be reached."""
        return self._transport.retry_for

    @retry_for.setter
    def retry_for(self, seconds: float) -> None:
        self._transport.retry_for = seconds

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def status(self, job_id: int) -> JobDoc:
        """The job as it is now.

        Raises:
            NotFound, and as :meth:`submit`
        """
        return await self._transport.get(f"api/v1/jobs/{job_id}", JobDoc)

    async def wait(self, job_id: int, timeout: float | None = None) -> Result:
        """Wait until the job has ended; whether it went well is in the document.

        Args:
            timeout: seconds; None: for ever.

        Returns:
            The job's document, which also gives what the job left: see
            :class:`~ferryman.result.Result`.

        Raises:
            WaitedTooLong: carries the job as it is.
        """
        return Result.of(await wait_for_end(self._transport, job_id, timeout), self)

    async def map(
        self,
        bundle: Files,
        inputs: Iterable[Mapping[str, Content]],
        *,
        service: str,
        user: str | None = None,
        tags: str | Iterable[str] = (),
        idempotency_key: str | None = None,
        at_once: int = 4,
        ahead: int = 1_000,
        **options: Unpack[JobOptions],
    ) -> AsyncGenerator[Result, None]:
        """Run the same bundle with each of these inputs, a job each.

        Whoever stops early leaves the jobs that were submitted to go on. Where the inputs fit in
        one bundle, ``submit(…, array=…)`` sends it only once.

        Args:
            bundle: as :meth:`submit` takes it, but no archive and no open files.
            inputs: of each job, the files that it gets besides, or in place of the bundle's; taken
                as they are needed.
            idempotency_key: beginning of the keys of all, so that the whole can be repeated.
            at_once: uploads at the same time.
            ahead: most jobs that are submitted before their results are taken.
            tags, options: as :meth:`submit`

        Returns:
            The results, in the order of the inputs; those of jobs that failed, too.

        Raises:
            As :meth:`submit`, after the results of the jobs before.
        """
        common = await asyncio.to_thread(named_files, bundle)
        accepted = self.submit_many(
            ({**common, **more} for more in inputs),
            service=service,
            user=user,
            tags=tags,
            idempotency_key=idempotency_key,
            at_once=at_once,
            **options,
        )
        async with aclosing(buffered(accepted, ahead)) as jobs:
            async for job in jobs:
                yield await self.wait(job.id)

    def events(self, job_id: int, after: int = 0) -> AsyncGenerator[EventDoc, None]:
        """The job's history from the start, then each change as it happens, until it has ended."""
        return follow_events(self._transport, job_id, after)

    async def jobs(
        self, *, limit: int | None = None, **where: Unpack[JobFilter]
    ) -> AsyncGenerator[JobDoc, None]:
        """Jobs, newest first, fetched page by page as they are asked for.

        Args:
            limit: at most so many; None: all.
            where: see :class:`~ferryman.fields.JobFilter`.
        """
        query = filter_query(where)
        left = limit
        while left is None or left > 0:
            query["limit"] = str(PAGE_SIZE if left is None else min(PAGE_SIZE, left))
            page = await self._transport.get("api/v1/jobs", JobPage, query=query)
            for job in page.items:
                yield job
            if page.next is None:
                return
            query["cursor"] = page.next
            left = None if left is None else left - len(page.items)

    async def log(self, job_id: int, attempt: int | None = None, stream: Stream = "stdout") -> str:
        """What an attempt wrote; bytes that are not UTF-8 are replaced.

        Args:
            attempt: None: the latest one that has logs.

        Raises:
            NotReady: the attempt has not ended, or there is none yet.
            NoResult: it left no logs, or they have been cleaned.
            NotFound, and as :meth:`submit`
        """
        return await fetch_log(self._transport, job_id, attempt, stream)

    def follow_log(
        self,
        job_id: int,
        attempt: int | None = None,
        stream: Stream = "stdout",
        *,
        tail: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """What an attempt writes, as it writes it, until it has ended; waits for its start.

        Args:
            attempt: None: the latest one, or the first one to start.
            tail: begin with its last so many bytes.

        Raises:
            NoResult: there is no log; the text says why.
            NotFound, and as :meth:`submit`
        """
        return follow_log(self._transport, job_id, attempt, stream, tail)

    async def cancel(self, job_id: int) -> JobDoc:
        """Cancel a job, and wait until none of its processes is left.

        Returns:
            The job, Cancelled. Cancelling a cancelled job is no error.

        Raises:
            AlreadyEnded: too late, it ended by itself.
            NotFound, and as :meth:`submit`
        """
        try:
            status, job = await self._transport.post(f"api/v1/jobs/{job_id}/cancel", JobDoc)
        except errors.Conflict as problem:
            raise problem.as_kind(errors.AlreadyEnded) from None
        if status == 202 or not job.ended:
            job = await self.wait(job_id)
        if job.status is not JobState.CANCELLED:
            why = f"job {job_id} ended as {job.status} before it could be cancelled"
            raise errors.AlreadyEnded(409, "already_ended", why)
        return job
