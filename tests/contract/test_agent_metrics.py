"""``GET /metrics`` of the agent."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from tests.kit.agent_http import AgentClient, calling


async def samples(caller: AgentClient) -> dict[tuple[str, ...], float]:
    """Name and values of labels, in their order -> value."""
    async with caller.http.get("/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in read(text)
        for one in family.samples
    }


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller


async def test_attempts_are_counted_by_how_they_ended(agent):
    _, payload = await agent.submit()
    process = await agent.sandbox.process("1.1")
    process.finish()
    await agent.ended(payload["id"])
    found = await samples(agent)
    assert found["ferryman_attempts_ended_total", "", "Completed"] == 1
    assert found["ferryman_payloads", "Completed"] == 1
    assert found["ferryman_transfers_total", "upload", "ok"] == 1
    for phase in ("sandbox", "unpack", "start", "slot", "run", "pack"):
        assert found["ferryman_attempt_phase_seconds_count", phase] == 1
    assert found["ferryman_slots",] >= 1
    assert found["ferryman_unready", "sandbox"] == 0
    assert found["ferryman_database_commit_seconds_count",] > 0


async def test_only_who_shows_a_token_may_read_them(tmp_path):
    token = "a-token-of-somebody"
    async with calling(tmp_path, tokens=[token]) as agent:
        for shown, status in (("another-token-than-its", 401), (token, 200)):
            headers = {"Authorization": f"Bearer {shown}"}
            async with agent.http.get("/metrics", headers=headers) as answer:
                assert answer.status == status
