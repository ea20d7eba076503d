"""Which files a result has: what the upload asked for, through a real server and a real agent."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.in_process_system import InProcessSystem, together
from tests.kit.server_http import driving

BUNDLE = {"run.sh": b"echo hello\n", "data/in.txt": b"input", "data/same.txt": b"12345"}
OWN = {"stdout.log", "stderr.log", "ferryman.json"}


class Started:
    """A job that runs."""

    def __init__(
        self, system: InProcessSystem, http: aiohttp.ClientSession, job: int, process: FakeProcess
    ) -> None:
        self._system, self._http, self._job, self.process = system, http, job, process

    async def end(self, exit_code: int = 0) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Its document, and the files of its result."""
        self.process.finish(exit_code)
        job = await self._system.ended(self._job)
        url = f"{self._system.url}/download_partial/{self._job}"
        async with self._http.get(url) as answer:
            packed = await answer.read()
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            assert archive.getinfo("ferryman.json").date_time[0] > 1980  # when the attempt ended
            return job, {name: archive.read(name) for name in archive.namelist()}


@asynccontextmanager
async def started(tmp_path, files: Mapping[str, bytes], **fields: str) -> AsyncIterator[Started]:
    form = aiohttp.FormData(quote_fields=False)
    for field, text in ({"user_id": "1", "service": "example"} | fields).items():
        form.add_field(field, text)
    for name, content in files.items():
        form.add_field("file", content, filename=name)
    async with together(tmp_path) as system, aiohttp.ClientSession() as http:
        async with http.post(f"{system.url}/upload", data=form) as answer:
            assert answer.status == 201, await answer.text()
            job = (await answer.json())["id"]
        yield Started(system, http, job, await system.sandbox.process(f"{job}.1"))


async def test_without_a_wish_a_result_has_everything(tmp_path) -> None:
    async with started(tmp_path, BUNDLE) as job:
        job.process.write("out.txt", b"new")
        document, files = await job.end()
        assert set(files) == {*BUNDLE, "out.txt", *OWN}
        assert (document["outputs"], document["result_files"]) == ([], "all")


async def test_a_result_has_the_files_that_were_asked_for_and_the_logs(tmp_path) -> None:
    async with started(tmp_path, BUNDLE, outputs="out/*.csv, best.pdb,nothing*") as job:
        for name in ("out/a.csv", "out/deep/b.csv", "x/best.pdb", "scratch.bin"):
            job.process.write(name, name.encode())
        document, files = await job.end()
        assert set(files) == {"out/a.csv", "x/best.pdb", *OWN}
        receipt = json.loads(files["ferryman.json"])
        assert (receipt["outputs"], receipt["files"]) == (["out/*.csv", "best.pdb", "nothing*"], 2)
        assert document["outputs"] == ["out/*.csv", "best.pdb", "nothing*"]
        (warning,) = document["warnings"]
        assert "nothing*" in warning
        assert "best.pdb" not in warning


async def test_what_is_not_asked_for_does_not_count_for_the_results_limit(tmp_path) -> None:
    async with started(tmp_path, BUNDLE, outputs="small") as job:
        job.process.write("small", b"x")
        with (job.process.workspace.path / "scratch").open("wb") as file:
            file.truncate(1 << 40)
        document, files = await job.end()
        assert (document["status"], set(files)) == ("Completed", {"small", *OWN})


async def test_a_result_of_changes_leaves_out_what_is_as_it_was_sent(tmp_path) -> None:
    async with started(tmp_path, BUNDLE, result_files="changed") as job:
        root = job.process.workspace.path
        job.process.write("new/out.txt", b"new")
        before = (root / "data/same.txt").stat()
        (root / "data/same.txt").write_bytes(b"54321")  # as long as before, and said to be as old
        os.utime(root / "data/same.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
        document, files = await job.end()
        assert set(files) == {"new/out.txt", "data/same.txt", *OWN}
        assert files["data/same.txt"] == b"54321"
        assert document["result_files"] == json.loads(files["ferryman.json"])["result_files"]


async def test_both_wishes_together(tmp_path) -> None:
    async with started(tmp_path, BUNDLE, outputs="data", result_files="changed") as job:
        job.process.write("data/out.txt", b"new")
        job.process.write("out.txt", b"new")
        _, files = await job.end()
        assert set(files) == {"data/out.txt", *OWN}


async def test_a_failed_job_has_what_was_asked_for_and_no_warning(tmp_path) -> None:
    async with started(tmp_path, BUNDLE, outputs="best.pdb") as job:
        job.process.write("scratch", b"")
        document, files = await job.end(3)
        assert (set(files), document["warnings"]) == (OWN, [])


async def test_children_that_a_job_leaves_are_made_whatever_it_asked_for(tmp_path) -> None:
    async with started(tmp_path, BUNDLE, outputs="best.pdb") as job:
        job.process.write("children/a/run.sh", b"echo a\n")
        job.process.finish()
        child = await job._system.sandbox.process("2.1")
        child.write("best.pdb", b"found")
        child.write("scratch", b"")
        child.finish()
        document = await job._system.ended(2)
        assert (document["parent_id"], document["outputs"]) == (1, ["best.pdb"])
        with zipfile.ZipFile(io.BytesIO(await job._system.result(2))) as archive:
            assert set(archive.namelist()) == {"best.pdb", *OWN}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("outputs", "/etc/passwd"),
        ("outputs", "../x"),
        ("outputs", ",".join(f"a{number}" for number in range(33))),
        ("outputs", " , "),
        ("result_files", "some"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused(tmp_path, field: str, text: str) -> None:
    async with serving(tmp_path, FakeAgent()) as caller:
        form = aiohttp.FormData(quote_fields=False)
        for name, value in {"user_id": "7", "service": "my_service", field: text}.items():
            form.add_field(name, value)
        form.add_field("file", b"echo\n", filename="run.sh")
        async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
            assert answer.status == 400
            assert (await answer.json())["code"] == f"invalid_{field}"


async def test_where_no_agent_can_leave_files_out_the_job_says_so(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        uploads = (
            caller.upload(),
            caller.upload(outputs="a"),
            caller.upload(result_files="changed"),
        )
        for upload, warned in zip(uploads, (0, 1, 1), strict=True):
            job = await caller.job(await upload)
            found = [text for text in job["warnings"] if "job-orchestrator" in text]
            assert len(found) == warned
