"""The times that a job's document shows: limits that hold, and when it was started."""

from __future__ import annotations

from typing import Any

from tests.support.fake_agent import FakeAgent, serving

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
