"""Edges of a job's life over HTTP: what its script does, and what its document says then."""

from typing import Any

import pytest

from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.waiting import eventually
from tests.kit.warm import Place
from tests.server.warm_jobs import done, leaving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = "[server]\ncleaner_interval = '50ms'\nsender_interval = '50ms'\n"


async def is_at(place: Place, job_id: int, status: str, attempt: int) -> dict[str, Any]:
    """The document, once it is."""
    return await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"),
        lambda job: (job["status"], job["attempt"]) == (status, attempt),
    )


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
    assert job["retries_left"] == 0

    other = place.warm.new("service")  # is looked at later than the one that is paused
    place.warm.scripts[other] = None
    place.does(None)
    await place.api("PUT", f"/services/{other}", {"max_runs": 1})
    for service in (place.service, other):
        await place.job(await place.upload(service=service), until="Running")
    await place.api("POST", f"/services/{place.service}/pause")
    short, long = await place.upload(queue_timeout="50s"), await place.upload(retries="2")
    late = await place.upload(service=other, queue_timeout="50s")
    place.warm.clock.forward(51)
    assert (await place.job(late))["reason"] == "queue_timeout"
    assert (await place.api("GET", f"/jobs/{short}"))["status"] == "Queued"
    await place.api("POST", f"/services/{place.service}/resume")
    for job_id, waited in ((short, "waited 50s "), (long, "waited 1m 40s ")):
        if job_id == long:  # the other's own timeout was shorter than the service's
            assert (await place.api("GET", f"/jobs/{long}"))["status"] == "Queued"
            place.warm.clock.forward(50)
        job = await place.job(job_id)
        assert (job["status"], job["reason"]) == ("Failed", "queue_timeout")
        assert waited in job["message"]
    said = "; it has 2 retries left, but queue_timeout would be the same next time"
    assert job["message"].endswith(said)


@each(
    "said, exit_code, current, total",
    [("45,total=100", 0, 100, 100), ("45,total=100", 1, 45, 100), ("45", 0, 45, None)],
)
async def test_progress_is_full_only_where_a_job_completed_and_has_a_total(
    place: Place, said: str, exit_code: int, current: int, total: int | None
) -> None:
    script = leaving(stdout=f"::progress value={said}::x\n".encode(), code=exit_code)
    job = await place.job(await done(place, script))
    assert job["progress"] == {"current": current, "total": total}


async def test_where_no_agent_can_leave_files_out_the_job_says_so(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for field, text in (("name", "a"), ("outputs", "a"), ("result_files", "changed")):
            job = await caller.job(await caller.upload(None, "my_service", **{field: text}))
            warned = sum("job-orchestrator" in said for said in job["warnings"])
            assert warned == (field != "name"), field
