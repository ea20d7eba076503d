"""Each edge of a job's life over HTTP: what its script does, and what its document says then."""

from __future__ import annotations

from typing import Any

import pytest

from shared.wire import Reason
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.waiting import eventually
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = "[server]\ncleaner_interval = '50ms'\nsender_interval = '50ms'\n"
AT_ONCE: dict[str, Any] = {"retry_delays": ["0s"], "infra_retries": 0}


async def states(place: Place, job_id: int) -> list[tuple[str, int, str | None]]:
    history = (await place.job(job_id))["history"]
    return [(one["status"], one["attempt"], one["reason"]) for one in history]


TRIED = [("Queued", 0, None), ("Processing", 1, None), ("Submitted", 1, None), ("Running", 1, None)]
AGAIN = [("Processing", 2, None), ("Submitted", 2, None), ("Running", 2, None)]


async def test_a_try_that_failed_is_in_the_history_and_each_attempt_has_its_own_start(
    place: Place,
) -> None:
    await place.configure(retries=1, retry_delays=["0s"])
    place.does(None)
    job_id = await place.upload()
    running = await place.job(job_id, until="Running")
    assert running["heartbeat_at"] == running["started_at"] is not None
    (await place.process(job_id)).finish(3)
    second = await place.process(job_id, 2)
    again = await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"),
        lambda job: (job["status"], job["attempt"]) == ("Running", 2),
    )
    assert again["started_at"] == running["started_at"]
    assert again["heartbeat_at"] > running["heartbeat_at"]
    second.finish()
    job = await place.job(job_id)
    wanted = [*TRIED, ("Queued", 1, "exit_code"), *AGAIN, ("Completed", 2, None)]
    assert await states(place, job_id) == wanted
    (said,) = (one["message"] for one in job["history"] if one["message"])
    assert said.startswith("run.sh ended with exit code 3; it will be tried again")
    first, last = (one["started_at"] for one in job["attempts"])
    assert job["started_at"] == first < last
    assert job["heartbeat_at"] == last
    assert (job["attempts"][0]["exit_code"], job["exit_code"], job["retries_left"]) == (3, 0, 0)


@each("of_service, fields", [({"retries": 1}, {}), ({}, {"retries": "1"})])
@each(
    "end, reason",
    [
        (lambda process: process.finish(1), "exit_code"),
        (lambda process: process.stop(Reason.TIMEOUT, "x"), "timeout"),
        (lambda process: process.stop(Reason.HEARTBEAT_TIMEOUT, "x"), "heartbeat_timeout"),
    ],
)
async def test_retries_alone_retry_what_a_bundle_does_wrong(
    place: Place, of_service: Any, fields: Any, end: Any, reason: str
) -> None:
    await place.configure(**AT_ONCE, **of_service)
    place.does(end)
    job = await place.job(await place.upload(**fields))
    assert (job["status"], job["reason"], job["attempt"]) == ("Failed", reason, 2)
    assert job["retry"]["retry_on"] == ["exit_code", "heartbeat_timeout", "timeout"]
    assert "not tried again" not in job["message"]


async def test_a_failure_that_is_not_named_says_so_with_what_is_left(place: Place) -> None:
    await place.configure(**AT_ONCE)
    place.does(lambda process: process.finish(1))
    job = await place.job(await place.upload(retries="2", retry_on="exit:7"))
    assert (job["status"], job["attempt"], job["retries_left"]) == ("Failed", 1, 2)
    assert job["message"].endswith("; it has 2 retries left, but retry_on has only exit:7")


async def test_an_upload_hears_what_its_list_leaves_out_and_what_is_never_retried(
    place: Place,
) -> None:
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


async def test_an_interruption_is_tried_again_from_a_budget_of_its_own(place: Place) -> None:
    await place.configure(infra_retries=1)
    place.does(lambda process: process.break_down("its host is broken", certain=False))
    job = await place.job(await place.upload())
    assert (job["status"], job["reason"], job["attempt"]) == ("Failed", "agent_error", 2)
    assert job["retries_left"] == 0
    events = [
        one["event"] for one in (await place.api("GET", f"/jobs/{job['id']}/events"))["items"]
    ]
    assert events.count("job.interrupted") == 1


async def test_a_job_that_asks_is_tried_later_and_its_time_in_the_queue_goes_on(
    place: Place,
) -> None:
    await place.configure(queue_timeout="100s")
    place.does(None)
    job_id = await place.upload()
    for attempt in (1, 2):
        process = await place.process(job_id, attempt)
        process.log(stdout=b"::retry-later after=60s::GPU busy\n")
        process.finish(75)
        job = await eventually(
            lambda: place.api("GET", f"/jobs/{job_id}"), lambda job: job["status"] == "Queued"
        )
        assert (job["attempt"], job["retries_left"]) == (attempt, 0)
        place.warm.clock.forward(60 if attempt == 1 else 41)
    job = await place.job(job_id)
    assert (job["status"], job["reason"]) == ("Failed", "queue_timeout"), "its delay is not over"
    assert [one["status"] for one in job["attempts"]] == ["Failed", "Failed"]
    assert all(one["links"]["result"] for one in job["attempts"]), "what they left is kept"


async def test_the_delay_of_a_retry_is_no_time_in_the_queue(place: Place) -> None:
    await place.configure(queue_timeout="100s", retries=1, retry_delays=["300s"])
    place.does(lambda process: process.finish(1))
    job_id = await place.upload()
    await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"),
        lambda job: (job["status"], job["attempt"]) == ("Queued", 1),
    )
    place.warm.clock.forward(301)
    job = await place.job(job_id)
    assert (job["status"], job["reason"], job["attempt"]) == ("Failed", "exit_code", 2)


async def test_a_job_waits_as_long_as_its_upload_and_its_service_allow(place: Place) -> None:
    """Not while its service is paused."""
    await place.configure(queue_timeout="100s", max_runs=1)
    place.does(None)
    await place.job(await place.upload(), until="Running")
    await place.api("POST", f"/services/{place.service}/pause")
    short, long = await place.upload(queue_timeout="50s"), await place.upload(retries="2")
    place.warm.clock.forward(101)
    assert (await place.api("GET", f"/jobs/{short}"))["status"] == "Queued"
    await place.api("POST", f"/services/{place.service}/resume")
    ended = [await place.job(job_id) for job_id in (short, long)]
    assert [(one["status"], one["reason"]) for one in ended] == [("Failed", "queue_timeout")] * 2
    assert "waited 50s " in ended[0]["message"]
    assert "waited 1m 40s " in ended[1]["message"]
    assert ended[1]["message"].endswith(
        "; it has 2 retries left, but queue_timeout would be the same next time"
    )


async def test_what_a_running_job_says_is_in_its_document_and_stays_with_its_attempt(
    place: Place,
) -> None:
    await place.configure(retries=1, retry_delays=["0s"])
    place.does(None)
    job_id = await place.upload()
    process = await place.process(job_id)
    process.log(stdout=b"::progress value=3,total=5::three\n::output name=a::1\n::notice::hello\n")
    job = await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"), lambda job: job["message"] == "three"
    )
    assert (job["progress"], job["output"]) == ({"current": 3, "total": 5}, {"a": "1"})
    process.finish(1)
    second = await place.process(job_id, 2)
    job = await place.api("GET", f"/jobs/{job_id}")
    assert (job["progress"], job["output"]) == (None, {})
    second.finish()
    job = await place.job(job_id)
    first, last = job["attempts"]
    assert (first["progress"], first["output"]) == ({"current": 3, "total": 5}, {"a": "1"})
    assert (last["progress"], last["output"]) == (None, {})
    events = [one["event"] for one in (await place.api("GET", f"/jobs/{job_id}/events"))["items"]]
    assert {"job.progress", "job.output", "job.notice"} <= set(events)
    assert events[-1] == "job.completed"


@each(
    "said, exit_code, shown",
    [
        (b"", 0, {"current": 1, "total": 1}),
        (b"::progress value=45,total=100::x\n", 0, {"current": 100, "total": 100}),
        (b"::progress value=45::x\n", 0, {"current": 45, "total": None}),
        (b"::progress value=45,total=100::x\n", 1, {"current": 45, "total": 100}),
    ],
)
async def test_a_completed_job_has_its_progress_full(
    place: Place, said: bytes, exit_code: int, shown: dict[str, Any]
) -> None:
    def script(process: FakeProcess) -> None:
        process.log(stdout=said)
        process.finish(exit_code)

    place.does(script)
    assert (await place.job(await place.upload()))["progress"] == shown


async def test_a_job_is_cancelled_and_then_deleted(place: Place) -> None:
    place.does(None)
    job_id = await place.upload()
    await place.process(job_id)
    path = f"/api/v1/jobs/{job_id}"
    status, answer = await place.ask("DELETE", path)
    assert (status, answer["status"]) == (200, "Cancelled")
    assert (await place.ask("DELETE", path))[0] == 204
    for more in ("", "/events", "/result"):
        assert (await place.ask("GET", path + more))[0] == 404
    status, problem = await place.ask("DELETE", path)
    assert (status, problem["code"]) == (404, "job_not_found")


async def test_a_job_is_cancelled_in_each_state_and_runs_again_when_it_is_retried(
    place: Place,
) -> None:
    place.does(None)
    running, waiting = await place.upload(), await place.upload(not_before="in 1h")
    process = await place.process(running)
    for job_id in (running, waiting):
        answer = await place.api("POST", f"/jobs/{job_id}/cancel")
        assert answer["status"] == "Cancelled"
        status, answer = await place.ask("POST", f"/terminate/{job_id}")
        assert (status, answer["status"]) == (200, "Killed")
    assert not process.alive
    place.does(lambda process: process.finish())
    await place.api("POST", f"/jobs/{running}/retry")
    job = await place.job(running)
    assert (job["status"], job["attempt"]) == ("Completed", 2)
    status, problem = await place.ask("POST", f"/api/v1/jobs/{running}/retry")
    assert (status, problem["code"]) == (409, "not_retryable")
