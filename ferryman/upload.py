"""One upload: retried under its key while the server is away, unless the job exists already."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus

from ferryman.answers import Accepted
from ferryman.bundle import Files
from ferryman.errors import BadArgument, NotUnderstood, Refused, TryLater, Unreachable
from ferryman.fields import EARLY
from ferryman.form import BATCH, FormBody, ProgressCallback, form_of
from ferryman.models import JobPage, StatusBody
from ferryman.transport import MAX_RETRY_PAUSE_S, Transport


async def submit(
    transport: Transport,
    files: Files,
    fields: Sequence[tuple[str, str]],
    idempotency_key: str | None,
    on_progress: ProgressCallback | None,
) -> Accepted:
    """Send a bundle; see :meth:`ferryman.Client.submit`."""
    key = idempotency_key or secrets.token_urlsafe(24)
    if not (key.isascii() and key.isprintable()):
        raise BadArgument(f"the idempotency key {key!r} has more than ASCII letters")
    given = dict(fields)
    async with form_of(fields, files) as form:
        upload = Upload(
            transport,
            form,
            user=given.get("user_id"),
            key=key,
            fresh_key=idempotency_key is None,
            # Wrong values of these are refused before the body is sent.
            early_fields={
                field: given[field]
                for field in ("user_id", "service", *sorted(EARLY))
                if field in given
            },
            on_progress=on_progress,
        )
        try:
            body = await upload.run()
        except Refused as problem:
            if problem.status == HTTPStatus.BAD_REQUEST and problem.part in EARLY:
                raise BadArgument(problem.message) from problem
            raise
    return Accepted(body.id, body.status, body.message, key, tuple(body.warnings or ()))


class Upload:
    """A form that is being sent.

    Args:
        user: the job's user; None: the token's.
        key: for ``Idempotency-Key``.
        fresh_key: the key was made for this upload, so a job that has it is this one.
        early_fields: sent in the query, too, so that they can be refused before the body is sent.
    """

    def __init__(
        self,
        transport: Transport,
        form: FormBody,
        *,
        user: str | None,
        key: str,
        fresh_key: bool,
        early_fields: Mapping[str, str],
        on_progress: ProgressCallback | None,
    ) -> None:
        self._transport, self._form, self._on_progress = transport, form, on_progress
        self._user, self._key, self._fresh_key = user, key, fresh_key
        self._early_fields = early_fields
        self._sent_all = False
        """The last try sent the whole body, so there may be a job."""
        self._timed_out = False
        """The last try ended by a timeout: the server may still be working on it."""

    async def run(self) -> StatusBody:
        """Send it; see :meth:`ferryman.Client.submit` for the errors."""
        try:
            return await self._transport.retry(self._send_once)
        except (Unreachable, TryLater) as problem:
            if self._sent_all:
                problem.add_note("all of the bundle was sent, so there may be a job all the same")
            raise

    async def _send_once(self) -> StatusBody:
        if self._sent_all and self._fresh_key:
            job = await self._find_job()
            if job is not None:
                return job
        self._sent_all = self._timed_out = False
        headers = {
            "Content-Type": self._form.content_type,
            "Content-Length": str(self._form.size),
            "Idempotency-Key": self._key,
        }
        try:
            async with self._transport.answer(
                "POST",
                "upload",
                query=self._early_fields,
                headers=headers,
                body=self._body(),
                # A refusal before the body is worth a round trip only where the body is large.
                expect_continue=self._form.size > BATCH,
            ) as answer:
                return await self._transport.read(answer, StatusBody)
        except Unreachable as problem:
            self._timed_out = isinstance(problem.__cause__, TimeoutError | asyncio.TimeoutError)
            raise
        except TryLater as problem:
            if problem.code:  # from the server itself, not from a proxy: there is no job
                self._sent_all = False
            self._timed_out = problem.status == HTTPStatus.GATEWAY_TIMEOUT
            raise

    async def _body(self) -> AsyncIterator[bytes]:
        left = self._form.size
        async for piece in self._form.stream(self._on_progress):
            left -= len(piece)
            self._sent_all = not left
            yield piece

    async def _find_job(self) -> StatusBody | None:
        """The job that has the key, if any. After a timeout the server gets as long again."""
        clock = self._transport.clock
        end = clock.monotonic() + (self._transport.timeout if self._timed_out else 0)
        query = {"idempotency_key": self._key} | ({"user": self._user} if self._user else {})
        while True:
            try:
                page = await self._transport.get_once("api/v1/jobs", JobPage, query=query)
            except TryLater:
                raise
            except (Refused, NotUnderstood):  # a server that cannot look a key up
                return None
            if page.items:
                job = page.items[0]
                return StatusBody(
                    id=job.id, status=job.status, message=job.message, warnings=job.warnings
                )
            if clock.monotonic() >= end:
                return None
            await clock.sleep(MAX_RETRY_PAUSE_S)
