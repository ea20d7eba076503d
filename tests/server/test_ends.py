"""Each edge of a job's life over HTTP: what its script does, what its document says then, and which
files its result has.
"""

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
from tests.kit.waiting import eventually
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = "[server]\ncleaner_interval = '50ms'\nsender_interval = '50ms'\n"
TRIED = [("Queued", 0, None), ("Processing", 1, None), ("Submitted", 1, None), ("Running", 1, None)]
AGAIN = [("Processing", 2, None), ("Submitted", 2, None), ("Running", 2, None)]


async def is_at(place: Place, job_id: int, status: str, attempt: int) -> dict[str, Any]:
    """The document, once it is."""
    return await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"),
        lambda job: (job["status"], job["attempt"]) == (status, attempt),
    )


async def test_each_attempt_is_in_the_history_and_has_its_own_start(place: Place) -> None:
    await place.configure(retries=1, retry_delays=["0s"])
    place.does(None)
    job_id = await place.upload()
    running = await place.job(job_id, until="Running")
    assert running["heartbeat_at"] == running["started_at"] is not None
    assert running["retry"]["retry_on"] == ["exit_code", "heartbeat_timeout", "timeout"]
    (await place.process(job_id)).finish(3)
    second = await place.process(job_id, 2)
    again = await is_at(place, job_id, "Running", 2)
    assert again["started_at"] == running["started_at"]
    assert again["heartbeat_at"] > running["heartbeat_at"]
    second.finish()
    job = await place.job(job_id)
    states = [(one["status"], one["attempt"], one["reason"]) for one in job["history"]]
    assert states == [*TRIED, ("Queued", 1, "exit_code"), *AGAIN, ("Completed", 2, None)]
    (said,) = (one["message"] for one in job["history"] if one["message"])
    assert said.startswith("run.sh ended with exit code 3; it will be tried again")
    first, last = (one["started_at"] for one in job["attempts"])
    assert job["started_at"] == first < last
    assert job["heartbeat_at"] == last
    assert (job["attempts"][0]["exit_code"], job["exit_code"], job["retries_left"]) == (3, 0, 0)


async def test_an_upload_hears_what_its_list_of_retries_leaves_out(place: Place) -> None:
    status, answer = await place.posted(retries="2", retry_on="exit:7", timeout="9h")
    assert status == 201
    cut, left_out = answer["warnings"]
    assert cut.startswith("timeout: 9h was asked for")
    assert left_out == (
        f"retry_on: exit:7 leaves out heartbeat_timeout, other exit codes, timeout, which "
        f"service {place.service} tries again"
    )
    assert (await place.job(answer["id"]))["warnings"] == answer["warnings"]
    assert "warnings" not in (await place.posted(retry_on="exit:7"))[1], "there are no retries"
    status, answer = await place.posted(retries="2", retry_on="timeout,queue_timeout")
    assert (status, answer["part"]) == (400, "retry_on")
    assert (await place.posted(retries="2", no_retry_on="queue_timeout"))[0] == 201
    path = f"/api/v1/services/{place.service}"
    status, problem = await place.ask("PUT", path, json={"retry_on": ["queue_timeout"]})
    assert (status, "never tried again" in problem["detail"]) == (400, True)


async def test_a_job_that_asks_is_tried_later_and_its_queue_time_goes_on(place: Place) -> None:
    await place.configure(queue_timeout="100s")
    place.does(None)
    job_id = await place.upload()
    for attempt, seconds in ((1, 60), (2, 41)):
        process = await place.process(job_id, attempt)
        process.log(stdout=b"::retry-later after=60s::GPU busy\n")
        process.finish(75)
        assert (await is_at(place, job_id, "Queued", attempt))["retries_left"] == 0
        place.warm.clock.forward(seconds)
    job = await place.job(job_id)
    assert (job["status"], job["reason"]) == ("Failed", "queue_timeout"), "its delay is not over"
    assert [one["status"] for one in job["attempts"]] == ["Failed", "Failed"]
    assert all(one["links"]["result"] for one in job["attempts"]), "what they left is kept"


async def test_neither_the_delay_of_a_retry_nor_a_pause_is_time_in_the_queue(place: Place) -> None:
    await place.configure(queue_timeout="100s", max_runs=1, retries=1, retry_delays=["300s"])
    place.does(lambda process: process.finish(1))
    job_id = await place.upload()
    await is_at(place, job_id, "Queued", 1)
    place.warm.clock.forward(301)
    job = await place.job(job_id)
    assert (job["status"], job["reason"], job["attempt"]) == ("Failed", "exit_code", 2)

    place.does(None)
    await place.job(await place.upload(), until="Running")
    await place.api("POST", f"/services/{place.service}/pause")
    short, long = await place.upload(queue_timeout="50s"), await place.upload(retries="2")
    place.warm.clock.forward(51)
    assert (await place.api("GET", f"/jobs/{short}"))["status"] == "Queued"
    await place.api("POST", f"/services/{place.service}/resume")
    for job_id, waited in ((short, "waited 50s "), (long, "waited 1m 40s ")):
        if job_id == long:  # the other's own timeout was shorter than the service's
            assert (await place.api("GET", f"/jobs/{long}"))["status"] == "Queued"
            place.warm.clock.forward(50)
        job = await place.job(job_id)
        assert (job["status"], job["reason"]) == ("Failed", "queue_timeout")
        assert waited in job["message"]
    assert job["message"].endswith(
        "; it has 2 retries left, but queue_timeout would be the same next time"
    )


@each("jump_s", [-1000 * 86_400.0, 1000 * 86_400.0])
async def test_nothing_is_cleaned_after_somebody_sets_the_machines_clock(
    place: Place, jump_s: float
) -> None:
    before = await place.job(await place.upload())
    place.warm.clock.jump(jump_s)
    await place.configure(expires_after="10ms")
    # So the Cleaner has swept.
    await is_at(place, (await place.job(await place.upload()))["id"], "Cleaned", 1)
    after = await place.job(before["id"])
    assert (after["status"], after["expires_at"]) == ("Completed", before["expires_at"])
    place.warm.clock.jump(-jump_s)
    await place.configure()


async def test_what_a_running_job_says_stays_with_its_attempt(place: Place) -> None:
    await place.configure(retries=1, retry_delays=["0s"])
    place.does(None)
    job_id = await place.upload()
    process = await place.process(job_id)
    process.log(stdout=b"::progress value=3,total=5::three\n::output name=a::1\n::notice::hello\n")
    job = await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"), lambda job: job["message"] == "three"
    )
    said = ({"current": 3, "total": 5}, {"a": "1"})
    assert (job["progress"], job["output"]) == said
    process.finish(1)
    for attempt, text, exit_code in ((2, "45,total=100", 1), (3, "45", 0)):
        process = await place.process(job_id, attempt)
        job = await place.api("GET", f"/jobs/{job_id}")
        assert (job["progress"], job["output"]) == (None, {})
        process.log(stdout=f"::progress value={text}::x\n".encode())
        process.finish(exit_code)
        job = await place.job(job_id)
        shown = {"current": 45, "total": 100 if exit_code else None}
        assert job["progress"] == shown, "full only where it completed and has a total"
        if exit_code:
            await place.api("POST", f"/jobs/{job_id}/retry")
    first, *_, last = job["attempts"]
    assert (first["progress"], first["output"]) == said
    assert (last["progress"], last["output"]) == (job["progress"], {})
    found = [one["event"] for one in (await place.api("GET", f"/jobs/{job_id}/events"))["items"]]
    assert {"job.progress", "job.output", "job.notice"} <= set(found)
    assert found[-1] == "job.completed"


# -- which files its result has

BUNDLE = {"run.sh": b"echo hello\n", "data/in.txt": b"input", "data/same.txt": b"12345"}
OWN = {"stdout.log", "stderr.log", "ferryman.json"}


CHANGED = {"outputs": "data", "result_files": "changed"}
MANY = ["out/a.csv", "out/deep/b.csv", "x/best.pdb", "scratch.bin"]


@each(
    "left, exit_code, fields, files",
    [
        (["out.txt"], 0, {}, {*BUNDLE, "out.txt"}),
        # What is not asked for does not count for the limit of results.
        (MANY, 0, {"outputs": "out/*.csv, best.pdb,nothing*"}, {"out/a.csv", "x/best.pdb"}),
        (["data/x", "y"], 0, CHANGED, {"data/x", "data/same.txt", "inputs.sha256"}),
        (["scratch"], 3, {"outputs": "best.pdb"}, set()),
    ],
)
async def test_a_result_has_the_files_that_were_asked_for_and_the_logs(
    place: Place, left: list[str], exit_code: int, fields: dict[str, str], files: set[str]
) -> None:
    def script(process: FakeProcess) -> None:
        for name in left:
            process.write(name, name.encode())
            if name == "scratch.bin":
                os.truncate(process.workspace.path / name, 1 << 40)
        same = process.workspace.path / "data/same.txt"
        before = same.stat()
        same.write_bytes(b"54321")  # as long as before, and said to be as old
        os.utime(same, ns=(before.st_atime_ns, before.st_mtime_ns))
        process.finish(exit_code)

    place.does(script)
    job = await place.job(await place.upload(BUNDLE, **fields))
    _, _, packed = await place.get(f"/download_partial/{job['id']}")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.getinfo("ferryman.json").date_time[0] > 1980  # when the attempt ended
        found = {name: archive.read(name) for name in archive.namelist()}
    assert set(found) == files | OWN
    assert found.get("data/same.txt", b"54321") == b"54321"
    wished = [one.strip() for one in fields.get("outputs", "").split(",") if one]
    receipt = json.loads(found["ferryman.json"])
    assert job["outputs"] == receipt.get("outputs", []) == wished
    chosen = fields.get("result_files", "all")
    assert job["result_files"] == receipt.get("result_files", "all") == chosen
    assert len(job["warnings"]) == ("nothing*" in wished)
    assert all("nothing*" in one and "best.pdb" not in one for one in job["warnings"])


async def test_where_no_agent_can_leave_files_out_the_job_says_so(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for field, text in (("name", "a"), ("outputs", "a"), ("result_files", "changed")):
            job = await caller.job(await caller.upload(None, "my_service", **{field: text}))
            warned = sum("job-orchestrator" in said for said in job["warnings"])
            assert warned == (field != "name"), field
