"""Somebody sets the machine's clock while server or agent work."""

from __future__ import annotations

from typing import Any

import pytest

from client_agent.run.retention import INTERVAL_S
from shared.clock import SECOND, from_iso
from tests.kit.agent_http import SERVER, calling
from tests.kit.clock import JumpingClock, SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

JUMPS_S = [-1000 * 86_400.0, 1000 * 86_400.0]
SHORT = '[services.short]\nexpires_after = "10ms"\n'


@pytest.mark.parametrize("jump_s", JUMPS_S)
async def test_the_server_cleans_nothing_after_a_jump(tmp_path, jump_s):
    machine = JumpingClock()
    given: dict[str, Any] = {"extra": SHORT, "machine": machine, "cleaner_interval": 0.02}
    async with driving(tmp_path, FakeOrchestrator(), **given) as caller:
        job_id = await caller.upload()
        before = await caller.job(job_id)
        assert before["status"] == "Completed"
        machine.jump(jump_s)
        short = await caller.upload(service="short")
        async with caller.session.post(f"{caller.url}/terminate/{short}") as answer:
            assert answer.status in (200, 409)  # 409: it is cleaned already
        states = await caller.states(short)
        assert "Cancelled" in states
        while states[-1] != "Cleaned":  # so the Cleaner has swept
            states = await caller.states(short, more_than=len(states))
        after = await caller.job(job_id)
        assert (after["status"], after["expires_at"]) == ("Completed", before["expires_at"])


@pytest.mark.parametrize("jump_s", JUMPS_S)
async def test_the_agent_keeps_results_promises_and_the_order_of_times_after_a_jump(
    tmp_path, jump_s
):
    clock = SimClock()
    async with calling(tmp_path, clock, retention=4 * INTERVAL_S) as caller:
        assert await caller.call("POST", f"/keys/{SERVER}/9.1/settle") == (200, {"payload": None})
        done = await caller.completed()
        _, reply = await caller.submit("2.1")
        process = await caller.sandbox.process("2.1")
        clock.jump(jump_s)
        await clock.advance(59.0)
        process.finish()
        ended = await caller.ended(reply["id"])
        took_s = (from_iso(ended["ended_at"]) - from_iso(ended["started_at"])) / SECOND
        assert 58.0 < took_s < 60.0
        await clock.advance(INTERVAL_S - clock.monotonic())
        await clock.until_asleep(INTERVAL_S)  # so it has looked for what expired
        await clock.advance(INTERVAL_S)
        await clock.until_asleep(INTERVAL_S)
        assert "run.sh" in await caller.zip(f"/retrieve/{done}")
        status, reply = await caller.submit("9.1")
        assert (status, reply["code"]) == (409, "key_refused")
