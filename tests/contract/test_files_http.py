"""The files of a result over HTTP, one by one."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientPayloadError

from tests.kit.fake_agent import RETRIED, FakeAgent, serving
from tests.kit.server_http import ServerClient

TEXT = b"".join(b"line %d\n" % number for number in range(200_000))
PICTURE = bytes(range(256)) * 2_000
FILES = {
    "out/table.csv": TEXT,
    "out/plot.png": PICTURE,
    "page.html": b"<script>alert(1)</script>",
    "drawing.svg": b"<svg onload='alert(1)'/>",
    "chr1:10-20 50%&é.bed": b"chr1\t10\t20\n",
    "empty": b"",
    "stdout.log": b"hello\n",
    "stderr.log": b"",
}


def zipped(files: Mapping[str, bytes], stored: tuple[str, ...] = ("out/plot.png",)) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("nothing/"), b"")
        for name, content in files.items():
            info = zipfile.ZipInfo(name, (2026, 3, 4, 5, 6, 8))
            info.compress_type = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
        logs = {"stdout": "stdout.log", "stderr": "stderr.log"}
        archive.writestr("ferryman.json", json.dumps({"logs": logs}))
    return packed.getvalue()


class Setting:
    """A job, and everybody around it."""

    def __init__(self, caller: ServerClient, agent: FakeAgent, job_id: int) -> None:
        self.caller, self.agent, self.job_id = caller, agent, job_id
        self.path = f"/api/v1/jobs/{job_id}/files"

    async def get(
        self, path: str = "", query: str = "", method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        url = f"{self.caller.url}{self.path}{'/' + quote(path) if path else ''}?{query}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.caller.session.request(method, url, headers=named) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, found, await answer.read()

    async def list(self, query: str = "") -> dict[str, Any]:
        status, _, body = await self.get(query=query)
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    async def refused(self, path: str = "", query: str = "") -> tuple[int, str, str]:
        status, _, body = await self.get(path, query)
        problem = json.loads(body)
        return status, problem["code"], problem["detail"]

    async def end(self, result: bytes, status: str = "Completed", attempt: int = 1) -> None:
        held = self.agent.held(f"{self.job_id}.{attempt}")
        held.status, held.result = status, result
        if status == "Failed":
            held.more = {"exit_code": 3, "reason": "exit_code"}
        await self.agent.say(held)


@asynccontextmanager
async def running(tmp_path, extra: str = "") -> AsyncIterator[Setting]:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, extra=extra) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        yield Setting(caller, agent, job_id)


@asynccontextmanager
async def ended(tmp_path, result: bytes) -> AsyncIterator[Setting]:
    async with running(tmp_path) as here:
        await here.end(result)
        await here.caller.job(here.job_id)
        yield here


async def test_the_files_of_a_result_are_listed_with_their_sizes_and_types(tmp_path) -> None:
    async with ended(tmp_path, zipped(FILES)) as here:
        found = await here.list()
        assert (found["attempt"], found["running"], found["next"]) == (1, False, None)
        listed = {one["path"]: one for one in found["items"]}
        assert list(listed) == [*FILES, "ferryman.json"]  # no folders
        assert {path: listed[path]["size"] for path in FILES} == {
            path: len(content) for path, content in FILES.items()
        }
        types = {path: listed[path]["type"] for path in ("out/table.csv", "out/plot.png", "empty")}
        assert types == {
            "out/table.csv": "text/csv",
            "out/plot.png": "image/png",
            "empty": "application/octet-stream",
        }
        assert listed["empty"]["modified_at"] == "2026-03-04T05:06:08Z"
        job = await here.caller.job(here.job_id)
        assert job["links"]["files"] == here.path


async def test_pages_of_files_follow_each_other(tmp_path) -> None:
    files = {f"{number:05}.txt": b"" for number in range(20_000)}  # more than one window
    async with ended(tmp_path, zipped(files)) as here:
        seen: list[str] = []
        query = "limit=3000"
        while True:
            found = await here.list(query)
            assert len(found["items"]) <= 3_000
            seen += [one["path"] for one in found["items"]]
            if found["next"] is None:
                break
            query = f"limit=3000&cursor={found['next']}"
        assert seen == [*files, "ferryman.json"]
        for cursor in ("1.7", "x", "1", "1.", "1.99999999999999999999", "0.0", "1.-4"):
            assert (await here.refused(query=f"cursor={cursor}"))[:2] == (400, "invalid_cursor")
        assert (await here.refused(query="limit=0"))[:2] == (400, "invalid_limit")
        assert (await here.refused(query="limits=5"))[:2] == (400, "unknown_parameter")


async def test_a_file_of_a_result_is_sent_alone(tmp_path) -> None:
    async with ended(tmp_path, zipped(FILES)) as here:
        for path, content in FILES.items():
            status, headers, body = await here.get(path)
            assert (status, body == content) == (200, True), path
            assert headers["content-length"] == str(len(content)), path
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["content-disposition"].startswith("attachment; "), path
            assert headers["content-security-policy"].startswith("sandbox;"), path
            status, _, body = await here.get(path, If_None_Match=headers["etag"])
            assert (status, body) == (304, b""), path
            status, again, body = await here.get(path, method="HEAD")
            assert (status, body, again["content-length"]) == (200, b"", str(len(content))), path
            url = f"{here.caller.url}{here.path}/{quote(path, safe='')}"  # as generated clients ask
            async with here.caller.session.get(url) as answer:
                assert await answer.read() == content, path


@pytest.mark.parametrize("path", ["out/table.csv", "out/plot.png"], ids=["deflated", "stored"])
async def test_a_part_of_a_file_is_sent_alone(tmp_path, path: str) -> None:
    content = FILES[path]
    async with ended(tmp_path, zipped(FILES)) as here:
        size, etag = len(content), ""
        for text, start, stop in (
            ("0-0", 0, 1),
            ("1-", 1, size),
            ("300000-400000", 300_000, 400_001),
            ("-10", size - 10, size),
        ):
            status, headers, body = await here.get(path, Range=f"bytes={text}")
            assert (status, body == content[start:stop]) == (206, True), text
            assert headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
            etag = headers["etag"]
        status, _, body = await here.get(path, Range="bytes=5-9", If_Range=etag)
        assert (status, body) == (206, content[5:10])
        status, _, body = await here.get(path, Range="bytes=5-9", If_Range='"another"')
        assert (status, len(body)) == (200, size)
        status, headers, _ = await here.get(path, Range=f"bytes={size}-")
        assert (status, headers["content-range"]) == (416, f"bytes */{size}")


async def test_a_browser_may_show_text_and_images_and_runs_nothing(tmp_path) -> None:
    async with ended(tmp_path, zipped(FILES)) as here:
        for path, kind in {
            "out/table.csv": "text/plain; charset=utf-8",
            "page.html": "text/plain; charset=utf-8",
            "stdout.log": "text/plain; charset=utf-8",
            "out/plot.png": "image/png",
        }.items():
            _, headers, _ = await here.get(path, "inline=1")
            assert headers["content-type"] == kind
            assert headers["content-disposition"].startswith("inline; ")
        for path, query in (("drawing.svg", "inline=1"), ("page.html", ""), ("empty", "inline=1")):
            _, headers, _ = await here.get(path, query)
            assert headers["content-disposition"].startswith("attachment; ")
        assert (await here.refused("empty", "inline=2"))[:2] == (400, "invalid_inline")


async def test_no_page_can_load_a_file_as_its_code(tmp_path) -> None:
    """The pages' policy lets them load scripts and styles from this server."""
    paths = ["a.js", "a.mjs", "a.css", "b.JS"]
    async with ended(tmp_path, zipped(dict.fromkeys(paths, b"alert(1)"))) as here:
        for path, query in itertools.product(paths, ("", "inline=1")):
            _, headers, _ = await here.get(path, query)
            assert headers["content-type"].partition(";")[0] == "text/plain", path
            assert headers["x-content-type-options"] == "nosniff", path


async def test_a_file_that_is_not_there_says_which_ones_are(tmp_path) -> None:
    async with ended(tmp_path, zipped(FILES)) as here:
        status, code, text = await here.refused("table.csv")
        assert (status, code) == (404, "file_not_found")
        assert "out/table.csv" in text
        for path in ("out", "nothing/", "../etc/passwd", "/etc/passwd", "out//table.csv", "x\0"):
            assert (await here.refused(path))[1] in ("file_not_found", "not_found"), path
        assert here.path in (await here.refused("nowhere"))[2]
        assert (await here.refused("empty", "attempt=2"))[:2] == (404, "attempt_not_found")


async def test_each_attempt_has_its_own_files(tmp_path) -> None:
    async with running(tmp_path, RETRIED) as here:
        await here.end(zipped({"a.txt": b"first"}), "Failed")
        await here.agent.until(lambda: here.agent.starts[f"{here.job_id}.2"] == 1)
        await here.end(zipped({"a.txt": b"second", "b.txt": b""}), attempt=2)
        await here.caller.job(here.job_id)
        assert (await here.get("a.txt"))[2] == b"second"
        _, one, body = await here.get("a.txt", "attempt=1")
        assert body == b"first"
        _, two, _ = await here.get("a.txt", "attempt=2")
        assert one["etag"] != two["etag"]
        assert [one["path"] for one in (await here.list("attempt=1"))["items"]] == [
            "a.txt",
            "ferryman.json",
        ]
        page = await here.list("attempt=1&limit=1")
        assert (await here.list(f"cursor={page['next']}"))["attempt"] == 1


async def test_a_failed_job_shows_what_it_left(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.end(zipped(FILES), "Failed")
        await here.caller.job(here.job_id)
        assert (await here.get("out/table.csv"))[2] == TEXT


@pytest.mark.parametrize("flaw", ["no zip", "encrypted", "method"])
async def test_a_result_that_cannot_be_read_file_by_file_says_so(tmp_path, flaw: str) -> None:
    packed = bytearray(zipped({"a.txt": TEXT}))
    at = packed.index(b"PK\1\2", packed.index(b"PK\1\2") + 4)  # behind the folder's
    if flaw == "encrypted":
        packed[at + 8] = 1
    elif flaw == "method":
        packed[at + 10] = 12
    result = b"no zip at all" if flaw == "no zip" else bytes(packed)
    async with ended(tmp_path, result) as here:
        assert (await here.refused("a.txt"))[:2] == (409, "unreadable_result")


async def test_a_damaged_file_ends_the_connection(tmp_path) -> None:
    packed = bytearray(zipped({"a.bin": PICTURE * 4}, stored=("a.bin",)))
    packed[len(packed) // 2] ^= 1
    async with ended(tmp_path, bytes(packed)) as here:
        with pytest.raises(ClientPayloadError):
            await here.get("a.bin")


async def test_a_file_is_found_wherever_it_is_listed(tmp_path) -> None:
    # Names that stand in other names, and more entries than are looked at together.
    files = {f"{'long/' * 20}{number:05}": b"%d" % number for number in range(9_000)}
    files |= {"long": b"a", "g/long/00000": b"b", "00001": b"c"}
    async with ended(tmp_path, zipped(files)) as here:
        for path in ("long", "g/long/00000", "00001", *list(files)[::1_300], list(files)[8_999]):
            assert (await here.get(path))[2] == files[path], path
        assert (await here.refused("long/00000"))[1] == "file_not_found"
