"""Bodies of requests: which are accepted, and when the peer may send one."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import hdrs, web

from shared.http.refusals import Denied


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
    expect = request.headers.get(hdrs.EXPECT, "")
    if expect and expect.strip().lower() != "100-continue":
        raise Denied(
            HTTPStatus.EXPECTATION_FAILED, "expectation", f"Expect: {expect[:32]!r} is not known"
        )


async def defer_expect(_: web.Request) -> None:
    """Expect handler of all routes. aiohttp calls it before any middleware, so it sends nothing. A
    handler that reads a body calls :func:`send_continue` first.
    """


async def send_continue(request: web.Request) -> None:
    """Send "100 Continue", if the peer waits for that."""
    if request.headers.get(hdrs.EXPECT):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # what was sent so far is not the answer's headers
