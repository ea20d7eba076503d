"""Bodies of requests: which are accepted, and when the peer may send one."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDictProxy

from shared.http.refusals import Denied

_EXPECT: Final = web.RequestKey("expect", str)
_CHARSETS: Final = frozenset(
    {"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "iso8859-1", "iso_8859-1"}
    | {"latin-1", "latin1"}
)
"""Of texts in bodies. Python knows a hundred more, and to decode some of them takes time that grows
with the square of the length."""
_LONGEST_TYPE: Final = 300
_PARAMETER: Final = (
    r"""([!#$%&'*+.^_`|~0-9A-Za-z-]++)[ \t]*+=[ \t]*+("[^"\\]*+"|[^\s;"()\\]*+)[ \t]*+"""
)
_TYPE: Final = re.compile(rf"""[^;"()\\]*+(?:;[ \t]*+(?:{_PARAMETER})?+)*+""")
_PARAMETERS: Final = re.compile(rf";[ \t]*+{_PARAMETER}")


def check_body(request: web.Request) -> None:
    """Raises Denied for a body that no route accepts."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if encoding not in ("", "identity"):
        raise Denied(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "content_encoding",
            f"a body with Content-Encoding {encoding[:32]!r} is not taken; send it as it is",
            {"Accept-Encoding": "identity"},
        )
    _check_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
    expect = request.get(_EXPECT, "")
    if expect and expect.strip().lower() != "100-continue":
        raise Denied(
            HTTPStatus.EXPECTATION_FAILED, "expectation", f"Expect: {expect[:32]!r} is not known"
        )


def _check_type(header: str) -> None:
    """Raises Denied for a content type that is dear to read, or whose charset is dear to decode.

    aiohttp gives the header to a parser of mail. For 8 KiB of it, that one takes a second, and it
    reads comments and encoded words, in which a charset could hide.
    """
    if len(header) > _LONGEST_TYPE or not _TYPE.fullmatch(header) or "=?" in header:
        raise Denied(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "content_type",
            f"the Content-Type is not as in: text/plain; charset=utf-8 (at most {_LONGEST_TYPE} "
            "characters)",
        )
    for name, value in _PARAMETERS.findall(header):
        text = value.strip('"').strip()
        # "charset*" and "charset*0" are further ways to write it.
        if name.lower().startswith("charset") and text.lower() not in _CHARSETS:
            raise Denied(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "charset",
                f"a body with the charset {text[:32]!r} is not taken; send UTF-8",
            )


def hide_expect(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Make requests without their header ``Expect``, and keep its value for us.

    aiohttp would answer it before any middleware sees the request. A handler that reads a body
    calls :func:`send_continue` first.
    """

    def make_request(message: RawRequestMessage, *more: Any) -> web.BaseRequest:
        expect = message.headers.get(hdrs.EXPECT)
        if expect is None:
            return make(message, *more)
        headers = message.headers.copy()
        headers.popall(hdrs.EXPECT)
        request = make(message._replace(headers=CIMultiDictProxy(headers)), *more)
        request[_EXPECT] = expect
        return request

    return make_request


async def send_continue(request: web.Request) -> None:
    """Send "100 Continue", if the peer waits for that."""
    if request.get(_EXPECT):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # what was sent so far is not the answer's headers
