"""Batches over HTTP: arrays, and children that a job leaves, from the upload to all results."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, NoResult
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.waiting import eventually
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = "[server]\ncleaner_interval = '50ms'\nsender_interval = '50ms'\n"
LINES = b"one\ntwo\n\nfour\n"


def failing(*names: str) -> Any:
    """A script that fails in these tasks, the first time."""
    left = set(names)

    def script(process: FakeProcess) -> None:
        index = process.launch.env.get("FERRYMAN_ARRAY_INDEX", "")
        process.finish(3 if index in left else 0)
        left.discard(index)

    return script


async def children(place: Place, parent: int, **query: str) -> list[dict[str, Any]]:
    """In their order."""
    page = await place.api("GET", "/jobs", parent=str(parent), limit="200", **query)
    return [*reversed(page["items"])]


async def there(place: Place, parent: int, count: int) -> list[dict[str, Any]]:
    return await eventually(lambda: children(place, parent), lambda found: len(found) == count)


async def history(place: Place, job_id: int) -> list[str]:
    events = (await place.api("GET", f"/jobs/{job_id}/events"))["items"]
    return [one["event"] for one in events if one["event"] != "job.tagged"]


async def test_an_array_from_its_upload_to_the_zip_of_all_results(
    place: Place, tmp_path: Path
) -> None:
    files = {"run.sh": b"exit 0\n", "params.txt": LINES}
    other = await place.upload()
    parent = await place.upload(files, array_file="params.txt", name="scan")
    job = await place.job(parent)
    assert (job["status"], job["message"]) == ("Completed", "all 4 children completed")
    counts = {"total": 4, "queued": 0, "active": 0, "completed": 4, "failed": 0, "cancelled": 0}
    assert (job["children"], job["progress"]) == (counts, {"current": 4.0, "total": 4.0})
    assert job["links"]["children"] == f"/api/v1/jobs?parent={parent}"
    assert await history(place, parent) == ["job.queued", "job.children_queued", "job.completed"]
    for query, found in (({"state": "Completed"}, [parent]), ({"state": "Failed"}, [])):
        page = await place.api("GET", "/jobs", batch="true", user=place.user, **query)
        assert [one["id"] for one in page["items"]] == found
    status, problem = await place.ask("GET", f"/api/v1/jobs/{other}/result?children=1")
    assert (status, problem["code"]) == (404, "no_batch")

    page = await place.api("GET", "/jobs", parent=str(parent), limit="3")
    rest = await place.api("GET", "/jobs", parent=str(parent), limit="3", cursor=page["next"])
    found = page["items"] + rest["items"]
    assert [one["array_index"] for one in found] == [3, 2, 1, 0]
    assert (found[0]["name"], found[0]["parent_id"]) == ("scan[3]", parent)
    assert found[0]["links"]["parent"] == f"/api/v1/jobs/{parent}"
    assert await children(place, parent, state="Failed") == []

    for path in (f"/api/v1/jobs/{parent}/result?children=1", f"/download/{parent}"):
        status, kind, body = await place.get(path)
        assert (status, kind) == (200, "application/zip")
        names = zipfile.ZipFile(io.BytesIO(body)).namelist()
        assert {name.partition("/")[0] for name in names} == {"0", "1", "2", "3"}
    async with Client(place.url) as client:
        done = await client.download(parent, tmp_path, children=True)
        assert done.path.name == f"job-{parent}-children.zip"
        assert len(zipfile.ZipFile(done.path).namelist()) >= 4
        own = client.jobs(top_level=True, user=place.user)
        assert [one.id async for one in own] == [parent, other]
        with pytest.raises(NoResult, match="its children have the logs"):
            await client.log(parent)


async def test_results_that_are_not_there_are_named(place: Place) -> None:
    place.does(None)
    parent = await place.upload(array="3-4")
    await there(place, parent, 2)
    for path in (f"/api/v1/jobs/{parent}/result?children=1", f"/download_partial/{parent}"):
        _, _, body = await place.get(path)
        archive = zipfile.ZipFile(io.BytesIO(body))
        assert archive.namelist() == ["left-out.txt"]
        assert "3/: there is none" in archive.read("left-out.txt").decode()


@each(
    "name, content, why",
    [
        ("other.txt", b"a\n", "no such file"),
        ("params.txt", b"", "no lines"),
        ("params.txt", b"a\n" * 10_001, "allows 10000"),
        ("params.txt", b"a\n" + b"x" * 70_000, "line 2 is longer than 65536 bytes"),
        ("params.txt", b"\xc3\xbc\n\xff", "line 2 is not UTF-8"),
        ("params.txt", b"a\nb\0c\n", "line 2 has a NUL character"),
    ],
)
async def test_an_array_file_that_is_no_list_of_tasks_is_refused(
    place: Place, name: str, content: bytes, why: str
) -> None:
    files = {"run.sh": b"exit 0\n", name: content}
    status, problem = await place.posted(files, array_file="params.txt")
    assert (status, problem["code"]) == (400, "invalid_array_file")
    assert problem["part"] == "array_file"
    assert why in problem["message"]
    assert (await place.api("GET", "/jobs", user=place.user))["items"] == []


@each(
    "content, count",
    [(b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"\n", 1), (b"a\r\nb\r\n", 2)],
)
async def test_each_line_is_a_task(place: Place, content: bytes, count: int) -> None:
    files = {"run.sh": b"exit 0\n", "params.txt": content}
    job = await place.job(await place.upload(files, array_file="params.txt"))
    assert (job["status"], job["children"]["total"]) == ("Completed", count)


async def test_a_paused_service_begins_no_batch(place: Place) -> None:
    await place.api("POST", f"/services/{place.service}/pause")
    parent = await place.upload(array="0-4")
    assert (await place.api("GET", f"/jobs/{parent}"))["status"] == "Queued"
    assert await children(place, parent) == []
    await place.api("POST", f"/services/{place.service}/resume")
    assert (await place.job(parent))["status"] == "Completed"


async def test_the_parent_of_a_failed_child_fails_when_all_have_ended(place: Place) -> None:
    place.does(failing("1"))
    parent = await place.upload(array="0-4")
    job = await place.job(parent)
    assert (job["status"], job["reason"]) == ("Failed", "child_failed")
    states = [one["status"] for one in await children(place, parent)]
    assert states == ["Completed", "Failed", *["Completed"] * 3]
    failed = parent + 2
    assert job["message"] == f"1 of 5 children failed: 1 (job {failed}, exit_code 3)"
    # A child is not retried by itself any more; its parent runs again what has not completed.
    status, problem = await place.ask("POST", f"/api/v1/jobs/{failed}/retry")
    assert (status, f"job {parent}" in problem["detail"]) == (409, True)
    await place.api("POST", f"/jobs/{parent}/retry")
    assert (await place.job(parent))["status"] == "Completed"
    assert [one["attempt"] for one in await children(place, parent)] == [1, 2, 1, 1, 1]


async def test_a_child_is_retried_by_itself_while_its_parent_waits(place: Place) -> None:
    await place.configure(max_runs=1)
    place.does(None)
    parent = await place.upload(array="0-1")
    first, second = await there(place, parent, 2)
    (await place.process(first["id"])).finish(3)
    assert (await place.job(first["id"]))["status"] == "Failed"
    running = await place.process(second["id"])
    await place.api("POST", f"/jobs/{first['id']}/retry")
    running.finish()
    (await place.process(first["id"], 2)).finish()
    assert (await place.job(parent))["status"] == "Completed"


async def test_the_first_failure_can_end_a_batch(place: Place) -> None:
    await place.configure(max_runs=1)
    place.does(failing("1"))
    job = await place.job(await place.upload(array="0-9", batch_policy="fail_fast"))
    assert (job["status"], job["reason"]) == ("Failed", "child_failed")
    cancelled = job["children"]["cancelled"]
    assert cancelled in (7, 8), "one more may be under way"
    assert f"; {cancelled} children cancelled because of that (fail_fast)" in job["message"]


async def test_gather_runs_after_all_children_and_again_after_a_retry(place: Place) -> None:
    place.does(failing("1"))
    files = {"run.sh": b"exit 0\n", "gather.sh": b"exit 0\n"}
    parent = await place.upload(files, array="0-1")
    assert (await place.job(parent))["reason"] == "child_failed"
    await place.api("POST", f"/jobs/{parent}/retry")
    job = await place.job(parent)
    assert (job["status"], job["message"][:21]) == ("Completed", "gather.sh ended well ")
    assert [one["status"] for one in job["attempts"]] == ["Completed"]
    assert (await history(place, parent))[-5:] == [
        *("job.gather_queued", "job.processing", "job.submitted", "job.running", "job.completed")
    ]


async def test_a_job_that_leaves_children_waits_for_them(place: Place) -> None:
    held = asyncio.Event()

    def script(process: FakeProcess) -> None:
        if process.launch.env["FERRYMAN_JOB_ID"] == str(min(place_ids)):
            for name in ("b/run.sh", "b/deep/data", "a/run.sh", "empty/x"):
                process.write(f"children/{name}".replace("empty/x", "c/run.sh"), name.encode())
            process.write("output.txt", b"not a child's")
        process.finish()
        held.set()

    place_ids = [await place.upload(not_before="in 1s")]
    place.does(script)
    place.warm.clock.forward(2)
    parent = place_ids[0]
    job = await place.job(parent)
    assert (job["status"], job["message"]) == ("Completed", "all 3 children completed")
    found = await children(place, parent)
    assert [(one["child_name"], one["parent_id"]) for one in found] == [
        (name, parent) for name in "abc"
    ]
    assert (await history(place, parent))[4:] == ["job.deferred", "job.completed"]
    _, _, body = await place.get(f"/api/v1/jobs/{found[1]['id']}/bundle")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.read("b/deep/data") == b"b/deep/data"
        assert archive.read("run.sh").endswith(b"exit 64\n")
        assert "output.txt" not in archive.namelist()


@each(
    "files, says",
    [
        (["b/run.sh", "a/main.sh"], "“children/a”: it has no run.sh"),
        (["b/run.sh", "list"], "“children/list”: it is in no child's folder"),
        (["a b/run.sh"], "1 to 64 of A-Z a-z 0-9 . _ -"),
        ([".x/run.sh"], "not “.x”"),
        (["run.sh/run.sh"], "not “run.sh”"),
        ([f"{number}/run.sh" for number in range(4)], "more than 3"),
    ],
)
async def test_children_that_cannot_be_run_fail_the_job_and_what_it_left_stays(
    place: Place, files: list[str], says: str
) -> None:
    def script(process: FakeProcess) -> None:
        for name in files:
            process.write(f"children/{name}", b"")
        process.finish()

    await place.configure(max_children=3)
    place.does(script)
    job = await place.job(await place.upload())
    assert (job["status"], job["reason"]) == ("Failed", "invalid_bundle"), job
    assert says in job["message"]
    status, _, _ = await place.get(f"/download_partial/{job['id']}")
    assert status == 200


async def test_a_cancelled_parent_ends_when_its_last_child_is_dead(place: Place) -> None:
    await place.configure(max_runs=1)
    place.does(None)
    parent = await place.upload(array="0-9")
    first, *_ = await there(place, parent, 10)
    await place.job(first["id"], until="Running")
    process = await place.process(first["id"])
    place.warm.sandbox.obeys_sigterm = False
    try:
        cancel = asyncio.create_task(place.ask("POST", f"/api/v1/jobs/{parent}/cancel"))
        await eventually(lambda: children(place, parent), lambda _: process.asked_to_stop)
    finally:
        place.warm.sandbox.obeys_sigterm = True
    states = [one["status"] for one in await children(place, parent)]
    assert (states[0], {*states[1:]}) == ("Running", {"Cancelled"})
    assert (await place.api("GET", f"/jobs/{parent}"))["status"] == "Running"
    process.finish(143)
    assert (await cancel)[0] == 200
    assert (await place.job(parent))["status"] == "Cancelled"
    assert {one["status"] for one in await children(place, parent)} == {"Cancelled"}


async def test_a_batch_is_cleaned_as_a_whole(place: Place) -> None:
    await place.configure(expires_after="1h")
    parent = await place.upload(array="0-2")
    await place.job(parent)
    place.warm.clock.forward(2 * 3_600)

    async def states() -> set[str]:
        of_parent = (await place.api("GET", f"/jobs/{parent}"))["status"]
        return {of_parent, *(one["status"] for one in await children(place, parent))}

    assert await eventually(states, lambda found: found == {"Cleaned"})
