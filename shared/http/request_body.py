"""Bodies of requests: which are taken, and when they are asked for."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import hdrs, web

from shared.http.refusals import Denied


def check_body(request: web.Request) -> None:
    """Raises Denied for a body that is not taken, whatever the route."""
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


async def no_expect(_: web.Request) -> None:
    """For routes: aiohttp asks this before any middleware, so it says nothing yet. A handler that
    reads a body calls :func:`go_on` first.
    """


async def go_on(request: web.Request) -> None:
    """Ask for the body, if the peer waits for that."""
    if request.headers.get(hdrs.EXPECT):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # what was sent so far is not the answer's headers
