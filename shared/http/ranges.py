"""Conditional requests and ranges (RFC 9110) of content whose size is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import ETag, hdrs, web

from shared.http.refusals import Denied


@dataclass(frozen=True, slots=True)
class Part:
    """What to send: the bytes from ``start`` up to, not including, ``stop``."""

    status: int
    start: int
    stop: int
    headers: Mapping[str, str]
    """Those that say which part it is."""


def requested_part(
    request: web.Request, size: int, etag: str | None, headers: Mapping[str, str]
) -> Part | web.Response:
    """The part that is asked for, or the whole answer where no content is to be sent.

    Args:
        etag: of the content, without quotes; None: it changes, so that no condition on it holds.
        headers: of an answer that it has not changed.

    Raises:
        Denied: it is another one than the request is about, or has nothing in the range.
    """
    if etag is not None and _matches(request.if_none_match, etag):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    if request.if_match is not None and (etag is None or not _matches(request.if_match, etag)):
        message = "the content is another one than If-Match names"
        raise Denied(HTTPStatus.PRECONDITION_FAILED, "precondition_failed", message)
    wanted = _range(request, size, etag)
    if wanted is None:
        return Part(HTTPStatus.OK, 0, size, {})
    start, stop = wanted
    if start >= stop:
        raise Denied(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            "invalid_range",
            f"it has {size} bytes, none of them in that range",
            {hdrs.CONTENT_RANGE: f"bytes */{size}"},
        )
    where: dict[str, str] = {hdrs.CONTENT_RANGE: f"bytes {start}-{stop - 1}/{size}"}
    return Part(HTTPStatus.PARTIAL_CONTENT, start, stop, where)


def _matches(wanted: tuple[ETag, ...] | None, etag: str) -> bool:
    return wanted is not None and any(tag.value in (etag, "*") for tag in wanted)


def _range(request: web.Request, size: int, etag: str | None) -> tuple[int, int] | None:
    """Start and stop; an empty range cannot be satisfied; None: send everything."""
    if_range = request.headers.get(hdrs.IF_RANGE)
    if request.method not in ("GET", "HEAD") or (
        if_range is not None and (etag is None or if_range.strip() != f'"{etag}"')
    ):
        return None
    if re.fullmatch(r"bytes=-0+", request.headers.get(hdrs.RANGE, "").strip()):
        return size, size  # the last 0 bytes; aiohttp would send all
    try:
        wanted = request.http_range
    except ValueError:
        return None  # several ranges or nonsense: RFC 9110 lets us ignore the header
    if wanted.start is None and wanted.stop is None:
        return None
    start, stop, _ = wanted.indices(size)
    return (start, stop) if size else (0, 0)
