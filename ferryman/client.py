"""The SDK: a server seen from a program. ``SyncClient`` is the same without ``await``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import BinaryIO, Final, Self, Unpack

from ferryman import errors
from ferryman.answer_errors import conflict_as
from ferryman.answers import Accepted
from ferryman.bundle import Files
from ferryman.client_options import ClientOptions
from ferryman.clock import RealClock
from ferryman.connection import AnyPath, connection
from ferryman.defaults import DEFAULT_URL
from ferryman.download import Download, Downloaded, sink_for
from ferryman.event_models import EventDoc
from ferryman.fields import JobOptions, upload_fields
from ferryman.form import ProgressCallback
from ferryman.job_calls import JobCalls
from ferryman.logs import Stream, fetch_log, follow_log
from ferryman.models import AttemptDoc, AttemptPage, JobDoc, JobPage
from ferryman.operator_calls import OperatorCalls
from ferryman.polling import follow_events, wait_for_end
from ferryman.schedule_calls import ScheduleCalls
from ferryman.states import JobState
from ferryman.token_calls import TokenCalls
from ferryman.transport import Transport
from ferryman.upload import submit

PAGE_SIZE: Final = 100


class Client(JobCalls, ScheduleCalls, OperatorCalls, TokenCalls):
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

    async def submit(
        self,
        files: Files,
        *,
        service: str,
        user: str | None = None,
        name: str | None = None,
        tags: str | Iterable[str] = (),
        idempotency_key: str | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[JobOptions],
    ) -> Accepted:
        """Send a bundle. When this returns, the server will not lose it.

        Args:
            files: a folder (what is in it, relative to it), one archive (.zip, .tar, .tar.gz,
                .tgz), files (by base name), or a mapping of names to paths, bytes or open files.
            service: which kind of work.
            user: whose; default: the client's.
            name: for people, to find it again.
            tags: to find it again; no commas. A string is one tag.
            idempotency_key: default: a random one, so that a repeat after a lost answer is
                harmless.
            progress: called with bytes sent and bytes in all.
            options: see :class:`~ferryman.fields.JobOptions`: limits and timeouts, which are at
                most the service's, retries, an array, dependencies.

        Raises:
            BadBundle: nothing has been sent.
            FileChanged: a file changed meanwhile; there is no job.
            Refused, Unreachable, NotUnderstood
            BadArgument: no user, a bad option, a tag with a comma.
        """
        fields = upload_fields(service, self._user_of(user), name, tags, options)
        return await submit(self._transport, files, fields, idempotency_key, progress)

    async def status(self, job_id: int) -> JobDoc:
        """The job as it is now.

        Raises:
            NotFound, and as :meth:`submit`
        """
        return await self._transport.get(f"api/v1/jobs/{job_id}", JobDoc)

    async def wait(self, job_id: int, timeout: float | None = None) -> JobDoc:
        """Wait until the job has ended; whether it went well is in the document.

        Args:
            timeout: seconds; None: for ever.

        Raises:
            WaitedTooLong: carries the job as it is.
        """
        return await wait_for_end(self._transport, job_id, timeout)

    def events(self, job_id: int, after: int = 0) -> AsyncGenerator[EventDoc, None]:
        """The job's history from the start, then each change as it happens, until it has ended."""
        return follow_events(self._transport, job_id, after)

    async def jobs(
        self,
        *,
        user: str | None = None,
        service: str | None = None,
        state: JobState | str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[JobDoc, None]:
        """Jobs, newest first, fetched page by page as they are asked for.

        Args:
            limit: at most so many; None: all.
        """
        wanted = {"user": user, "service": service, "state": state and str(state), "tag": tag}
        query = {key: value for key, value in wanted.items() if value}
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

    async def attempts(self, job_id: int) -> list[AttemptDoc]:
        """Every attempt that an agent took, the first one first."""
        return (await self._transport.get(f"api/v1/jobs/{job_id}/attempts", AttemptPage)).items

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

    async def download(
        self,
        job_id: int,
        to: AnyPath | BinaryIO = ".",
        *,
        partial: bool = False,
        attempt: int | None = None,
        children: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Downloaded:
        """Fetch the result, a ZIP; a file appears only when it is whole and its digest is right.

        Args:
            to: a folder (the file is then ``job-17.zip`` in it) or the file to write, replaced if
                it is there. A path that ends with a slash is a folder; missing folders are made.
                Or a file that is open for writing bytes.
            partial: what there is by now, whatever the state: of a running job a snapshot, of a
                failed job what it left, logs included.
            attempt: what this attempt left, whatever became of it.
            children: of a parent, what its children left, each in a folder of its name.
            progress: called with bytes received and bytes in all.

        Raises:
            NotReady: the job, or the attempt, has not ended.
            NoResult: it did not complete (the text says why), or it has been cleaned.
            BadDownload, NotFound, and as :meth:`submit`
            OSError: the file cannot be written.
        """
        name, path = f"job-{job_id}", f"api/v1/jobs/{job_id}/result"
        if partial:
            name, path = f"{name}-partial", f"download_partial/{job_id}"
        if partial + children + (attempt is not None) > 1:
            raise errors.BadArgument("choose one of partial, attempt and children")
        if children:
            name, path = f"{name}-children", f"api/v1/batches/{job_id}/result"
        if attempt is not None:
            name = f"{name}-attempt-{attempt}"
            path = f"api/v1/jobs/{job_id}/attempts/{attempt}/result"
        sink = await sink_for(to, f"{name}.zip")
        return await Download(self._transport, path, sink, on_progress=progress).run()

    async def cancel(self, job_id: int) -> JobDoc:
        """Cancel a job, and wait until none of its processes is left.

        Returns:
            The job, Cancelled. Cancelling a cancelled job is no error.

        Raises:
            AlreadyEnded: too late, it ended by itself.
            NotFound, and as :meth:`submit`
        """
        with conflict_as(errors.AlreadyEnded):
            status, job = await self._transport.post(f"api/v1/jobs/{job_id}/cancel", JobDoc)
        if status == 202 or not job.ended:
            job = await self.wait(job_id)
        if job.status is not JobState.CANCELLED:
            why = f"job {job_id} ended as {job.status} before it could be cancelled"
            raise errors.AlreadyEnded(409, "already_ended", why)
        return job
