"""``GET /metrics`` of the agent."""

from __future__ import annotations

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


async def test_attempts_are_counted_by_how_they_ended(tmp_path):
    async with calling(tmp_path) as agent:
        await agent.completed()
        found = await samples(agent)
    assert found["ferryman_attempts_ended_total", "", "Completed"] == 1
    assert found["ferryman_payloads", "Completed"] == 1
    assert found["ferryman_transfers_total", "upload", "ok"] == 1
    for phase in ("sandbox", "unpack", "start", "slot", "run", "pack"):
        assert found["ferryman_attempt_phase_seconds_count", phase] == 1
    assert found["ferryman_slots",] >= 1
    assert found["ferryman_unready", "sandbox"] == 0
    assert found["ferryman_database_commit_seconds_count",] > 0
