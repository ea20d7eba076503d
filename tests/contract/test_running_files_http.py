"""The files of a job that runs, through a real server and a real agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.contract.test_files_http import running
from tests.kit.fake_agent import refuse
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.generated_bundles import Item
from tests.kit.generated_uploads import parts
from tests.kit.in_process_system import InProcessSystem, together
from tests.kit.raw_http import ask
from tests.kit.server_http import driving


class Running:
    """A job that runs."""

    def __init__(
        self,
        system: InProcessSystem,
        http: aiohttp.ClientSession,
        job_id: int,
        process: FakeProcess,
    ) -> None:
        self.system, self.http, self.job_id, self.process = system, http, job_id, process

    async def get(self, path: str = "", **headers: str) -> tuple[int, Any, bytes]:
        url = f"{self.system.url}/api/v1/jobs/{self.job_id}/files{path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.get(url, headers=named) as answer:
            return answer.status, answer.headers.copy(), await answer.read()

    async def code(self, path: str = "") -> tuple[int, str]:
        status, _, body = await self.get(path)
        return status, json.loads(body)["code"]


@asynccontextmanager
async def running_job(tmp_path) -> AsyncIterator[Running]:
    body = parts([Item("run.sh", b"echo hello\n")], extended=False)
    async with together(tmp_path) as system, aiohttp.ClientSession() as http:
        _, job = await system.upload(body)
        process = await system.sandbox.process(f"{job['id']}.1")
        url = f"{system.url}/api/v1/jobs/{job['id']}"
        seen = "Queued"
        while seen != "Running":
            async with http.get(url, params={"wait": "20", "seen": seen}) as answer:
                seen = (await answer.json())["status"]
        yield Running(system, http, job["id"], process)


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
        await job.system.ended(job.job_id)
        assert await job.code(f"?cursor={following}") == (400, "invalid_cursor")
        _, _, body = await job.get()
        assert json.loads(body)["running"] is False
        status, headers, body = await job.get(path)
        assert (status, body) == (200, b"a,b\n1,2\n3,4\n")
        assert headers["ETag"]


async def test_files_of_a_job_that_has_not_started_are_not_here(tmp_path) -> None:
    async with running_job(tmp_path) as job:
        body = parts([Item("run.sh", b"echo hello\n")], extended=False)
        others = [await job.system.upload(body) for _ in range(4)]
        job.job_id = others[-1][1]["id"]
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


@pytest.mark.parametrize(
    ("trick", "code"),
    [("gone", "files_move"), ("page", "agent_unreachable"), ("refused", "no_live_files")],
)
async def test_an_agent_that_answers_otherwise_is_no_source_of_files(
    tmp_path, trick: str, code: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        if "/files" not in request.path:
            return None
        if trick == "page":
            return web.Response(text="<html>", content_type="text/html")
        name = "files_gone" if trick == "gone" else "no_such_route"
        return refuse(404, name)

    async with running(tmp_path) as here:
        here.agent.trick = answer
        for path in ("", "a.txt"):
            assert (await here.refused(path))[1] == code
