"""``0s`` is no limit of time."""

from __future__ import annotations

import json
from typing import Any

from tests.kit.fake_agent import FakeAgent, serving

TIMES = ("timeout_s", "queue_timeout_s", "heartbeat_timeout_s", "expires_after_s")


def times(job: dict[str, Any]) -> list[float | None]:
    return [job[name] for name in TIMES]


async def test_a_service_without_a_limit_of_time_gives_its_jobs_none(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    none = 'timeout = "0s"\nexpires_after = "0s"\n'
    async with serving(tmp_path, agent, extra=none) as caller:
        jobs = [await caller.upload(), await caller.upload(timeout="0s")]
        short = await caller.upload(timeout="90s", expires_after="3h")
        shown = [await caller.job(one, until="Running") for one in (*jobs, short)]
        assert [times(job) for job in shown] == [[None] * 4, [None] * 4, [90.0, None, None, 10_800]]
        assert [job["warnings"] for job in shown] == [[], [], []]
        assert [order["timeout_s"] for order in agent.orders] == [0, 0, 90.0]
        assert shown[0]["attempts"][0]["timeout_s"] is None
        _, _, service = await caller.get("/api/v1/services/my_service")
        assert times(json.loads(service)) == [None] * 4
        _, _, page = await caller.get("/jobs/1")
        assert b"no limit" in page
