"""Documents that a poller has already: 304 in place of the same again."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web

_KEPT: Final = (hdrs.ETAG, hdrs.CACHE_CONTROL, hdrs.RETRY_AFTER)


def tag_of(content: bytes) -> str:
    """The entity tag of a document; weak, since it is of what it says and not of its bytes."""
    return f'W/"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def conditional(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """The answer to a GET, with an entity tag where it is a JSON document; 304 if the caller has
    named that in ``If-None-Match``.
    """
    if (
        request.method not in (hdrs.METH_GET, hdrs.METH_HEAD)
        or not isinstance(answer, web.Response)
        or answer.status != HTTPStatus.OK
        or answer.content_type != "application/json"
        or hdrs.CACHE_CONTROL in answer.headers  # not to be stored, or with rules of its own
        or not isinstance(answer.body, bytes)
    ):
        return answer
    tag = answer.headers.setdefault(hdrs.ETAG, tag_of(answer.body))
    answer.headers[hdrs.CACHE_CONTROL] = "private, no-cache"
    if not _names(request.headers.getall(hdrs.IF_NONE_MATCH, []), tag):
        return answer
    kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=kept)


def _names(headers: list[str], tag: str) -> bool:
    """Whether the tag is one of those in ``If-None-Match``, strong or weak."""
    tags = [one.strip() for header in headers for one in header.split(",")]
    return "*" in tags or tag.removeprefix("W/") in (one.removeprefix("W/") for one in tags)
