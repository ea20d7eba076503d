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


@dataclass
class World:
    """Job 1, which runs on a client; time passes when all wait for it."""

    caller: ServerClient
    clock: SimClock
    client: FakeOrchestrator

    async def get(self, path: str) -> tuple[int, str, float]:
        """The answer's status, the job's in it, and the seconds until it came."""
        before = self.clock.monotonic()
        code, kind, body = await self.caller.get(path)
        status = "Completed" if kind == "application/zip" else json.loads(body).get("status")
        return code, status, self.clock.monotonic() - before

    async def becomes(self, status: str, after_s: float) -> None:
        await self.clock.sleep(after_s)
        self.client.payloads[1].status = status


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[World]:
    clock, client = SimClock(), FakeOrchestrator(then="Running")
    more: dict[str, Any] = {"getter_interval": INTERVAL_S, "sender_interval": INTERVAL_S}
    async with driving(tmp_path, client, machine=clock, **more) as caller:
        with clock.autojump():
            await caller.job(await caller.upload(), until="Running")
            yield World(caller, clock, client)


async def test_a_wait_is_as_long_as_it_was_asked_for_and_two_minutes_at_most(world):
    for query, seconds in {
        "": 0.0,
        "?wait=0": 0.0,
        "?wait=30&seen=Queued": 0.0,
        "?wait=1.5&seen=Running": 1.5,
        "?wait=3s&seen=Running": 3.0,
        "?wait=1e9&seen=Running": 120.0,
    }.items():
        assert await world.get(f"{HERE}{query}") == (200, "Running", seconds)
    assert await world.get("/download/1?wait=3") == (200, "Running", 3.0)
    assert await world.get(f"{HERE}/result?wait=3") == (202, "Running", 3.0)
    code, _, seconds = await world.get("/api/v1/jobs/8?wait=30&seen=Running")
    assert (code, seconds) == (404, 0.0), "nobody waits for a job that is not there"


@pytest.mark.parametrize("path", [f"{HERE}?wait=90&seen=Running", "/download/1?wait=90"])
async def test_a_wait_ends_with_the_job(world, path):
    ends = asyncio.create_task(world.becomes("Completed", 25))
    code, status, seconds = await world.get(path)
    assert (code, status) == (200, "Completed")
    assert 25 <= seconds <= 25 + INTERVAL_S
    await ends


async def test_a_wait_for_the_end_goes_on_through_other_states_and_its_time_runs_on(world):
    later = await world.caller.upload(not_before="in 20s")
    code, status, seconds = await world.get(f"/download/{later}?wait=50")
    assert (code, status, seconds) == (200, "Running", 50.0)
    another = await world.caller.upload(user_id="8", not_before="in 20s")
    code, status, seconds = await world.get(f"/api/v1/jobs/{another}?wait=50&seen=Queued")
    assert (code, status) == (200, "Processing")
    assert 20 <= seconds <= 20 + INTERVAL_S


async def test_a_wait_ends_when_the_server_stops(world):
    async def stop() -> None:
        await world.clock.sleep(5)
        world.caller.server.wakeups.close()

    stopping = asyncio.create_task(stop())
    assert await world.get("/download/1?wait=90") == (200, "Running", 5.0)
    await stopping
