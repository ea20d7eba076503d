"""Requests that wait for a job: for another state, for its end, for so long and no longer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

HERE = "/api/v1/jobs/1"
INTERVAL_S = 10.0
"""Seconds between two looks at the client."""
SLACK_S = 3 * INTERVAL_S
"""Time may pass while a request is on its way."""


@dataclass
class World:
    """Job 1, which runs on a client; time passes when all wait for it."""

    caller: ServerClient
    clock: SimClock
    client: FakeOrchestrator

    async def get(self, path: str, seconds: float) -> tuple[int, str]:
        """The answer's status, and the job's in it; it comes after so many seconds."""
        before = self.clock.monotonic()
        code, kind, body = await self.caller.get(path)
        waited = self.clock.monotonic() - before
        assert seconds - 0.001 <= waited <= seconds + SLACK_S, (path, waited)
        return code, "Completed" if kind == "application/zip" else json.loads(body).get("status")

    async def becomes(self, status: str, after_s: float) -> None:
        await self.clock.sleep(after_s)
        self.client.payloads[1].status = status


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[World]:
    clock, client = SimClock(), FakeOrchestrator(then="Running")
    more: dict[str, Any] = {"getter_interval": INTERVAL_S, "sender_interval": INTERVAL_S}
    async with driving(tmp_path, client, machine=clock, **more) as caller:
        with clock.autojump(most_s=3_600):
            await caller.job(await caller.upload(), until="Running")
            yield World(caller, clock, client)


async def test_a_wait_is_as_long_as_it_was_asked_for_and_two_minutes_at_most(world):
    for query, seconds in {
        "": 0.0,
        "?wait=0": 0.0,
        "?wait=90&seen=Queued": 0.0,
        "?wait=31.5&seen=Running": 31.5,
        "?wait=30s&seen=Running": 30.0,
        "?wait=1e9&seen=Running": 120.0,
    }.items():
        assert await world.get(f"{HERE}{query}", seconds) == (200, "Running")
    assert await world.get("/download/1?wait=30", 30) == (200, "Running")
    assert await world.get(f"{HERE}/result?wait=30", 30) == (202, "Running")
    code, _ = await world.get("/api/v1/jobs/8?wait=90&seen=Running", 0)
    assert code == 404, "nobody waits for a job that is not there"


@pytest.mark.parametrize("path", [f"{HERE}?wait=90&seen=Running", "/download/1?wait=90"])
async def test_a_wait_ends_with_the_job(world, path):
    ends = asyncio.create_task(world.becomes("Completed", 25))
    assert await world.get(path, 25) == (200, "Completed")
    await ends


async def test_a_wait_for_the_end_goes_on_through_other_states_and_its_time_runs_on(world):
    later = await world.caller.upload(not_before="in 20s")
    assert await world.get(f"/download/{later}?wait=50", 50) == (200, "Running")
    another = await world.caller.upload(user_id="8", not_before="in 20s")
    path = f"/api/v1/jobs/{another}?wait=90&seen=Queued"
    code, status = await world.get(path, 0)
    assert (code, status != "Queued") == (200, True)


async def test_a_wait_ends_when_the_server_stops(world):
    async def stop() -> None:
        await world.clock.sleep(5)
        world.caller.server.wakeups.close()

    stopping = asyncio.create_task(stop())
    assert await world.get("/download/1?wait=90", 5) == (200, "Running")
    await stopping
