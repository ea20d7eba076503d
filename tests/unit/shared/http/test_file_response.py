"""A sealed file as an answer."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from shared.http.file_response import send_file
from shared.http.refusals import Denied

SMALL = bytes(range(256)) * 4
LARGE = SMALL * 1024
DIGEST = {len(data): hashlib.sha256(data).hexdigest() for data in (SMALL, LARGE)}


async def answers(
    tmp_path, data: bytes, method: str = "GET", *, around: bytes | None = None, **headers: str
):
    path = tmp_path / "file"
    path.write_bytes(data if around is None else around + data + around)
    section = None if around is None else (len(around), len(data))

    async def get(request: web.Request) -> web.StreamResponse:
        try:
            return await send_file(request, path, "job-1.zip", DIGEST[len(data)], section)
        except Denied as problem:  # as the middlewares of the programs do
            return web.Response(status=problem.status, headers=problem.headers)

    app = web.Application()
    app.router.add_route("*", "/", get)
    given = {name: text.replace("THIS", f'"{DIGEST[len(data)]}"') for name, text in headers.items()}
    async with (
        TestServer(app) as server,
        ClientSession(server.make_url("/")) as session,
        session.request(method, "/", headers=given) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


@pytest.mark.parametrize("around", [None, b"other"], ids=["file", "section"])
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("headers", "status", "part"),
    [
        ({}, 200, slice(None)),
        ({"If-None-Match": "THIS"}, 304, None),
        ({"If-Match": '"other"'}, 412, None),
        ({"If-Match": "THIS"}, 200, slice(None)),
        ({"If-Match": "*"}, 200, slice(None)),
        ({"Range": "bytes=5-9"}, 206, slice(5, 10)),
        ({"Range": "bytes=1000-"}, 206, slice(1000, None)),
        ({"Range": "bytes=-7"}, 206, slice(-7, None)),
        ({"Range": "bytes=99999999-"}, 416, None),
        ({"Range": "bytes=-0"}, 416, None),
        ({"Range": "bytes=0-1,5-6"}, 200, slice(None)),
        ({"Range": "bytes=" + "9" * 5_000 + "-"}, 200, slice(None)),
        ({"Range": "lines=1-2"}, 200, slice(None)),
        ({"Range": "bytes=5-9", "If-Range": "THIS"}, 206, slice(5, 10)),
        ({"Range": "bytes=5-9", "If-Range": '"other"'}, 200, slice(None)),
        ({"Range": "bytes=5-9", "If-Range": 'W/"other"'}, 200, slice(None)),
    ],
)
async def test_conditions_and_ranges(tmp_path, data, around, headers, status, part):
    found, answer_headers, body = await answers(tmp_path, data, around=around, **headers)
    assert found == status
    assert body == (b"" if part is None else data[part])
    if status in (200, 206):
        assert answer_headers["ETag"] == f'"{DIGEST[len(data)]}"'
        assert answer_headers["Repr-Digest"].startswith("sha-256=:")
        assert int(answer_headers["Content-Length"]) == len(body)
    if status == 416:
        assert answer_headers["Content-Range"] == f"bytes */{len(data)}"


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_head_has_the_same_answer_headerswithout_the_bytes(tmp_path, data):
    status, answer_headers, body = await answers(tmp_path, data, "HEAD")
    assert (status, body) == (200, b"")
    assert int(answer_headers["Content-Length"]) == len(data)


async def test_a_large_file_that_is_asked_for_in_parts_is_whole(tmp_path):
    parts = await asyncio.gather(
        *(
            answers(tmp_path, LARGE, Range=f"bytes={start}-{start + 99_999}")
            for start in range(0, len(LARGE), 100_000)
        )
    )
    assert b"".join(body for _, _, body in parts) == LARGE
