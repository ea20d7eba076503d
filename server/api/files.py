"""The files of a job, one by one: of its result, or of the attempt that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from aiohttp import hdrs, web

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.permits import Shows
from server.http.context import Context
from server.http.files import (
    MAX_ATTEMPT,
    OpenedFile,
    list_running,
    list_stored,
    opened_file,
    requested_attempt,
)
from server.http.logs import FILES, live_agent
from server.http.media_types import saved_as, shown_as
from server.http.params import Param, flag, flag_param, int_param, whole, word
from server.http.requested_job import requested_job
from server.http.route import JOB, Route
from shared import wire
from shared.http.file_response import requested_part, send_chunks
from shared.http.numbers import whole_number
from shared.wire import FilePage

_MOST: Final = 10_000
_MAX_CURSOR: Final = 2**62


async def page(request: web.Request, context: Context) -> FilePage:
    """The files of a job: of its result, or, while it runs, those that are there now."""
    limit = int_param(request, "limit", 1_000, 1, _MOST)
    cursor = _Cursor.of(request)
    job = await requested_job(request, context)
    attempt = await requested_attempt(request, context, job, cursor.attempt)
    agent = live_agent(context, job, attempt, FILES)
    behind: str | int | None
    if agent is not None:
        items, behind = await list_running(agent, job, attempt, cursor.path, limit)
    elif cursor.path:
        why = f"attempt {attempt.number} has ended meanwhile: list its files again without cursor"
        raise BadField("cursor", "invalid_cursor", why)
    else:
        items, behind = await list_stored(context, job, attempt, cursor.at, limit)
    return FilePage(
        attempt=attempt.number,
        running=agent is not None,
        items=items,
        next=None if behind is None else str(_Cursor(attempt.number, behind)),
    )


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where a page goes on: ``ATTEMPT.POSITION`` of a result, ``ATTEMPT/PATH`` while it runs."""

    attempt: int | None = None
    behind: int | str = 0

    @classmethod
    def of(cls, request: web.Request) -> _Cursor:
        """That of the query; without one, the first page. Raises BadField."""
        text = request.query.get("cursor")
        if text is None:
            return cls()
        digits = len(text) - len(text.lstrip("0123456789"))
        attempt, mark, rest = text[:digits], text[digits : digits + 1], text[digits + 1 :]
        number = whole_number(attempt, least=1, most=MAX_ATTEMPT)
        behind = whole_number(rest, most=_MAX_CURSOR) if mark == "." else rest
        if number is None or behind is None or mark not in (".", "/"):
            why = f"cursor should be next of the page before, not {text[:32]!r}"
            raise BadField("cursor", "invalid_cursor", why)
        return cls(number, behind)

    def __str__(self) -> str:
        return f"{self.attempt}{'/' if isinstance(self.behind, str) else '.'}{self.behind}"

    @property
    def path(self) -> str:
        return self.behind if isinstance(self.behind, str) else ""

    @property
    def at(self) -> int:
        return self.behind if isinstance(self.behind, int) else 0


async def read(request: web.Request, context: Context) -> web.StreamResponse:
    """One file of a job: of its result, or, while it runs, as it is now."""
    inline = flag_param(request, "inline")
    path = request.match_info["path"]
    job = await requested_job(request, context)
    attempt = await requested_attempt(request, context, job)
    async with opened_file(context, job, attempt, path) as file:
        return await _send(request, file, path, inline=inline)


async def _send(
    request: web.Request, file: OpenedFile, path: str, *, inline: bool
) -> web.StreamResponse:
    headers = _headers(path, inline=inline) | {
        hdrs.ACCEPT_RANGES: "bytes",
        hdrs.CACHE_CONTROL: "no-store" if file.etag is None else "private, no-cache",
    }
    if file.etag is not None:
        headers[hdrs.ETAG] = f'"{file.etag}"'
    part = requested_part(request, file.size, file.etag, headers)
    if isinstance(part, web.Response):
        return part
    return await send_chunks(request, part, headers, file.chunks)


def _headers(path: str, *, inline: bool) -> dict[str, str]:
    """What a browser may do with a file that anybody may have written: save it; or show it, if it
    is text or an image, without running anything.
    """
    name = path.rpartition("/")[2]
    shown = shown_as(path) if inline else None
    return {
        hdrs.CONTENT_TYPE: shown or saved_as(path),
        hdrs.CONTENT_DISPOSITION: f"{'inline' if shown else 'attachment'}; "
        f"filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'; img-src 'self'; "
        "style-src 'unsafe-inline'",
    }


_ATTEMPT: Final = {"attempt": whole("its number; the latest where it is missing", 1, MAX_ATTEMPT)}
_PAGES: Final[dict[str, Param]] = {
    "limit": whole("files on a page", 1, _MOST, 1_000),
    "cursor": word("what the page before gave as next", 1_100, r"^[0-9]+[./].*$"),
}
_INLINE: Final = {"inline": flag("1: text and images may be shown, not only saved")}
_ANY: Final = "*/*"

ROUTES: Final = (
    Route(
        "GET",
        f"{JOB}/files",
        Area.JOBS,
        page,
        {200: wire.FilePage},
        _ATTEMPT | _PAGES,
        by_link=(Shows.JOB,),
    ),
    Route(
        "GET",
        f"{JOB}/files/{{path}}",
        Area.JOBS,
        read,
        {200: _ANY, 206: _ANY, 304: None},
        _ATTEMPT | _INLINE,
        by_link=(Shows.JOB, Shows.FILE),
    ),
)
