"""Results: whole or not at all, resumed where they broke off, unpacked, and file by file."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path, PureWindowsPath

import pytest
from aiohttp import web

from ferryman import (
    BadArgument,
    BadDownload,
    Client,
    JobDoc,
    JobState,
    NoResult,
    NotFound,
    NotReady,
    NotUnderstood,
    Unreachable,
)
from ferryman.download import leads_elsewhere, target_path, unpack
from ferryman.models.jobs import FileDoc, FilePage
from tests.client.both_clients import both
from tests.client.fake_server import (
    HERE,
    FakeServer,
    InstantClock,
    doc,
    hang_up,
    job,
    page,
    problem,
    repr_digest,
    zipped,
)
from tests.kit.each import each

CONTENT = bytes(range(251)) * 12_000  # 3 MB
DAMAGED = b"\1" + CONTENT[1:]
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


async def fetch(handler: Serving, to: Path | str, retry_for: float = 15) -> InstantClock:
    fake = FakeServer().on(RESULT, handler)
    async with fake.serving(), fake.client(retry_for=retry_for) as client:
        done = await client.download(17, to)
    assert done.path.read_bytes() == CONTENT
    assert (done.size, done.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert done.checked == handler.digest
    return fake.clock


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
    clock = await fetch(handler, tmp_path, retry_for=0.15)
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
    for how in ({"etag": lambda _: None}, {"ranges": False}):
        handler = Serving(cut=1_000_000, breaks=1, **how)
        await fetch(handler, tmp_path)
        assert (handler.asked == [None, None]) == ("etag" in how)


async def test_a_damaged_file_is_fetched_once_more_and_then_leaves_nothing_behind(tmp_path):
    await fetch(Serving(content=lambda number: CONTENT if number else DAMAGED), tmp_path)
    (tmp_path / "job-17.zip").write_text("old")
    handler = Serving(content=lambda _: DAMAGED)
    with pytest.raises(BadDownload, match="arrived damaged") as caught:
        await fetch(handler, tmp_path)
    assert caught.value.expected == hashlib.sha256(CONTENT).hexdigest()
    assert caught.value.got == hashlib.sha256(DAMAGED).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["job-17.zip"]
    assert (tmp_path / "job-17.zip").read_text() == "old"
    assert len(handler.asked) == 2


async def test_a_server_that_never_gets_through_is_given_up_and_one_without_digests_believed(
    fake, tmp_path
):
    with pytest.raises(Unreachable):
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
        (problem(409, "no_result", "the sentence"), NoResult, "the sentence"),
        (problem(410, "cleaned", "the sentence"), NoResult, "the sentence"),
        (problem(404, "job_not_found", "the sentence"), NotFound, "the sentence"),
        (doc({"id": 17}, 202, Retry_After="3"), NotReady, "has not ended"),
        (page("<h1>Log in</h1>"), NotUnderstood, "expected application/zip"),
    ],
)
async def test_the_error_says_why_there_is_no_result(fake, tmp_path, answer, kind, why):
    fake.on(RESULT, answer)
    async with fake.client() as client:
        with pytest.raises(kind, match=why):
            await client.download(17, tmp_path)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ unpacked, and file by file

ENDED = job(JobState.COMPLETED)
FILES = {"out/table.csv": b"a,b\n" * 1_000, "stdout": b"hi\n", "é #?.txt": b"odd"}


def packed(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return target.getvalue()


async def listed(request: web.Request) -> web.StreamResponse:
    at = int(request.query.get("cursor", 0))
    names = list(FILES)
    items = [FileDoc(path=names[at], size=len(FILES[names[at]]), type="text/plain")]
    following = str(at + 1) if at + 1 < len(names) else None
    return doc(FilePage(attempt=1, running=False, items=items, next=following)).response()


async def one(request: web.Request) -> web.StreamResponse:
    path = request.path.removeprefix(f"{HERE}/files/")
    if path not in FILES:
        return problem(404, "file_not_found", f"no {path}").response()
    return web.Response(body=FILES[path], content_type="text/csv")


def left(fake: FakeServer) -> FakeServer:
    fake.on(f"GET {HERE}", doc(ENDED)).on(RESULT, zipped(packed(FILES)))
    return fake.on(f"GET {HERE}/files", listed).on(f"GET {HERE}/files/**", one)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_both_kinds_of_results_are_saved_listed_and_fetched(fake, tmp_path):
    left(fake)
    async for client in both(fake.url):
        folder = tmp_path / type(client).__name__ / "out"
        result = await client.wait(17)
        assert result.status is JobState.COMPLETED
        assert await result.save(folder) == folder
        assert tree(folder) == FILES
        (folder / "stdout").write_text("old and longer")
        (folder / "own.txt").write_text("mine")
        await result.save(f"{folder}/")
        assert tree(folder) == FILES | {"own.txt": b"mine"}
        assert await result.save(folder / "r.zip") == folder / "r.zip"
        with zipfile.ZipFile(folder / "r.zip") as archive:
            assert sorted(archive.namelist()) == sorted(FILES)
        assert [file.path async for file in result.files()] == list(FILES)
        for name, content in FILES.items():
            file = io.BytesIO()
            await client.fetch(17, name, file)
            assert file.getvalue() == content
        with pytest.raises(NotFound, match="no absent"):
            await client.fetch(17, "absent", io.BytesIO())
        done = await client.fetch(17, "out/table.csv", tmp_path)
        assert done.path == tmp_path / "table.csv"
        assert done.path.read_bytes() == FILES["out/table.csv"]


@each(("code", "kind"), [("not_started", NotReady), ("files_move", NotReady), ("gone", NoResult)])
async def test_the_error_says_whether_there_will_be_files(fake, code, kind):
    for more in ("", "/a"):
        fake.on(f"GET {HERE}/files{more}", problem(409, code, "why"))
    async with fake.client() as client:
        with pytest.raises(kind):
            _ = [file async for file in client.files(17)]
        with pytest.raises(kind):
            await client.fetch(17, "a", io.BytesIO())


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes: that is not proved")
def test_what_could_be_run_can_be_run(tmp_path):
    unpack(io.BytesIO(packed({"tool": b"#!/bin/sh"}, 0o7755)), tmp_path)
    unpack(io.BytesIO(packed({"text": b"text"}, 0o644)), tmp_path)
    assert os.access(tmp_path / "tool", os.X_OK)
    assert not (tmp_path / "text").stat().st_mode & 0o111
    assert not (tmp_path / "tool").stat().st_mode & 0o7000


@each("name", ["../x", "/x", "a/../../x", "a//x", "a/./x", ".."])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(name, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    with pytest.raises(NotUnderstood, match="leads elsewhere"):
        unpack(io.BytesIO(packed({"good": b"x", name: b"x"})), folder)
    assert tree(tmp_path) == {}
    with pytest.raises(BadArgument, match="leads elsewhere"):
        target_path(tmp_path, "..")


def test_on_windows_more_names_lead_elsewhere(tmp_path):
    names = ("C:x.bat", "D:/x", "a/C:x", "a\\b", "..\\x", "x:hidden", "a:1-2.bed", ".. /x", "...")
    assert [name for name in names if not leads_elsewhere(name, PureWindowsPath)] == []
    for name in ("a", "a/b.txt", "a b/.c", "a/", "é", "con.txt", "..a"):
        assert not leads_elsewhere(name, PureWindowsPath)
        assert not leads_elsewhere(name)
    with pytest.raises(NotUnderstood, match="cannot be read"):
        unpack(io.BytesIO(b"PK\x03\x04 and then something else"), tmp_path)


async def test_in_another_process_a_result_is_the_document_alone(fake):
    left(fake)
    async with Client(fake.url) as client:
        result = await client.wait(17)
        assert copy.deepcopy(result).status is JobState.COMPLETED
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is JobDoc
    assert again == ENDED
    assert result.model_dump_json() == ENDED.model_dump_json()
