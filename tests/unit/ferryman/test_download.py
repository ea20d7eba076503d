"""Downloads: whole or not at all, resumed where they broke off."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from ferryman import BadDownload, Client, NoResult, NotFound, NotReady, NotUnderstood, Unreachable
from tests.unit.ferryman.fake_server import InstantClock, hang_up, problem, repr_digest, serving

CONTENT = bytes(range(251)) * 12_000  # 3 MB
ROUTE = "/api/v1/jobs/17/result"


class Serving:
    """Serves ``CONTENT``; breaks off after ``cut`` bytes, as often as set.

    Keeps the Range header of every request.
    """

    def __init__(
        self,
        cut: int = 0,
        breaks: int = 0,
        *,
        etag: Callable[[int], str | None] = lambda _try: '"one"',
        content: Callable[[int], bytes] = lambda _try: CONTENT,
        digest: bool = True,
        ranges: bool = True,
    ) -> None:
        self.cut, self.breaks, self.etag, self.content = cut, breaks, etag, content
        self.digest, self.ranges = digest, ranges
        self.asked: list[str | None] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        number = len(self.asked)
        self.asked.append(request.headers.get("Range"))
        content, etag = self.content(number), self.etag(number)
        start = 0
        asked = request.headers.get("Range")
        if self.ranges and asked and request.headers.get("If-Range", etag) == etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        response = web.StreamResponse(status=206 if start else 200)
        response.content_type = "application/zip"
        response.content_length = len(content) - start
        if start:
            last = len(content) - 1
            response.headers["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
        if etag:
            response.headers["ETag"] = etag
        if self.digest:
            response.headers["Repr-Digest"] = repr_digest(CONTENT)
        await response.prepare(request)
        if number < self.breaks:
            await response.write(content[start : start + self.cut])
            assert request.transport is not None
            request.transport.close()  # what was written still arrives
            return response
        await response.write(content[start:])
        await response.write_eof()
        return response


async def fetch(handler: Serving, to: Path, retry_for: float = 15) -> tuple[Path, InstantClock]:
    clock = InstantClock()
    async with (
        serving(("GET", ROUTE, handler)) as url,
        Client(url, clock=clock, retry_for=retry_for) as client,
    ):
        done = await client.download(17, to)
    assert done.path.read_bytes() == CONTENT
    assert done.size == len(CONTENT)
    assert done.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert done.checked == handler.digest
    return done.path, clock


async def test_a_folder_gets_a_file_named_after_the_job(tmp_path):
    path, _ = await fetch(Serving(), tmp_path)
    assert path == tmp_path / "job-17.zip"
    assert sorted(tmp_path.iterdir()) == [path]


async def test_a_file_is_replaced_and_missing_folders_are_made(tmp_path):
    (tmp_path / "r.zip").write_text("old")
    assert (await fetch(Serving(), tmp_path / "r.zip"))[0] == tmp_path / "r.zip"
    assert (await fetch(Serving(), tmp_path / "a" / "b.zip"))[0] == tmp_path / "a" / "b.zip"


async def test_a_slash_at_the_end_means_a_folder(tmp_path):
    async with serving(("GET", ROUTE, Serving())) as url, Client(url) as client:
        done = await client.download(17, f"{tmp_path}/new/")
    assert done.path == tmp_path / "new" / "job-17.zip"


async def test_a_broken_download_goes_on_where_it_broke_off(tmp_path):
    handler = Serving(cut=1_000_000, breaks=2)
    await fetch(handler, tmp_path)
    assert handler.asked[0] is None
    first, second = (int(asked[6:-1]) for asked in handler.asked[1:] if asked)
    assert 0 < first <= 1_000_000
    assert first < second <= 2_000_000


async def test_progress_begins_the_time_of_retries_again(tmp_path):
    handler = Serving(cut=100_000, breaks=20)
    _, clock = await fetch(handler, tmp_path, retry_for=0.15)
    assert len(handler.asked) == 21
    assert clock.at > 0.15


async def test_another_file_under_the_same_address_starts_anew(tmp_path):
    other = b"x" * 2_000_000
    handler = Serving(
        cut=1_000_000,
        breaks=1,
        etag=lambda number: f'"{number}"',
        content=lambda number: CONTENT if number else other,
        digest=False,  # which would show it, too
    )
    await fetch(handler, tmp_path)


async def test_without_an_etag_or_ranges_it_starts_anew(tmp_path):
    handler = Serving(cut=1_000_000, breaks=1, etag=lambda _: None)
    await fetch(handler, tmp_path)
    assert handler.asked == [None, None]
    await fetch(Serving(cut=1_000_000, breaks=1, ranges=False), tmp_path)


async def test_a_damaged_file_is_fetched_once_more(tmp_path):
    damaged = b"\1" + CONTENT[1:]
    await fetch(Serving(content=lambda number: CONTENT if number else damaged), tmp_path)


async def test_a_file_that_stays_damaged_leaves_nothing_behind(tmp_path):
    (tmp_path / "job-17.zip").write_text("old")
    damaged = b"\1" + CONTENT[1:]
    handler = Serving(content=lambda _: damaged)
    with pytest.raises(BadDownload, match="arrived damaged") as caught:
        await fetch(handler, tmp_path)
    assert caught.value.expected == hashlib.sha256(CONTENT).hexdigest()
    assert caught.value.got == hashlib.sha256(damaged).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["job-17.zip"]
    assert (tmp_path / "job-17.zip").read_text() == "old"
    assert len(handler.asked) == 2


async def test_a_server_that_never_gets_through_is_given_up(tmp_path):
    handler = Serving(cut=10, breaks=1_000)
    handler.ranges = False
    with pytest.raises(Unreachable):
        await fetch(handler, tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_server_without_digests_is_believed(tmp_path):
    await fetch(Serving(digest=False), tmp_path)


async def download(status: int, code: str, tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return problem(status, code, f"the sentence for {code}", Retry_After="3")

    async with serving(("GET", ROUTE, refuse)) as url, Client(url) as client:
        await client.download(17, tmp_path)


@pytest.mark.parametrize(("status", "kind"), [(409, NoResult), (410, NoResult), (404, NotFound)])
async def test_the_error_says_why_there_is_no_result(tmp_path, status, kind):
    with pytest.raises(kind, match="the sentence for why"):
        await download(status, "why", tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_job_that_goes_on_has_no_result_yet(tmp_path):
    async def not_yet(request: web.Request) -> web.StreamResponse:
        return web.json_response({"id": 17}, status=202, headers={"Retry-After": "3"})

    async with serving(("GET", ROUTE, not_yet)) as url, Client(url) as client:
        with pytest.raises(NotReady):
            await client.download(17, tmp_path)


async def test_a_page_is_no_result(tmp_path):
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<h1>Log in</h1>", content_type="text/html")

    async with serving(("GET", ROUTE, page)) as url, Client(url) as client:
        with pytest.raises(NotUnderstood, match="expected application/zip"):
            await client.download(17, tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_partial_result_comes_from_its_own_route(tmp_path):
    async with (
        serving(("GET", "/download_partial/17", Serving())) as url,
        Client(url) as client,
    ):
        done = await client.download(17, tmp_path, partial=True)
    assert done.path.name == "job-17-partial.zip"


async def test_a_reset_before_any_answer_is_tried_again(tmp_path):
    tries = 0
    handler = Serving()

    async def shy(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        if tries < 3:
            hang_up(request)
        return await handler(request)

    async with (
        serving(("GET", ROUTE, shy)) as url,
        Client(url, clock=InstantClock()) as client,
    ):
        assert (await client.download(17, tmp_path)).size == len(CONTENT)
