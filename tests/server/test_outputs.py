"""Which files a result has: what the upload asked for, through server and agent."""

from __future__ import annotations

import io
import json
import os
import zipfile
from typing import Any

import pytest

from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.server_http import driving
from tests.kit.warm import Place, Script

pytestmark = pytest.mark.asyncio(loop_scope="module")
BUNDLE = {"run.sh": b"echo hello\n", "data/in.txt": b"input", "data/same.txt": b"12345"}
OWN = {"stdout.log", "stderr.log", "ferryman.json"}


async def files_of(place: Place, job_id: int) -> dict[str, bytes]:
    _, _, packed = await place.get(f"/download_partial/{job_id}")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.getinfo("ferryman.json").date_time[0] > 1980  # when the attempt ended
        return {name: archive.read(name) for name in archive.namelist()}


async def ended(
    place: Place, script: Script, **fields: str
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The document of such a job, and the files of its result."""
    place.does(script)
    job = await place.job(await place.upload(BUNDLE, **fields))
    return job, await files_of(place, job["id"])


def leaves(*names: str, exit_code: int = 0) -> Script:
    def script(process: FakeProcess) -> None:
        for name in names:
            process.write(name, name.encode())
        process.finish(exit_code)

    return script


MANY = ("out/a.csv", "out/deep/b.csv", "x/best.pdb", "scratch.bin")


@each(
    "left, exit_code, fields, files",
    [
        (["out.txt"], 0, {}, {*BUNDLE, "out.txt"}),
        (MANY, 0, {"outputs": "out/*.csv, best.pdb,nothing*"}, {"out/a.csv", "x/best.pdb"}),
        (
            ["data/out.txt", "out.txt"],
            0,
            {"outputs": "data", "result_files": "changed"},
            {"data/out.txt"},
        ),
        (["scratch"], 3, {"outputs": "best.pdb"}, set()),
    ],
)
async def test_a_result_has_the_files_that_were_asked_for_and_the_logs(
    place: Place, left: list[str], exit_code: int, fields: dict[str, str], files: set[str]
) -> None:
    job, found = await ended(place, leaves(*left, exit_code=exit_code), **fields)
    assert set(found) == files | OWN
    wished = [one.strip() for one in fields.get("outputs", "").split(",") if one]
    receipt = json.loads(found["ferryman.json"])
    assert job["outputs"] == receipt.get("outputs", []) == wished
    assert job["result_files"] == fields.get("result_files", "all")
    warned = ["nothing*"] if "nothing*" in wished else []
    assert len(job["warnings"]) == len(warned)
    assert all("nothing*" in one and "best.pdb" not in one for one in job["warnings"])


async def test_what_is_not_asked_for_does_not_count_for_the_results_limit(place: Place) -> None:
    def script(process: FakeProcess) -> None:
        process.write("small", b"x")
        with (process.workspace.path / "scratch").open("wb") as file:
            file.truncate(1 << 40)
        process.finish()

    job, files = await ended(place, script, outputs="small")
    assert (job["status"], set(files)) == ("Completed", {"small", *OWN})


async def test_a_result_of_changes_leaves_out_what_is_as_it_was_sent(place: Place) -> None:
    def script(process: FakeProcess) -> None:
        same = process.workspace.path / "data/same.txt"
        process.write("new/out.txt", b"new")
        before = same.stat()
        same.write_bytes(b"54321")  # as long as before, and said to be as old
        os.utime(same, ns=(before.st_atime_ns, before.st_mtime_ns))
        process.finish()

    job, files = await ended(place, script, result_files="changed")
    assert set(files) == {"new/out.txt", "data/same.txt", *OWN}
    assert files["data/same.txt"] == b"54321"
    assert job["result_files"] == json.loads(files["ferryman.json"])["result_files"] == "changed"


async def test_children_that_a_job_leaves_are_made_whatever_it_asked_for(place: Place) -> None:
    def script(process: FakeProcess) -> None:
        if (process.workspace.path / "data").exists():
            process.write("children/a/run.sh", b"echo a\n")
        else:
            process.write("best.pdb", b"found")
            process.write("scratch", b"")
        process.finish()

    place.does(script)
    parent = await place.job(await place.upload(BUNDLE, outputs="best.pdb"))
    (child,) = (await place.api("GET", "/jobs", parent=str(parent["id"])))["items"]
    assert (child["parent_id"], child["outputs"]) == (parent["id"], ["best.pdb"])
    assert set(await files_of(place, child["id"])) == {"best.pdb", *OWN}


@each(
    "field, text",
    [
        ("outputs", "/etc/passwd"),
        ("outputs", "../x"),
        ("outputs", ",".join(f"a{number}" for number in range(33))),
        ("outputs", " , "),
        ("result_files", "some"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused(place: Place, field: str, text: str) -> None:
    wish: dict[str, Any] = {field: text}
    status, answer = await place.posted(**wish)
    assert (status, answer["code"]) == (400, f"invalid_{field}")


async def test_where_no_agent_can_leave_files_out_the_job_says_so(module_folder: Any) -> None:
    folder = module_folder / "reference"
    folder.mkdir()
    async with driving(folder, FakeOrchestrator()) as caller:
        cases: list[tuple[dict[str, Any], int]] = [({}, 0), ({"outputs": "a"}, 1)]
        for fields, warned in [*cases, ({"result_files": "changed"}, 1)]:
            job = await caller.job(await caller.upload(**fields))
            found = [text for text in job["warnings"] if "job-orchestrator" in text]
            assert len(found) == warned
