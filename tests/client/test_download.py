"""Results: whole or not at all, resumed where they broke off, unpacked, and file by file."""

import copy
import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any, BinaryIO

import pytest
from aiohttp import web

from ferryman import JobDoc, JobState, errors
from ferryman.download import ObjectSink, leads_elsewhere, target_path, unpack
from tests.client import fake_server
from tests.client.fake_server import HERE, FakeServer, doc, hang_up, job, page, problem
from tests.kit.each import each
from tests.kit.raw_archives import RawZip, zipped

CONTENT = zipped({"a": bytes(range(251)) * 12_000}, zipfile.ZIP_STORED)  # 3 MB
DAMAGED = CONTENT[:1_000] + b"x" + CONTENT[1_001:]
RESULT = f"GET {HERE}/result"


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
        asked = request.headers.get("Range")
        self.asked.append(asked)
        content, etag = self.content(number), self.etag(number)
        start = 0
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
            response.headers["Repr-Digest"] = fake_server.repr_digest(CONTENT)
        await response.prepare(request)
        if number < self.breaks:
            await response.write(content[start : start + self.cut])
            assert request.transport is not None
            request.transport.close()  # what was written still arrives
            return response
        await response.write(content[start:])
        await response.write_eof()
        return response


async def fetch(handler: Serving, to: Path | str | BinaryIO, retry_for: float = 15) -> float:
    """How long it took by the client's clock."""
    fake = FakeServer().on(RESULT, handler)
    async with fake.serving(), fake.client(retry_for=retry_for) as client:
        done = await client.download(17, to)
    if isinstance(to, Path | str):
        assert done.path.read_bytes() == CONTENT
    else:
        assert str(done.path) == "-"
    assert (done.size, done.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert done.checked == handler.digest
    return fake.clock.at


async def test_files_are_replaced_folders_are_made_and_get_a_file_named_after_the_job(tmp_path):
    (tmp_path / "r.zip").write_text("old")
    for to in (tmp_path, tmp_path / "r.zip", tmp_path / "a" / "b.zip", f"{tmp_path}/new/"):
        await fetch(Serving(), to)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert found == {"job-17.zip", "r.zip", "a/b.zip", "new/job-17.zip"}


async def test_a_broken_download_goes_on_where_it_broke_off(tmp_path):
    handler = Serving(cut=1_000_000, breaks=2)
    await fetch(handler, tmp_path)
    assert handler.asked[0] is None
    first, second = (int(asked[6:-1]) for asked in handler.asked[1:] if asked)
    assert 0 < first <= 1_000_000
    assert first < second <= 2_000_000
    handler = Serving(cut=100_000, breaks=20)  # progress begins the time of retries again
    assert await fetch(handler, tmp_path, retry_for=0.15) > 0.15
    assert len(handler.asked) == 21


async def test_another_file_under_the_same_address_starts_anew(tmp_path):
    other = b"x" * 2_000_000
    how: dict[str, Any] = {"etag": lambda number: f'"{number}"', "digest": False}
    how |= {"content": lambda number: CONTENT if number else other}
    handler = Serving(cut=1_000_000, breaks=1, **how)
    await fetch(handler, tmp_path)
    assert len(handler.asked) == 2  # not put together, found damaged and fetched once more
    for how in ({"etag": lambda _: None}, {"ranges": False}):
        handler = Serving(cut=1_000_000, breaks=1, **how)
        await fetch(handler, tmp_path)
        assert (handler.asked == [None, None]) == ("etag" in how)


async def test_a_damaged_file_is_fetched_once_more_and_then_leaves_nothing_behind(tmp_path):
    await fetch(Serving(content=lambda number: CONTENT if number else DAMAGED), tmp_path)
    (tmp_path / "job-17.zip").write_text("old")
    handler = Serving(content=lambda _: DAMAGED)
    with pytest.raises(errors.BadDownload, match="arrived damaged") as caught:
        await fetch(handler, tmp_path)
    assert caught.value.expected == hashlib.sha256(CONTENT).hexdigest()
    assert caught.value.got == hashlib.sha256(DAMAGED).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["job-17.zip"]
    assert (tmp_path / "job-17.zip").read_text() == "old"
    assert len(handler.asked) == 2


@each("damaged", [DAMAGED, CONTENT[:-1], b"no ZIP"])
async def test_without_a_digest_the_checksums_in_the_zip_are_compared(tmp_path, damaged) -> None:
    with (tmp_path / "open.zip").open("w+b") as file:
        for to in (tmp_path, file):
            how: dict[str, Any] = {"content": lambda number: CONTENT if number else damaged}
            await fetch(Serving(digest=False, **how), to)
            file.seek(0)
            file.truncate()
            with pytest.raises(errors.BadDownload, match="its ZIP") as caught:
                await fetch(Serving(digest=False, content=lambda _: damaged), to)
            assert caught.value.expected is None


async def test_what_is_new_is_asked_for(fake, tmp_path) -> None:
    fake.on(RESULT, *[Serving()] * 3)
    async with fake.client() as client:
        names = [
            (await client.download(17, tmp_path, only_new=True, **more)).path.name
            for more in ({}, {"attempt": 2}, {"children": True})
        ]
        with pytest.raises(errors.BadArgument, match="only_new"):
            await client.download(17, tmp_path, only_new=True, bundle=True)
    assert names == ["job-17-new.zip", "job-17-attempt-2-new.zip", "job-17-children-new.zip"]
    assert [one.query.pop("only") for one in fake.asked[RESULT]] == ["new"] * 3


async def test_what_never_gets_through_is_given_up_and_no_digest_believed(fake, tmp_path):
    with pytest.raises(errors.Unreachable):
        await fetch(Serving(cut=10, breaks=1_000, ranges=False), tmp_path)
    assert list(tmp_path.iterdir()) == []
    await fetch(Serving(digest=False), tmp_path)
    fake.on(RESULT, hang_up, hang_up, Serving()).on("GET /download_partial/17", Serving())
    async with fake.client() as client:  # a reset before any answer is tried again
        assert (await client.download(17, tmp_path)).size == len(CONTENT)
        done = await client.download(17, tmp_path, partial=True)
    assert done.path.name == "job-17-partial.zip"


@each(
    ("answer", "kind", "why"),
    [
        (problem(409, "no_result", "the sentence"), errors.NoResult, "the sentence"),
        (problem(410, "cleaned", "the sentence"), errors.NoResult, "the sentence"),
        (problem(404, "job_not_found", "the sentence"), errors.NotFound, "the sentence"),
        (problem(409, "not_started", "the sentence"), errors.NotReady, "the sentence"),
        (problem(409, "files_move", "the sentence"), errors.NotReady, "the sentence"),
        (doc({"id": 17}, 202, Retry_After="3"), errors.NotReady, "has not ended"),
        (page("<h1>Log in</h1>"), errors.NotUnderstood, "expected application/zip"),
    ],
)
async def test_the_error_says_why_there_is_no_result(fake, tmp_path, answer, kind, why):
    fake.on(RESULT, answer).on(f"GET {HERE}/files", answer).on(f"GET {HERE}/files/a", answer)
    async with fake.client() as client:
        with pytest.raises(kind, match=why):
            await client.download(17, tmp_path)
        if why == "the sentence":
            with pytest.raises(kind):
                _ = [file async for file in client.files(17)]
            with pytest.raises(kind):
                await client.fetch(17, "a", io.BytesIO())
    assert list(tmp_path.iterdir()) == []


@each(
    "handler",
    [
        Serving(),
        Serving(cut=1_000_000, breaks=2),
        Serving(cut=1_000_000, breaks=1, ranges=False),
        Serving(content=lambda n: CONTENT if n else b"damaged"),
    ],
)
async def test_an_open_file_gets_the_bytes_behind_what_it_has(handler, tmp_path):
    with (tmp_path / "out").open("w+b") as file:
        file.write(b"head")
        await fetch(handler, file)
        file.seek(0)
        assert file.read() == b"head" + CONTENT


@contextmanager
def pipe(got: list[bytes]) -> Iterator[BinaryIO]:
    """Its end that is written; what is read at the other one."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as far, ThreadPoolExecutor(1) as threads:
        whole = threads.submit(far.read)
        with os.fdopen(write, "wb", buffering=0) as file:
            yield file
        got.append(whole.result())


async def test_a_pipe_gets_a_download_that_is_resumed_and_nothing_twice():
    got: list[bytes] = []
    with pipe(got) as file:
        await fetch(Serving(cut=1_000_000, breaks=2), file)
    assert got == [CONTENT]
    damaged = Serving(content=lambda n: CONTENT if n else b"damaged")
    with pipe(got) as file, pytest.raises(errors.BadDownload):
        await fetch(damaged, file)
    assert len(damaged.asked) == 1


async def test_what_failed_leaves_an_open_file_as_it_was_and_one_open_as_text_is_refused():
    file, text = io.BytesIO(b"head"), io.StringIO()
    file.seek(4)
    with pytest.raises(errors.BadDownload):
        await fetch(Serving(content=lambda _: b"damaged"), file)
    assert file.getvalue() == b"head"
    to: Any = text
    with pytest.raises(errors.BadArgument, match="wb"):
        await fetch(Serving(), to)


def test_a_file_that_takes_less_than_it_is_given_gets_all():
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:7]))

    file = Slow()
    sink = ObjectSink(file)
    sink.open()
    sink.write(b"0123456789" * 3)
    assert file.getvalue() == b"0123456789" * 3


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes: that is not proved")
def test_what_could_be_run_can_be_run(tmp_path):
    archive = RawZip().add(b"tool", b"#!/bin/sh", mode=0o7755).add(b"text", b"text", mode=0o644)
    unpack(io.BytesIO(archive.bytes()), tmp_path)
    assert os.access(tmp_path / "tool", os.X_OK)
    assert not (tmp_path / "text").stat().st_mode & 0o111
    assert not (tmp_path / "tool").stat().st_mode & 0o7000


def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("../x", "/x", "a/../../x", "a//x", "a/./x", ".."):
        with pytest.raises(errors.NotUnderstood, match="leads elsewhere"):
            unpack(io.BytesIO(zipped({"good": b"x", name: b"x"})), folder)
    with pytest.raises(errors.BadArgument, match="leads elsewhere"):
        target_path(tmp_path, "..")
    with pytest.raises(errors.NotUnderstood, match="cannot be read"):
        unpack(io.BytesIO(b"PK\x03\x04 and then something else"), folder)
    assert [*tmp_path.rglob("*")] == [folder]


def test_on_windows_more_names_lead_elsewhere():
    names = ("C:x.bat", "D:/x", "a/C:x", "a\\b", "..\\x", "x:hidden", "a:1-2.bed", ".. /x", "...")
    assert [name for name in names if not leads_elsewhere(name, PureWindowsPath)] == []
    for name in ("a", "a/b.txt", "a b/.c", "a/", "é", "con.txt", "..a"):
        assert not leads_elsewhere(name, PureWindowsPath)
        assert not leads_elsewhere(name)


async def test_in_another_process_a_result_is_the_document_alone(fake):
    ended = job(JobState.COMPLETED)
    fake.on(f"GET {HERE}", doc(ended))
    async with fake.client() as client:
        result = await client.wait(17)
        assert copy.deepcopy(result).status is JobState.COMPLETED
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is JobDoc
    assert again == ended
    assert result.model_dump_json() == ended.model_dump_json()
