"""The files of a result over HTTP, one by one, and those of a job that runs."""

import itertools
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import ClientPayloadError, web
from structlog.testing import capture_logs

from tests.kit.each import each
from tests.kit.fake_agent import Served, refuse
from tests.kit.raw_http import ask
from tests.kit.warm import SLOTS, together
from tests.server.held_jobs import ShownJob, ended, running, zipped

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = b"".join(b"line %d\n" % number for number in range(200_000))
PICTURE = bytes(range(256)) * 2_000
SCRIPTS = dict.fromkeys(["a.js", "a.mjs", "a.css", "b.JS"], b"alert(1)")
FILES = SCRIPTS | {
    "out/table.csv": TEXT,
    "out/plot.png": PICTURE,
    "page.html": b"<script>alert(1)</script>",
    "drawing.svg": b"<svg onload='alert(1)'/>",
    "chr1:10-20 50%&é.bed": b"chr1\t10\t20\n",
    "empty": b"",
    "stdout.log": b"hello\n",
    "stderr.log": b"",
}
RESULT = zipped(FILES, stored=("out/plot.png",))
MANY = {f"{'long/' * 20}{number:05}": b"%d" % number for number in range(9_000)}
"""More than are looked at together."""


async def test_files_of_a_result_are_listed_and_one_that_is_not_there_says_which_are(
    served: Served,
) -> None:
    async with ended(served, RESULT) as here:
        found = await here.document("files")
        assert (found["attempt"], found["running"], found["next"]) == (1, False, None)
        listed = {one["path"]: one for one in found["items"]}
        assert list(listed) == [*FILES, "ferryman.json"]  # no folders
        assert all(listed[path]["size"] == len(content) for path, content in FILES.items())
        types = [listed[path]["type"] for path in ("out/table.csv", "out/plot.png", "empty")]
        assert types == ["text/csv", "image/png", "application/octet-stream"]
        assert listed["empty"]["modified_at"] == "2026-03-04T05:06:08Z"
        job = await here.caller.job(here.job_id)
        assert job["links"]["files"] == f"{here.path}/files"
        for path, says in (("table.csv", "out/table.csv"), ("nowhere", f"{here.path}/files")):
            status, _, body = await here.get(f"files/{path}")
            problem = json.loads(body)
            assert (status, problem["code"]) == (404, "file_not_found")
            assert says in problem["detail"]
        for path in ("out", "nothing/", "../etc/passwd", "/etc/passwd", "out//table.csv", "x\0"):
            _, code = await here.refused(f"files/{quote(path)}")
            assert code in ("file_not_found", "not_found"), path
        assert await here.refused("files/empty?attempt=2") == (404, "attempt_not_found")


async def test_pages_of_files_follow_each_other_and_each_is_found(served: Served) -> None:
    files = MANY | {"long": b"a", "g/long/00000": b"b", "00001": b"c"}  # names in other names
    async with ended(served, zipped(files)) as here:
        seen, query = list[str](), "limit=3000"
        while query:
            found = await here.document(f"files?{query}")
            assert len(found["items"]) <= 3_000
            seen += [one["path"] for one in found["items"]]
            query = f"limit=3000&cursor={found['next']}" if found["next"] else ""
        assert seen == [*files, "ferryman.json"]
        for path in ("long", "g/long/00000", "00001", *list(MANY)[::1_300], list(MANY)[8_999]):
            assert (await here.get(f"files/{path}"))[2] == files[path], path
        assert (await here.refused("files/long/00000"))[1] == "file_not_found"
        for cursor in ("1.7", "x", "1", "1.", "1.99999999999999999999", "0.0", "1.-4"):
            assert await here.refused(f"files?cursor={cursor}") == (400, "invalid_cursor")
        assert await here.refused("files?limit=0") == (400, "invalid_limit")
        assert await here.refused("files?limits=5") == (400, "unknown_parameter")


async def test_a_file_of_a_result_is_sent_alone_and_a_browser_runs_none(served: Served) -> None:
    """It may show text and images. The pages' policy lets them load scripts from this server."""
    async with ended(served, RESULT) as here:
        for path, content in FILES.items():
            what = f"files/{quote(path)}"
            status, headers, body = await here.get(what)
            assert (status, body == content) == (200, True), path
            assert headers["content-length"] == str(len(content)), path
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["content-disposition"].startswith("attachment; "), path
            assert headers["content-security-policy"].startswith("sandbox;"), path
            assert (await here.get(what, If_None_Match=headers["etag"]))[::2] == (304, b""), path
            status, again, body = await here.get(what, "HEAD")
            assert (status, body, again["content-length"]) == (200, b"", str(len(content))), path
            as_generated_clients_ask = f"files/{quote(path, safe='')}"
            assert (await here.get(as_generated_clients_ask))[2] == content, path
        for path in ("out/table.csv", "page.html", "stdout.log", "out/plot.png"):
            _, headers, _ = await here.get(f"files/{path}?inline=1")
            kind = "image/png" if path.endswith(".png") else "text/plain; charset=utf-8"
            assert headers["content-type"] == kind, path
            assert headers["content-disposition"].startswith("inline; "), path
        for path in ("drawing.svg", "empty"):
            _, headers, _ = await here.get(f"files/{path}?inline=1")
            assert headers["content-disposition"].startswith("attachment; "), path
        assert await here.refused("files/empty?inline=2") == (400, "invalid_inline")
        for path, query in itertools.product(SCRIPTS, ("", "?inline=1")):
            _, headers, _ = await here.get(f"files/{path}{query}")
            assert headers["content-type"].partition(";")[0] == "text/plain", path
            assert headers["x-content-type-options"] == "nosniff", path


WHOLE = zipped({"a": PICTURE * 4}, stored=("a",))
ENTRY = WHOLE.index(b"PK\1\2", WHOLE.index(b"PK\1\2") + 4)  # behind the folder's
ENCRYPTED, BY_BZIP2 = (ENTRY + 8, 1), (ENTRY + 10, 12)


@each("at, bits", [(0, 1), ENCRYPTED, BY_BZIP2, (len(WHOLE) // 2, 1)])
async def test_a_file_that_cannot_be_read_is_refused_or_ends_the_connection(
    served: Served, at: int, bits: int
) -> None:
    packed = WHOLE[:at] + bytes([WHOLE[at] ^ bits]) + WHOLE[at + 1 :] if at else b"no zip at all"
    async with ended(served, packed) as here:
        if at == len(WHOLE) // 2:  # a byte of the file
            with pytest.raises(ClientPayloadError), capture_logs():
                await here.get("files/a")
        else:
            assert await here.refused("files/a") == (409, "unreadable_result")


# -- while it runs, at a real agent


async def test_the_files_of_a_running_job_and_then_of_its_result(tmp_path: Path) -> None:
    async with together(tmp_path) as system:
        job = ShownJob(system, await system.upload())
        process = await system.process(job.job_id)
        await system.job(job.job_id, until="Running")
        waiting = [await job.caller.upload(service="example") for _ in range(SLOTS + 2)][-1]
        for what in ("files", "files/run.sh"):
            refused = await ShownJob(job.caller, waiting).refused(what)
            assert refused in {(409, "not_started"), (409, "files_move")}
        process.write("out/half 50%.csv", b"a,b\n1,2\n")
        process.log(b"step 1\n")
        found = await job.document("files")
        assert (found["attempt"], found["running"], found["next"]) == (1, True, None)
        assert {one["path"]: (one["size"], one["type"]) for one in found["items"]} == {
            "out/half 50%.csv": (8, "text/csv"),
            "run.sh": (11, "text/plain"),
            "stdout.log": (7, "text/plain"),
            "stderr.log": (0, "text/plain"),
        }
        table = "files/out/half%2050%25.csv"
        status, headers, body = await job.get(table)
        assert (status, body) == (200, b"a,b\n1,2\n")
        assert (headers["cache-control"], headers.get("etag")) == ("no-store", None)
        assert headers["content-disposition"].startswith("attachment; ")
        status, headers, body = await job.get(table, Range="bytes=4-")
        assert (status, headers["content-range"], body) == (206, "bytes 4-7/8", b"1,2\n")
        status, _, body = await job.get(table, Range="bytes=4-", If_Range='"old"')
        assert (status, len(body)) == (200, 8)
        process.write("out/half 50%.csv", b"a,b\n1,2\n3,4\n")  # it grows
        assert (await job.get(table, Range="bytes=8-"))[2] == b"3,4\n"
        assert await job.refused("files/nowhere.csv") == (404, "file_not_found")
        port = int(job.caller.url.rpartition(":")[2])
        for odd in (".", "..", "%2e%2e", "..%2f..%2fx", "out/.."):  # clients would shorten these
            reply = await ask(port, "GET", f"{job.path}/files/{odd}")
            assert (reply.status, reply.document["code"]) == (404, "file_not_found"), odd
        assert await job.refused("files/../../../etc/passwd") == (404, "not_found")

        following = (await job.document("files?limit=1"))["next"]
        page = await job.document(f"files?limit=2&cursor={following}")
        assert [one["path"] for one in page["items"]] == ["run.sh", "stdout.log"]
        process.finish()
        await job.caller.job(job.job_id)
        assert await job.refused(f"files?cursor={following}") == (400, "invalid_cursor")
        assert (await job.document("files"))["running"] is False
        status, headers, body = await job.get(table)
        assert (status, body) == (200, b"a,b\n1,2\n3,4\n")
        assert headers["etag"]


async def test_an_agent_that_answers_otherwise_is_no_source_of_files(served: Served) -> None:
    async with running(served) as here:
        for trick, code in {
            "files_gone": "files_move",
            "page": "agent_unreachable",
            "no_such_route": "no_live_files",
        }.items():

            async def answer(request: web.Request, trick: str = trick) -> web.StreamResponse | None:
                if "/files" not in request.path:
                    return None
                if trick == "page":
                    return web.Response(text="<html>", content_type="text/html")
                return refuse(404, trick)

            here.agent.trick = answer
            for what in ("files", "files/a.txt"):
                assert (await here.refused(what))[1] == code, trick
        here.agent.trick = None
