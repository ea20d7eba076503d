"""Batches over HTTP: arrays as they are uploaded, shown and downloaded."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ferryman import Client, NoResult
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving
from tests.kit.waiting import eventually

LINES = b"one\ntwo\n\nfour\n"


async def read(caller: ServerClient, path: str) -> tuple[int, Any]:
    status, _, body = await caller.get(path)
    return status, json.loads(body)


async def test_an_array_from_its_upload_to_the_zip_of_all_results(tmp_path: Path) -> None:
    files = {"run.sh": b"exit 0\n", "params.txt": LINES}
    async with serving(tmp_path, FakeAgent()) as caller:
        other = await caller.upload()
        parent = await caller.upload(files, array_file="params.txt", name="scan")
        job = await caller.job(parent)
        assert (job["status"], job["message"]) == ("Completed", "all 4 children completed")
        counts = {"total": 4, "queued": 0, "active": 0, "completed": 4, "failed": 0, "cancelled": 0}
        assert job["children"] == counts
        assert job["progress"] == {"current": 4.0, "total": 4.0}

        _, batches = await read(caller, "/api/v1/jobs?batch=true&user=7&state=Completed")
        assert [one["id"] for one in batches["items"]] == [parent]
        assert (await read(caller, "/api/v1/jobs?batch=true&user=8"))[1]["items"] == []
        status, problem = await read(caller, f"/api/v1/jobs/{other}/result?children=1")
        assert (status, problem["code"]) == (404, "no_batch")
        assert (await read(caller, "/api/v1/jobs?batch=true"))[1] == batches
        children = f"/api/v1/jobs?parent={parent}"
        assert job["links"]["children"] == children

        _, page = await read(caller, f"{children}&limit=3")
        _, rest = await read(caller, f"{children}&limit=3&cursor={page['next']}")
        found = page["items"] + rest["items"]
        assert [one["array_index"] for one in found] == [3, 2, 1, 0]
        assert (found[0]["name"], found[0]["parent_id"]) == ("scan[3]", parent)
        assert found[0]["links"]["parent"] == f"/api/v1/jobs/{parent}"
        assert (await read(caller, f"{children}&state=Failed"))[1]["items"] == []

        for path in (f"/api/v1/jobs/{parent}/result?children=1", f"/download/{parent}"):
            status, kind, body = await caller.get(path)
            assert (status, kind) == (200, "application/zip")
            names = zipfile.ZipFile(io.BytesIO(body)).namelist()
            assert {name.partition("/")[0] for name in names} == {"0", "1", "2", "3"}
        async with Client(caller.url) as client:
            done = await client.download(parent, tmp_path, children=True)
            assert done.path.name == f"job-{parent}-children.zip"
            assert len(zipfile.ZipFile(done.path).namelist()) >= 4
            assert [one.id async for one in client.jobs(top_level=True)] == [parent, other]
            assert len([one async for one in client.jobs()]) == 6
            with pytest.raises(NoResult, match="its children have the logs"):
                await client.log(parent)


async def test_results_that_are_not_there_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeAgent(ends="Running")) as caller:
        parent = await caller.upload(array="3-4")
        await caller.job(parent, until="Running")
        children = f"/api/v1/jobs?parent={parent}"
        await eventually(lambda: read(caller, children), lambda it: len(it[1]["items"]) == 2)
        for path in (f"/api/v1/jobs/{parent}/result?children=1", f"/download_partial/{parent}"):
            _, _, body = await caller.get(path)
            archive = zipfile.ZipFile(io.BytesIO(body))
            assert archive.namelist() == ["left-out.txt"]
            assert "3/: there is none" in archive.read("left-out.txt").decode()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("other.txt", b"a\n", "no such file"),
        ("params.txt", b"", "no lines"),
        ("params.txt", b"a\n" * 10_001, "10001 tasks, service my_service allows 10000"),
        ("params.txt", b"x" * 70_000, "longer than"),
        ("params.txt", b"a\n\xff\n", "line 2 is not UTF-8"),
        ("params.txt", b"a\0b\n", "NUL"),
    ],
)
async def test_an_array_file_that_is_no_list_of_tasks_is_refused(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        form = aiohttp.FormData(quote_fields=False)
        for field, text in (
            ("user_id", "7"),
            ("service", "my_service"),
            ("array_file", "params.txt"),
        ):
            form.add_field(field, text)
        form.add_field("file", b"exit 0\n", filename="run.sh")
        form.add_field("file", content, filename=name)
        async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
            problem = await answer.json()
            assert answer.status == 400
        assert (problem["code"], problem["part"]) == ("invalid_array_file", "array_file")
        assert why in problem["message"]
        assert (await read(caller, "/api/v1/jobs"))[1]["items"] == []
