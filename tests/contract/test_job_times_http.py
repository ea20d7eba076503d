"""The times that a job's document shows: limits that hold, and when it was started."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.fake_agent import FakeAgent, serving

TIMES = ("timeout_s", "queue_timeout_s", "heartbeat_timeout_s", "expires_after_s")


def times(job: dict[str, Any]) -> list[float | None]:
    return [job[name] for name in TIMES]


async def test_a_document_shows_the_times_of_the_service_where_the_upload_gave_none(
    tmp_path,
) -> None:
    agent = FakeAgent(ends="Running")
    limits = (
        'timeout = "2h"\nqueue_timeout = "1h"\nheartbeat_timeout = "10m"\nexpires_after = "1d"\n'
    )
    async with serving(tmp_path, agent, extra=limits) as caller:
        usual = await caller.upload()
        own = await caller.upload(
            timeout="1h", queue_timeout="30m", heartbeat_timeout="5m", expires_after="2h"
        )
        # More than the service allows, or none at all, is cut, with a warning for each.
        cut = await caller.upload(
            timeout="9h", queue_timeout="0s", heartbeat_timeout="1h", expires_after="0s"
        )
        child = await caller.upload(array="0-0")
        shown = [await caller.job(one, until="Running") for one in (usual, own, cut)]
        assert [times(job) for job in shown] == [
            [7_200, 3_600, 600, 86_400],
            [3_600, 1_800, 300, 7_200],
            [7_200, 3_600, 600, 86_400],
        ]
        assert [len(job["warnings"]) for job in shown] == [0, 0, 4]
        # It is kept as long as its parent.
        job = await caller.job(child + 1, until="Running")
        assert times(job) == [7_200, 3_600, 600, None]
        assert job["limits"] == shown[0]["limits"]
        assert job["retry"] == shown[0]["retry"]


async def ends(agent: FakeAgent, key: str, status: str, **more: Any) -> None:
    """The attempt is there, runs, and ends so."""
    async with asyncio.timeout(20):
        await agent.until(lambda: bool(agent.starts[key]))
    held = agent.held(key)
    held.status, held.more = status, more
    await agent.say(held)


TWICE = 'retries = 1\nretry_delays = ["0s"]\n'


async def test_a_try_that_failed_is_in_the_history_with_its_reason(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, extra=TWICE) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        failed = {"reason": "exit_code", "exit_code": 3, "message": "run.sh ended with exit code 3"}
        await ends(agent, f"{job_id}.1", "Failed", **failed)
        await ends(agent, f"{job_id}.2", "Completed", exit_code=0)
        history = (await caller.job(job_id))["history"]
    found = [(one["status"], one["attempt"], one["reason"]) for one in history]
    assert [one for one in found if one[0] != "Processing"] == [
        ("Queued", 0, None),
        ("Submitted", 1, None),
        ("Running", 1, None),
        ("Queued", 1, "exit_code"),
        ("Submitted", 2, None),
        ("Running", 2, None),
        ("Completed", 2, None),
    ]
    said = [one["message"] for one in history if one["message"]]
    assert len(said) == 1
    assert said[0].startswith("run.sh ended with exit code 3; it will be tried again")


async def test_a_job_has_the_first_start_and_each_attempt_its_own(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, extra=TWICE) as caller:
        job_id = await caller.upload()
        running = await caller.job(job_id, until="Running")
        assert running["heartbeat_at"] == running["started_at"] is not None
        await ends(agent, f"{job_id}.1", "Failed", reason="exit_code", exit_code=1)
        await agent.until(lambda: bool(agent.starts[f"{job_id}.2"]))
        again = await caller.job(job_id, until="Running")
        assert again["started_at"] == running["started_at"]
        assert again["heartbeat_at"] > running["heartbeat_at"]
        await ends(agent, f"{job_id}.2", "Completed", exit_code=0)
        job = await caller.job(job_id)
    first, second = (one["started_at"] for one in job["attempts"])
    assert job["started_at"] == first < second
    assert job["heartbeat_at"] == second


async def test_a_start_that_is_reported_with_its_end_is_the_first_of_the_job(tmp_path) -> None:
    async with serving(tmp_path, FakeAgent(ends="Failed"), extra=TWICE) as caller:
        job = await caller.job(await caller.upload())
    first, second = (one["started_at"] for one in job["attempts"])
    assert job["started_at"] == first < second


async def test_a_completed_job_has_its_progress_full(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        for said, shown in (
            (None, {"current": 1, "total": 1}),
            ({"current": 45, "total": 100}, {"current": 100, "total": 100}),
            ({"current": 45, "total": None}, {"current": 45, "total": None}),
        ):
            job_id = await caller.upload()
            live: dict[str, Any] = {
                "live": {"progress": said, "message": "", "output": {}, "notices": []}
            }
            await ends(agent, f"{job_id}.1", "Completed", **(live if said else {}))
            job = await caller.job(job_id)
            assert (job["status"], job["progress"]) == ("Completed", shown)
            assert job["attempts"][0]["progress"] == said
        # Of a job that failed it says how far it came.
        job_id = await caller.upload()
        live = {"live": {"progress": {"current": 45, "total": 100}}}
        await ends(agent, f"{job_id}.1", "Failed", reason="exit_code", exit_code=1, **live)
        assert (await caller.job(job_id))["progress"] == {"current": 45, "total": 100}
