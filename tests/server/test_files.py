"""The files of a result over HTTP, one by one."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from aiohttp import ClientPayloadError, web
from structlog.testing import capture_logs

from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent, Served, refuse, running_at, served
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.raw_http import ask
from tests.kit.server_http import ServerClient, driving
from tests.kit.warm import SLOTS, Place, together

__all__ = ["served"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

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
async def running(where: Path | Served, extra: str = "", **fields: str) -> AsyncIterator[Setting]:
    async with running_at(where, extra, **fields) as found:
        yield Setting(*found)


@asynccontextmanager
async def ended(where: Path | Served, result: bytes) -> AsyncIterator[Setting]:
    async with running(where) as here:
        await here.end(result)
        await here.caller.job(here.job_id)
        yield here


async def test_the_files_of_a_result_are_listed_with_their_sizes_and_types(served: Served) -> None:
    async with ended(served, zipped(FILES)) as here:
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


async def test_pages_of_files_follow_each_other(served: Served) -> None:
    files = {f"{'long/' * 20}{number:05}": b"" for number in range(9_000)}  # over one window
    async with ended(served, zipped(files)) as here:
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


async def test_a_file_of_a_result_is_sent_alone(served: Served) -> None:
    async with ended(served, zipped(FILES)) as here:
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


@each("path", ["out/table.csv", "out/plot.png"])
async def test_a_part_of_a_file_is_sent_alone(served: Served, path: str) -> None:
    content = FILES[path]
    async with ended(served, zipped(FILES)) as here:
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


async def test_a_browser_may_show_text_and_images_and_runs_nothing(served: Served) -> None:
    async with ended(served, zipped(FILES)) as here:
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


async def test_no_page_can_load_a_file_as_its_code(served: Served) -> None:
    """The pages' policy lets them load scripts and styles from this server."""
    paths = ["a.js", "a.mjs", "a.css", "b.JS"]
    async with ended(served, zipped(dict.fromkeys(paths, b"alert(1)"))) as here:
        for path, query in itertools.product(paths, ("", "inline=1")):
            _, headers, _ = await here.get(path, query)
            assert headers["content-type"].partition(";")[0] == "text/plain", path
            assert headers["x-content-type-options"] == "nosniff", path


async def test_a_file_that_is_not_there_says_which_ones_are(served: Served) -> None:
    async with ended(served, zipped(FILES)) as here:
        status, code, text = await here.refused("table.csv")
        assert (status, code) == (404, "file_not_found")
        assert "out/table.csv" in text
        for path in ("out", "nothing/", "../etc/passwd", "/etc/passwd", "out//table.csv", "x\0"):
            assert (await here.refused(path))[1] in ("file_not_found", "not_found"), path
        assert here.path in (await here.refused("nowhere"))[2]
        assert (await here.refused("empty", "attempt=2"))[:2] == (404, "attempt_not_found")


async def test_each_attempt_has_its_own_files(served: Served) -> None:
    async with running(served) as here:
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


async def test_a_failed_job_shows_what_it_left(served: Served) -> None:
    async with running(served, retries="0") as here:
        await here.end(zipped(FILES), "Failed")
        await here.caller.job(here.job_id)
        assert (await here.get("out/table.csv"))[2] == TEXT


@each("flaw", ["no zip", "encrypted", "method"])
async def test_a_result_that_cannot_be_read_file_by_file_says_so(served: Served, flaw: str) -> None:
    packed = bytearray(zipped({"a.txt": TEXT}))
    at = packed.index(b"PK\1\2", packed.index(b"PK\1\2") + 4)  # behind the folder's
    if flaw == "encrypted":
        packed[at + 8] = 1
    elif flaw == "method":
        packed[at + 10] = 12
    result = b"no zip at all" if flaw == "no zip" else bytes(packed)
    async with ended(served, result) as here:
        assert (await here.refused("a.txt"))[:2] == (409, "unreadable_result")


async def test_a_damaged_file_ends_the_connection(served: Served) -> None:
    packed = bytearray(zipped({"a.bin": PICTURE * 4}, stored=("a.bin",)))
    packed[len(packed) // 2] ^= 1
    async with ended(served, bytes(packed)) as here:
        with pytest.raises(ClientPayloadError), capture_logs():
            await here.get("a.bin")


async def test_a_file_is_found_wherever_it_is_listed(served: Served) -> None:
    # Names that stand in other names, and more entries than are looked at together.
    files = {f"{'long/' * 20}{number:05}": b"%d" % number for number in range(9_000)}
    files |= {"long": b"a", "g/long/00000": b"b", "00001": b"c"}
    async with ended(served, zipped(files)) as here:
        for path in ("long", "g/long/00000", "00001", *list(files)[::1_300], list(files)[8_999]):
            assert (await here.get(path))[2] == files[path], path
        assert (await here.refused("long/00000"))[1] == "file_not_found"


# -- while it runs, at a real agent


class Running:
    """A job that runs."""

    def __init__(self, system: Place, job_id: int, process: FakeProcess) -> None:
        self.system, self.job_id, self.process = system, job_id, process

    async def get(self, path: str = "", **headers: str) -> tuple[int, Any, bytes]:
        url = f"{self.system.url}/api/v1/jobs/{self.job_id}/files{path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.system.session.get(url, headers=named) as answer:
            return answer.status, answer.headers.copy(), await answer.read()

    async def code(self, path: str = "") -> tuple[int, str]:
        status, _, body = await self.get(path)
        return status, json.loads(body)["code"]


@asynccontextmanager
async def running_job(tmp_path) -> AsyncIterator[Running]:
    async with together(tmp_path) as system:
        job_id = await system.upload()
        process = await system.process(job_id)
        await system.job(job_id, until="Running")
        yield Running(system, job_id, process)


async def test_the_files_of_a_running_job_are_listed_and_read_and_then_those_of_its_result(
    tmp_path,
) -> None:
    async with running_job(tmp_path) as job:
        job.process.write("out/half 50%.csv", b"a,b\n1,2\n")
        job.process.log(b"step 1\n")
        status, _, body = await job.get()
        found = json.loads(body)
        assert (status, found["attempt"], found["running"], found["next"]) == (200, 1, True, None)
        listed = {one["path"]: (one["size"], one["type"]) for one in found["items"]}
        assert listed == {
            "out/half 50%.csv": (8, "text/csv"),
            "run.sh": (11, "text/plain"),
            "stdout.log": (7, "text/plain"),
            "stderr.log": (0, "text/plain"),
        }
        path = "/out/half%2050%25.csv"
        status, headers, body = await job.get(path)
        assert (status, body) == (200, b"a,b\n1,2\n")
        assert (headers["Cache-Control"], headers.get("ETag")) == ("no-store", None)
        assert headers["Content-Disposition"].startswith("attachment; ")
        status, headers, body = await job.get(path, Range="bytes=4-")
        assert (status, headers["Content-Range"], body) == (206, "bytes 4-7/8", b"1,2\n")
        status, _, body = await job.get(path, Range="bytes=4-", If_Range='"old"')
        assert (status, len(body)) == (200, 8)
        job.process.write("out/half 50%.csv", b"a,b\n1,2\n3,4\n")  # it grows
        assert (await job.get(path, Range="bytes=8-"))[2] == b"3,4\n"
        assert await job.code("/nowhere.csv") == (404, "file_not_found")
        port = int(job.system.url.rpartition(":")[2])
        for odd in (".", "..", "%2e%2e", "..%2f..%2fx", "out/.."):  # clients would shorten these
            reply = await ask(port, "GET", f"/api/v1/jobs/{job.job_id}/files/{odd}")
            assert (reply.status, reply.document["code"]) == (404, "file_not_found"), odd
        assert await job.code("/../../../etc/passwd") == (404, "not_found")

        _, _, body = await job.get("?limit=1")
        following = json.loads(body)["next"]
        _, _, body = await job.get(f"?limit=2&cursor={following}")
        assert [one["path"] for one in json.loads(body)["items"]] == ["run.sh", "stdout.log"]
        job.process.finish()
        await job.system.job(job.job_id)
        assert await job.code(f"?cursor={following}") == (400, "invalid_cursor")
        _, _, body = await job.get()
        assert json.loads(body)["running"] is False
        status, headers, body = await job.get(path)
        assert (status, body) == (200, b"a,b\n1,2\n3,4\n")
        assert headers["ETag"]


async def test_files_of_a_job_that_has_not_started_are_not_here(tmp_path) -> None:
    async with running_job(tmp_path) as job:
        job.job_id = [await job.system.upload() for _ in range(SLOTS + 2)][-1]
        for path in ("", "/run.sh"):
            status, code = await job.code(path)
            assert (status, code) in {(409, "not_started"), (409, "files_move")}


async def test_an_agent_that_shows_no_files_is_said(tmp_path) -> None:
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        for path in ("", "/run.sh"):
            status, _, body = await caller.get(f"/api/v1/jobs/{job_id}/files{path}")
            assert (status, json.loads(body)["code"]) == (409, "no_live_files")


ANSWERS = {
    "files_gone": "files_move",
    "page": "agent_unreachable",
    "no_such_route": "no_live_files",
}


@pytest_asyncio.fixture(loop_scope="module")
async def other(tmp_path: Path) -> AsyncIterator[Setting]:
    """A job that runs on an agent of its own."""
    async with running(tmp_path) as found:
        yield found


@each("trick, code", ANSWERS.items())
async def test_an_agent_that_answers_otherwise_is_no_source_of_files(
    other: Setting, trick: str, code: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        if "/files" not in request.path:
            return None
        if trick == "page":
            return web.Response(text="<html>", content_type="text/html")
        return refuse(404, trick)

    other.agent.trick = answer
    for path in ("", "a.txt"):
        assert (await other.refused(path))[1] == code
