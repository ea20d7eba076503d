"""Results of what is new or changed, given out with the files of their bundle that are there."""

import base64
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial

import pytest

from shared.files.archives.inputs_list import list_line
from tests.kit.each import each
from tests.kit.fake_agent import Served
from tests.kit.pages import browsing
from tests.kit.raw_archives import unzipped
from tests.server.held_jobs import Setting, running, zipped

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUNDLE = {"run.sh": b"#!/bin/sh\n", "data/in.txt": b"input\n" * 50, "gone": b"deleted by run.sh"}
KEPT = ("run.sh", "data/in.txt")
LEFT = {"out.txt": b"new", "data/new.txt": b"1", "stdout.log": b"hello\n", "stderr.log": b""}
"""More than is put together in memory."""


def ending_with_list(left: Mapping[str, bytes], paths: Iterable[str] = KEPT) -> bytes:
    return _made(tuple(left.items()), tuple(paths))


@cache  # a ZIP has the time at which it was made
def _made(left: tuple[tuple[str, bytes], ...], paths: tuple[str, ...]) -> bytes:
    whole = io.BytesIO(zipped(dict(left)))
    digest = hashlib.sha256(b"").hexdigest()
    with zipfile.ZipFile(whole, "a") as archive:
        archive.writestr("inputs.sha256", b"".join(list_line(digest, path) for path in paths))
    return whole.getvalue()


@asynccontextmanager
async def ended(
    served: Served,
    left: Mapping[str, bytes] = LEFT,
    files: Mapping[str, bytes] = BUNDLE,
    paths: Iterable[str] = KEPT,
    status: str = "Completed",
    **fields: str,
) -> AsyncIterator[Setting]:
    paths = list(paths)
    async with running(served, files=dict(files), **fields) as here:
        await here.end(ending_with_list(left, paths), status, inputs=len(paths))
        await here.caller.job(here.job_id)
        yield here


def digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


async def download(here: Setting, route: str = "download", **headers: str) -> tuple[int, bytes]:
    url = f"{here.caller.url}/{route}/{here.job_id}"
    async with here.caller.session.get(url, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_what_is_new_is_given_out_alone_as_it_is_stored(served: Served) -> None:
    async with ended(served) as here:
        _, joined, _ = await here.get("result")
        for what in ("result?only=new", "result?attempt=1&only=new"):
            status, headers, body = await here.get(what)
            assert (status, body) == (200, ending_with_list(LEFT))
            assert headers["repr-digest"] == digest(body)
            assert headers["etag"] != joined["etag"]
        assert await here.refused("result?only=old") == (400, "invalid_only")
    async with ended(served, result_files="changed") as here:
        assert await download(here) == (200, ending_with_list(LEFT)), "it has asked for no more"


async def test_what_failed_attempts_left_is_given_out_so_too(served: Served) -> None:
    async with running(served, files=BUNDLE) as here:
        for attempt in (1, 2):
            started = partial(here.agent.starts.__contains__, f"{here.job_id}.{attempt}")
            await here.agent.until(started)
            left = ending_with_list({"attempt": b"%d" % attempt})
            await here.end(left, "Failed", attempt, inputs=len(KEPT))
        assert (await here.caller.job(here.job_id))["status"] == "Failed"
        _, _, first = await here.get("result?attempt=1")
        _, last = await download(here, "download_partial")
        for number, body in ((b"1", first), (b"2", last)):
            found = unzipped(body)
            assert (found["attempt"], found["data/in.txt"]) == (number, BUNDLE["data/in.txt"])


async def test_another_bundle_or_another_result_has_another_etag(served: Served) -> None:
    tags = set()
    cases = ((LEFT, BUNDLE), (LEFT | {"x": b""}, BUNDLE), (LEFT, BUNDLE | {"gone": b"x"}))
    for left, files in cases:
        async with ended(served, left, files) as here:
            tags.add((await here.get("result", "HEAD"))[1]["etag"])
    assert len(tags) == len(cases)


async def test_a_result_that_does_not_fit_its_bundle_is_refused_but_for_what_is_new(
    served: Served,
) -> None:
    async with ended(served, paths=[*KEPT, "never/sent"]) as here:
        status, _, body = await here.get("result")
        assert (status, b"unreadable_result" in body) == (409, True)
        assert b"result?only=new" in body
        assert (await here.get("result?only=new"))[0] == 200


NEW = ["out.txt", "data/new.txt", "stdout.log", "stderr.log", "ferryman.json"]


async def test_new_files_are_listed_first_and_each_is_read_where_it_is(served: Served) -> None:
    """The list itself is none of them."""
    async with ended(served) as here:
        listed = (await here.document("files"))["items"]
        sent = [(path, True) for path in sorted(KEPT, reverse=True)]
        shown = [(one["path"], one["input"]) for one in listed]
        assert shown == [*((path, False) for path in NEW), *sent]
        assert listed[-1]["modified_at"] is None, "a bundle has no times"
        paged, query = list[str](), "limit=2"
        while query:
            found = await here.document(f"files?{query}")
            paged += [one["path"] for one in found["items"]]
            query = f"limit=2&cursor={found['next']}" if found["next"] else ""
        assert paged == [one["path"] for one in listed]
        for path in (*LEFT, *KEPT):
            content = (BUNDLE | LEFT)[path]
            assert (await here.get(f"files/{path}"))[2] == content
            if len(content) > 2:
                status, _, body = await here.get(f"files/{path}", Range="bytes=1-2")
                assert (status, body) == (206, content[1:3])
        for path in ("gone", "inputs.sha256"):
            assert await here.refused(f"files/{path}") == (404, "file_not_found")
        _, _, body = await here.get("files/in.txt")
        assert b"data/in.txt" in body
        assert (await here.get("logs?stream=stdout"))[2] == b"hello\n"
    async with ended(served, result_files="changed") as here:
        assert [one["path"] for one in (await here.document("files"))["items"]] == NEW


@each("root", ["", "top/"])
async def test_a_file_that_a_result_refers_to_is_read_below_the_bundles_folder(
    served: Served, root: str
) -> None:
    files = {root + path: content for path, content in BUNDLE.items()}
    async with ended(served, files=files) as here:
        assert (await here.get("files/data/in.txt"))[2] == BUNDLE["data/in.txt"]
        assert unzipped((await here.get("result"))[2])["data/in.txt"] == BUNDLE["data/in.txt"]


async def test_the_page_shows_new_files_and_folds_those_of_the_bundle(served: Served) -> None:
    many = {f"sent-{number:03}": b"%d" % number for number in range(250)}
    left = {"z.txt": b"new"}
    async with (
        ended(served, left, BUNDLE | many, [*KEPT, *many]) as here,
        browsing(here.caller.url) as browser,
    ):
        there, new, folded = f"/jobs/{here.job_id}/files", list[str](), list[str]()
        while there:
            page = await browser.see(there)
            shown = [one.text for one in page.main.all("th", scope="row")]
            sent = [one.text for part in page.main.all("details") for one in part.all("th")]
            new += shown[: len(shown) - len(sent)]
            folded += sent
            there = next(iter(page.main.links("after=")), "")
        assert new == ["data/", "ferryman.json", "z.txt"]
        assert folded == ["run.sh", *many]
        page = await browser.see(f"/jobs/{here.job_id}/files?folder=data")
        assert [one.text for one in page.main.all("th", scope="row")] == ["in.txt"]
        assert "in.txt" in page.main.one("details").text
