"""The SDK: a server seen from a program. ``SyncClient`` is the same without ``await``."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal, Self, TypeAlias, Unpack

from pydantic import PrivateAttr

from ferryman import errors
from ferryman.bundle import Content, Files, named_files
from ferryman.clock import RealClock
from ferryman.defaults import DEFAULT_URL
from ferryman.download import Download, Downloaded, sink_for, unpack
from ferryman.errors import BadArgument, NotFound, Refused
from ferryman.follow import (
    PAGE_SIZE,
    Stream,
    buffered,
    fetch_log,
    follow_events,
    follow_log,
    in_order,
    pages,
    wait_for_end,
)
from ferryman.models.events import EventDoc, EventPage, LinkDoc, LoginLinkDoc, TicketDoc
from ferryman.models.jobs import (
    BulkAnswer,
    BulkItem,
    FileDoc,
    FilePage,
    JobDoc,
    JobPage,
    ScheduleDoc,
    SchedulePage,
)
from ferryman.models.operators import Accepted
from ferryman.operators import Operators
from ferryman.states import JobState
from ferryman.transport import AnyPath, ClientOptions, Transport, connection, no_result
from ferryman.upload import (
    JobFilter,
    JobOptions,
    ProgressCallback,
    filter_query,
    form_of,
    submit,
    upload_fields,
)

BulkAction: TypeAlias = Literal["cancel", "retry", "delete", "tag", "untag", "move"]
Shown: TypeAlias = Literal["job", "result", "file"]
_MAX_IDS: Final = 1_000
"""That the server takes in one request."""


class Client(Operators):
    """A Ferryman server.

    Use it as ``async with Client(url) as client``; one client may do many things at once.

    Args:
        url: of the server, with the path below which a proxy shows it.
        options: see :class:`~ferryman.transport.ClientOptions`: token, user, proxy,
            certificates, and how long to try.

    Raises:
        BadArgument: not an http or https URL, a token or header that no request can carry, or
            certificates that cannot be used.
    """

    def __init__(self, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> None:
        unknown = options.keys() - ClientOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"a client has no option {min(unknown)!r}")
        self.user = options.get("user") or options.get("act_as")
        self._has_token = bool(options.get("token"))
        self._transport = Transport(
            connection(url, options),
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

    def _user_of(self, user: str | None) -> str | None:
        """Whose job it is; None: the token's user, if the server knows one. Raises BadArgument."""
        user = user or self.user
        if user is None and not self._has_token:
            raise BadArgument("whose job is it? give user=…, here or to the client")
        return user

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
                .tgz), files (by base name), or a mapping of names to paths or bytes.
            service: which kind of work.
            user: whose; default: the client's.
            name: for people, to find it again.
            tags: to find it again; no commas. A string is one tag.
            idempotency_key: default: a random one, so that a repeat after a lost answer is
                harmless.
            progress: called with bytes sent and bytes in all.
            options: see :class:`~ferryman.upload.JobOptions`: limits and timeouts, which are at
                most the service's, retries, an array, dependencies.

        Raises:
            BadBundle: nothing has been sent.
            FileChanged: a file changed meanwhile; there is no job.
            Refused, Unreachable, NotUnderstood
            BadArgument: no user, a bad option, a tag with a comma.
        """
        fields = upload_fields(service, self._user_of(user), name, tags, options)
        return await submit(self._transport, files, fields, idempotency_key, progress)

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
            bundle: as :meth:`submit` takes it, but no archive.
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
        words = [tags] if isinstance(tags, str) else list(tags)
        each = (
            partial(
                self.submit,
                {**common, **more},
                service=service,
                user=user,
                tags=words,
                idempotency_key=f"{idempotency_key}.{at}" if idempotency_key else None,
                **options,
            )
            for at, more in enumerate(inputs)
        )
        async with aclosing(buffered(in_order(each, at_once), ahead)) as jobs:
            async for job in jobs:
                yield await self.wait(job.id)

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
            :class:`~ferryman.client.Result`.

        Raises:
            WaitedTooLong: carries the job as it is.
        """
        return Result.of(await wait_for_end(self._transport, job_id, timeout), self)

    async def events(
        self, job_id: int, after: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[EventDoc, None]:
        """The job's history from the start, then each change as it happens, until it has ended.

        Args:
            after: from behind this ``seq``.
            follow: False: only what has happened so far.

        Raises:
            NotFound, and as :meth:`submit`
        """
        found = follow_events(self._transport, job_id, after)
        if not follow:
            path, query = f"api/v1/jobs/{job_id}/events", {"after": str(after)}
            found = pages(self._transport, path, EventPage, query, cursor="after")
        async with aclosing(found) as events:
            async for event in events:
                yield event

    async def jobs(
        self, *, limit: int | None = None, **where: Unpack[JobFilter]
    ) -> AsyncGenerator[JobDoc, None]:
        """Jobs, newest first, fetched page by page as they are asked for.

        Args:
            limit: at most so many; None: all.
            where: see :class:`~ferryman.upload.JobFilter`.
        """
        query = {**filter_query(where), "limit": str(PAGE_SIZE)}
        async for job in pages(self._transport, "api/v1/jobs", JobPage, query, limit=limit):
            yield job

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
        bundle: bool = False,
        only_new: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Downloaded:
        """Fetch the result, a ZIP; a file appears only when it is whole and its digest, or where
        the server says none the checksums in it, are right.

        Args:
            to: a folder (the file is then ``job-17.zip`` in it) or the file to write, replaced if
                it is there. A path that ends with a slash is a folder; missing folders are made.
                Or a file that is open for writing bytes.
            partial: what there is by now, whatever the state: of a running job a snapshot, of a
                failed job what it left, logs included.
            attempt: what this attempt left, whatever became of it.
            children: of a parent, what its children left, each in a folder of its name.
            bundle: what was uploaded, whatever the state.
            only_new: without files of the bundle that are there as they were sent.
            progress: called with bytes received and bytes in all.

        Raises:
            NotReady: the job, or the attempt, has not ended.
            NoResult: it did not complete (the text says why), or it has been cleaned.
            BadDownload, NotFound, and as :meth:`submit`
            OSError: the file cannot be written.
        """
        name, path = f"job-{job_id}", f"api/v1/jobs/{job_id}/result"
        query: dict[str, str] = {}
        if partial:
            name, path = f"{name}-partial", f"download_partial/{job_id}"
        if partial + children + bundle + (attempt is not None) > 1:
            raise BadArgument("choose one of partial, attempt, children and bundle")
        if bundle:
            name, path = f"{name}-bundle", f"api/v1/jobs/{job_id}/bundle"
        if children:
            name, query = f"{name}-children", {"children": "1"}
        if attempt is not None:
            name, query = f"{name}-attempt-{attempt}", {"attempt": str(attempt)}
        if only_new:
            if partial or bundle:
                raise BadArgument("only_new is of results, not with partial or bundle")
            name, query = f"{name}-new", {**query, "only": "new"}
        sink = await sink_for(to, f"{name}.zip")
        return await Download(self._transport, path, sink, query=query, on_progress=progress).run()

    async def save(
        self,
        job_id: int,
        to: AnyPath,
        *,
        partial: bool = False,
        attempt: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Path:
        """Fetch the result, and unpack it once it has arrived whole.

        Args:
            to: a folder, made if need be, which gets the files; those of the same names are
                replaced. A path that ends with ``.zip`` gets the ZIP instead.
            partial, attempt, progress: as :meth:`download`

        Returns:
            ``to``

        Raises:
            As :meth:`download`
        """
        target = Path(to)
        if target.suffix.lower() == ".zip":
            await self.download(job_id, target, partial=partial, attempt=attempt, progress=progress)
            return target
        was_there = await asyncio.to_thread(target.is_dir)
        await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=target) as file:
                await self.download(
                    job_id, file, partial=partial, attempt=attempt, progress=progress
                )
                await asyncio.to_thread(unpack, file, target)
        except BaseException:
            if not was_there:
                with contextlib.suppress(OSError):  # it is not empty
                    await asyncio.to_thread(target.rmdir)
            raise
        return target

    async def files(
        self, job_id: int, *, attempt: int | None = None
    ) -> AsyncGenerator[FileDoc, None]:
        """The files of the result, or while the job runs those that are there now.

        Args:
            attempt: None: the latest one.

        Raises:
            NotReady: none has started, or it is between two places: try again.
            NoResult: there are none; the text says why.
            NotFound, and as :meth:`submit`
        """
        query = {} if attempt is None else {"attempt": str(attempt)}
        while True:
            try:
                page = await self._transport.get(
                    f"api/v1/jobs/{job_id}/files", FilePage, query=query
                )
            except Refused as problem:
                raise no_result(problem) from None
            for file in page.items:
                yield file
            if page.next is None:
                return
            query["cursor"] = page.next

    async def fetch(
        self,
        job_id: int,
        path: str,
        to: AnyPath | BinaryIO = ".",
        *,
        attempt: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Downloaded:
        """Fetch one file of a job, without the others; while it runs, as it is now.

        Args:
            path: as :meth:`files` has it.
            to: as :meth:`download` takes it; in a folder the file gets its own name.

        Raises:
            NotFound: no such job or file.
            NotReady, NoResult: as :meth:`files`
            As :meth:`download`
        """
        if not {"", ".", ".."}.isdisjoint(path.split("/")):  # a URL with them means another route
            raise NotFound(404, "file_not_found", f"job {job_id} has no file “{path}”")
        sink = await sink_for(to, path.rpartition("/")[2])
        route = f"api/v1/jobs/{job_id}/files/{path}"
        query = {} if attempt is None else {"attempt": str(attempt)}
        return await Download(
            self._transport, route, sink, query=query, media=None, on_progress=progress
        ).run()

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

    async def add_schedule(
        self,
        files: Files,
        *,
        cron: str,
        service: str,
        name: str,
        user: str | None = None,
        time_zone: str | None = None,
        tags: str | Iterable[str] = (),
        **options: Unpack[JobOptions],
    ) -> ScheduleDoc:
        """Store a bundle, and have the server make a job of it at each time.

        A time at which the job before has not ended makes none. It is sent once: after an error,
        look with :meth:`schedules` whether it is there.

        Args:
            files: as :meth:`submit` takes them.
            cron: minute, hour, day of the month, month, day of the week.
            name: of the schedule, and of its jobs.
            time_zone: such as ``"Europe/Amsterdam"``; None: UTC.
            options: as :meth:`submit` takes them; each job gets them.

        Raises:
            Conflict: the user has a schedule of that name.
            As :meth:`submit`
        """
        fields = upload_fields(service, self._user_of(user), name, tags, options)
        fields += [("cron", cron)] + ([("time_zone", time_zone)] if time_zone else [])
        form = await form_of(fields, files)
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.size)}
        async with self._transport.answer(
            "POST", "api/v1/schedules", headers=headers, body=form.stream()
        ) as answer:
            return await self._transport.read(answer, ScheduleDoc)

    async def schedules(self, *, user: str | None = None) -> AsyncGenerator[ScheduleDoc, None]:
        """Schedules, newest first."""
        query = {"user": user} if user else {}
        async for schedule in pages(self._transport, "api/v1/schedules", SchedulePage, query):
            yield schedule

    async def delete_schedule(self, schedule_id: int) -> None:
        """Delete it; its jobs stay. Raises NotFound."""

        async def once() -> None:
            async with self._transport.answer("DELETE", f"api/v1/schedules/{schedule_id}"):
                pass

        await self._transport.retry(once)

    async def create_ticket(
        self,
        user: str | None = None,
        *,
        service: str | None = None,
        expires_in: float | str | None = None,
        max_bytes: int | str | None = None,
        fields: Mapping[str, str] | None = None,
        return_to: str | None = None,
    ) -> TicketDoc:
        """Make an upload ticket; for portals and operators. Whoever has its ``upload_url`` may
        upload once, without a token.

        Args:
            user: whose job it becomes; None: the client's user.
            service: None: the form says which.
            expires_in: seconds, or text such as ``"15m"``; at most a day.
            max_bytes: of the upload: a number, or text such as ``"100MB"``.
            fields: further fields of the form, which it then cannot change.
            return_to: page that a plain form is sent on to.

        Raises:
            BadArgument: there is no user.
            NotAllowed: the token is not a portal's, or not for this user.
            Refused: something is not as it should be; the text says what.
        """
        body = {
            "user_id": self._user_of(user),
            "service": service,
            "expires_in": expires_in,
            "max_bytes": max_bytes,
            "fields": None if fields is None else dict(fields),
            "return_to": return_to,
        }
        return (await self._transport.post("api/v1/tickets", TicketDoc, json=_given(body)))[1]

    async def create_link(
        self,
        job_id: int,
        what: Shown = "job",
        *,
        path: str | None = None,
        expires_in: float | str | None = None,
    ) -> LinkDoc:
        """Make a signed link. Whoever has its ``url`` may read what it shows, without a token.

        Args:
            what: ``"job"`` is all of it, page and result included.
            path: of the file, with ``"file"``.
            expires_in: seconds, or text such as ``"7d"``; at most 30 days.

        Raises:
            NotFound
            Refused: something is not as it should be; the text says what.
        """
        body = _given({"what": what, "path": path, "expires_in": expires_in})
        return (await self._transport.post(f"api/v1/jobs/{job_id}/links", LinkDoc, json=body))[1]

    async def login_link(self) -> LoginLinkDoc:
        """Make a link to the dashboard. Whoever opens its ``url`` within a minute is logged in as
        the client is, once; where no login is needed, it is the dashboard's address.
        """
        return (await self._transport.post("api/v1/login-links", LoginLinkDoc))[1]


class Ended(JobDoc):
    """The document of a job that has ended, and the client that fetches what it left."""

    _client: Any = PrivateAttr()

    @classmethod
    def of(cls, job: JobDoc, client: object) -> Self:
        """The job as this client sees it."""
        result = cls.model_construct(**dict(job))
        result._client = client
        return result  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        # Without its client, which belongs to this process.
        return JobDoc.model_validate, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # nothing in it changes


class Result(Ended):
    """The document of a job that has ended, with what it left.

    It needs the client from which it came to be open. In another process it is the document alone.
    """

    _client: Client = PrivateAttr()

    async def save(
        self, to: AnyPath, *, partial: bool = False, progress: ProgressCallback | None = None
    ) -> Path:
        """Fetch and unpack what it left; see :meth:`ferryman.Client.save`.

        Args:
            to: a folder, or a path that ends with ``.zip``.
            partial: also of a job that did not complete: what there is.
        """
        return await self._client.save(self.id, to, partial=partial, progress=progress)

    def files(self) -> AsyncGenerator[FileDoc, None]:
        """The files that it left; see :meth:`ferryman.Client.files`."""
        return self._client.files(self.id)


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in body.items() if one is not None}
