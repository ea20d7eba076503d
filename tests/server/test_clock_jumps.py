"""Somebody sets the machine's clock while server or agent work."""

from __future__ import annotations

import pytest

from client_agent.run.retention import INTERVAL_S
from shared.clock import SECOND, from_iso
from tests.kit.agent import SERVER
from tests.kit.agent_http import calling
from tests.kit.clock import JumpingClock, SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

DAY_S = 86_400.0
SHORT = '[services.short]\nexpires_after = "10ms"\n'


@pytest.mark.parametrize("days", [-1000, 1000])
async def test_the_server_cleans_nothing_after_a_jump(tmp_path, days):
    machine = JumpingClock()
    async with driving(
        tmp_path, FakeOrchestrator(), extra=SHORT, machine=machine, cleaner_interval=0.02
    ) as caller:
        job_id = await caller.upload()
        before = await caller.job(job_id)
        assert before["status"] == "Completed"
        machine.jump(days * DAY_S)
        short = await caller.upload({"run.sh": b"true\n"}, service="short")
        async with caller.session.post(f"{caller.url}/terminate/{short}") as answer:
            assert answer.status in (200, 409)  # 409: it is cleaned already
        states = await caller.states(short)
        assert "Cancelled" in states
        while states[-1] != "Cleaned":  # so the Cleaner has swept
            states = await caller.states(short, more_than=len(states))
        after = await caller.job(job_id)
        assert (after["status"], after["expires_at"]) == ("Completed", before["expires_at"])


@pytest.mark.parametrize("days", [-1000, 1000])
async def test_the_agent_removes_no_result_after_a_jump(tmp_path, days):
    clock = SimClock()
    async with calling(tmp_path, clock) as caller:
        payload_id = await caller.completed()
        clock.jump(days * DAY_S)
        for _ in range(2):
            await clock.until_asleep(INTERVAL_S)
            await clock.advance(INTERVAL_S)
        await clock.until_asleep(INTERVAL_S)
        assert "run.sh" in await caller.zip(f"/retrieve/{payload_id}")


@pytest.mark.parametrize("days", [-1000, 1000])
async def test_the_agent_keeps_its_promises_after_a_jump(tmp_path, days):
    clock = SimClock()
    async with calling(tmp_path, clock, retention=60.0) as caller:
        assert await caller.call("POST", f"/keys/{SERVER}/1.1/settle") == (200, {"payload": None})
        clock.jump(days * DAY_S)
        for _ in range(2):
            await clock.until_asleep(INTERVAL_S)
            await clock.advance(INTERVAL_S)
        await clock.until_asleep(INTERVAL_S)
        status, reply = await caller.submit("1.1")
        assert (status, reply["code"]) == (409, "key_refused")


@pytest.mark.parametrize("days", [-1000, 1000])
async def test_the_times_of_an_attempt_stay_in_order_after_a_jump(tmp_path, days):
    clock = SimClock()
    async with calling(tmp_path, clock) as caller:
        _, reply = await caller.submit()
        process = await caller.sandbox.process("1.1")
        clock.jump(days * DAY_S)
        await clock.advance(59.0)
        process.finish()
        ended = await caller.ended(reply["id"])
        took_s = (from_iso(ended["ended_at"]) - from_iso(ended["started_at"])) / SECOND
        assert 58.0 < took_s < 60.0
