"""Uploads: the form of a bundle, sent again under its key while the server is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from difflib import get_close_matches
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias, TypedDict
from urllib.parse import quote

from ferryman.bundle import BundleFile, Files, gather
from ferryman.errors import (
    BadArgument,
    BadBundle,
    FileChanged,
    NotUnderstood,
    Refused,
    TryLater,
    Unreachable,
)
from ferryman.models.jobs import JobPage, StatusBody
from ferryman.models.operators import Accepted
from ferryman.states import JobState, Reason
from ferryman.transport import MAX_RETRY_PAUSE_S, Transport

Duration: TypeAlias = str | float
"""Such as ``"1h30m"``, or seconds."""
Words: TypeAlias = str | Iterable[str]


class JobOptions(TypedDict, total=False):
    """What an upload may ask for; None: the service's, or none."""

    memory: str | int | None
    """Bytes, or such as ``"512MB"``; at most the service's, as the next four."""
    disk: str | int | None
    cpus: str | float | None
    pids: str | int | None
    timeout: Duration | None
    """Wall time of an attempt."""
    queue_timeout: Duration | None
    """Longest wait for a start."""
    heartbeat_timeout: Duration | None
    """Longest time without output, progress or heartbeat."""
    expires_after: Duration | None
    """How long everything is kept after the end."""
    not_before: str | datetime | None
    """When it may start: a time with an offset from UTC, or ``"in 2h"``."""
    priority: int | None
    """-100 to 100, among the jobs of the same user."""
    meta: Mapping[str, Any] | None
    """Any JSON; it is shown with the job."""
    retries: int | None
    retry_delays: str | Iterable[Duration] | None
    backoff: Literal["constant", "linear", "exponential", "exponential_jitter"] | None
    """In place of ``retry_delays``, from ``retry_delay`` up to ``max_retry_delay``."""
    retry_delay: Duration | None
    max_retry_delay: Duration | None
    retry_on: Words | None
    """Reason codes, and exit codes as ``"exit:3"``."""
    no_retry_on: Words | None
    array: str | range | None
    """A child for each index, such as ``"0-99"`` or ``range(100)``."""
    array_file: str | None
    """A child for each line of this file of the bundle."""
    max_parallel: int | None
    """Most children under way at once."""
    batch_policy: Literal["wait_all", "fail_fast"] | None
    after: str | int | Iterable[int] | None
    """Jobs that have to complete before it starts."""
    inputs_from: str | int | Iterable[int] | None
    """Likewise; it gets their result files below ``inputs/``."""
    callback_url: str | None
    """An http or https address to which the server posts a webhook when the job has ended."""
    outputs: Words | None
    """Patterns of the files that its result is to have, such as ``"out/*.csv"``; None: all."""
    result_files: Literal["all", "changed"] | None
    """``"changed"``: without files of the bundle and inputs that are as they were."""


class JobFilter(TypedDict, total=False):
    """Which jobs are meant; all may be left out."""

    user: str | None
    service: str | None
    state: JobState | str | None
    tag: str | None
    name: str | None
    text: str | None
    """Their number, or part of the name, a tag or the message."""
    reason: Reason | str | None
    """Why they failed."""
    dead_letter: bool
    """Only those that failed for good and are kept."""
    batch: bool
    """Only parents of batches."""
    parent: int | None
    """Only the children of this job."""
    top_level: bool
    """Without the children of batches."""
    schedule: int | None
    """Only those that this schedule made."""
    after: int | None
    """Only those that begin after this job, or take its files."""
    since: str | None
    """Uploaded then or later: a time with its offset from UTC, or how long ago, such as ``"2h"``.
    """
    until: str | None


def filter_query(where: JobFilter) -> dict[str, str]:
    """As the server takes it.

    Raises:
        TypeError: there is no such filter.
    """
    for name in where:
        if name not in JobFilter.__annotations__:
            raise TypeError(f"jobs cannot be chosen by {name!r}")
    given = {name: value for name, value in where.items() if value}
    return {name: "true" if value is True else str(value) for name, value in given.items()}


_DURATIONS: Final = frozenset(
    {
        *("timeout", "queue_timeout", "heartbeat_timeout", "expires_after"),
        *("retry_delay", "max_retry_delay"),
    }
)
EARLY: Final = frozenset(JobOptions.__annotations__) - {"meta"}
"""Refused before the body is sent where they are wrong."""


def upload_fields(
    service: str, user: str | None, name: str | None, tags: str | Iterable[str], options: JobOptions
) -> list[tuple[str, str]]:
    """The text fields of an upload. What their values may be is the server's to say. Raises
    BadArgument.
    """
    fields = [("user_id", user)] if user else []
    fields.append(("service", service))
    if name:
        fields.append(("name", name))
    tag_list = [tags] if isinstance(tags, str) else list(tags)
    if any("," in tag for tag in tag_list):
        raise BadArgument("a tag cannot have a comma")
    if tag_list:
        fields.append(("tags", ",".join(tag_list)))
    for option, value in options.items():
        if option not in JobOptions.__annotations__:
            nearest = get_close_matches(option, JobOptions.__annotations__, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise TypeError(f"submit() has no argument {option!r}{hint}")
        if value is not None:
            fields.append((option, _text(option, value)))
    return fields


def _text(option: str, value: Any) -> str:
    """The value as the form has it."""
    if isinstance(value, str):
        return value
    if option in _DURATIONS:
        return f"{_plain(value)}s"
    match value:
        case datetime():
            if value.tzinfo is None:
                raise BadArgument(f"{option}: a time without a time zone could mean any")
            return value.isoformat()
        case Mapping():
            return json.dumps(value)
        case range():
            return _indices(option, value)
        case int() | float():
            return _plain(value)
    each: Callable[[Any], str] = _duration if option == "retry_delays" else str
    return ",".join(map(each, value))


def _duration(value: Duration) -> str:
    return value if isinstance(value, str) else f"{_plain(value)}s"


def _indices(option: str, indices: range) -> str:
    if not indices or indices.step < 0:
        raise BadArgument(f"{option}: {indices} has no indices that ascend")
    return f"{indices.start}-{indices[-1]}:{indices.step}"


def _plain(number: float) -> str:
    """Without an exponent, which no duration or size has."""
    return str(number) if isinstance(number, int) else f"{number:f}".rstrip("0").rstrip(".")


BATCH: Final = 1 << 20
"""Bytes read in one go; also one hop to a thread."""

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class FormBody:
    """``multipart/form-data`` (RFC 7578): text fields first, so that a refusal can come early.

    Args:
        fields: names and values.
        parts: files; each file name is the path in the bundle.
        boundary: for tests; must not occur in any file.
    """

    def __init__(
        self,
        fields: Iterable[tuple[str, str]],
        parts: Sequence[BundleFile],
        boundary: str | None = None,
    ) -> None:
        self._boundary = boundary or f"ferryman-{secrets.token_hex(16)}"
        opening = b"--" + self._boundary.encode()
        self._text = b"".join(
            opening + _disposition(name) + b"\r\n\r\n" + value.encode() + b"\r\n"
            for name, value in fields
        )
        self._parts = [
            (
                opening
                + _disposition(part.field, part.name)
                + b"\r\nContent-Type: application/octet-stream\r\n\r\n",
                part,
            )
            for part in parts
        ]
        self._end = opening + b"--\r\n"
        self.content_type = f"multipart/form-data; boundary={self._boundary}"
        self.size = (
            len(self._text)
            + sum(len(head) + part.size + 2 for head, part in self._parts)
            + len(self._end)
        )
        """Bytes of the body: the Content-Length."""

    def pieces(self) -> Iterator[bytes]:
        """The body, in pieces of at most :data:`BATCH` bytes.

        Raises:
            FileChanged: a file is not what it was when its size was read.
            BadBundle: a file cannot be read any more.
        """
        yield self._text
        for head, part in self._parts:
            yield head
            yield from _content(part)
            yield b"\r\n"
        yield self._end

    def batches(self) -> Generator[bytes, None, None]:
        """:meth:`pieces`, small ones joined."""
        waiting: list[bytes] = []
        size = 0
        for piece in self.pieces():
            if size + len(piece) > BATCH:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(piece)
            size += len(piece)
        yield b"".join(waiting)

    async def stream(self, on_progress: ProgressCallback | None = None) -> AsyncIterator[bytes]:
        """:meth:`batches`, read in threads."""
        batches = self.batches()
        sent = 0
        try:
            while batch := await asyncio.to_thread(next, batches, b""):
                yield batch
                sent += len(batch)
                if on_progress is not None:
                    on_progress(sent, self.size)
        finally:
            # A thread may still be inside after a cancellation; it closes the file when it is done.
            with contextlib.suppress(ValueError):
                batches.close()


async def form_of(fields: Iterable[tuple[str, str]], files: Files) -> FormBody:
    """The form of an upload. Raises BadBundle."""
    return FormBody(fields, await asyncio.to_thread(gather, files))


def _disposition(field: str, filename: str | None = None) -> bytes:
    text = f'\r\nContent-Disposition: form-data; name="{_quoted(field)}"'
    if filename is not None and set('%"\\').isdisjoint(filename):
        text += f'; filename="{_quoted(filename)}"'
    elif filename is not None:
        # In a plain file name, these could be meant as they are, or as the sign for another one.
        text += f"; filename*=UTF-8''{quote(filename)}"
    return text.encode()


def _quoted(text: str) -> str:
    """As browsers do it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _content(part: BundleFile) -> Iterator[bytes]:
    if isinstance(part.source, bytes):
        yield from (part.source[at : at + BATCH] for at in range(0, part.size, BATCH))
        return
    path = part.source
    try:
        with path.open("rb", buffering=0) as file:
            _check_same(part, path, file.fileno())
            yield from _pieces(file, part.size, path)
            _check_same(part, path, file.fileno())
    except OSError as problem:
        raise BadBundle(f"{path}: {problem.strerror}", path) from problem


def _pieces(file: IO[bytes], size: int, path: Path) -> Iterator[bytes]:
    left = size
    while left:
        piece = file.read(min(left, BATCH))
        if not piece:
            raise FileChanged(path)
        left -= len(piece)
        yield piece


def _check_same(part: BundleFile, path: Path, fd: int) -> None:
    info = os.fstat(fd)
    now = (info.st_dev, info.st_ino, info.st_mtime_ns)
    if info.st_size != part.size or now != part.identity:
        raise FileChanged(path)


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
    form = await form_of(fields, files)
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
