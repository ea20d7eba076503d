"""An agent's own id, and which process of a server it obeys."""

from __future__ import annotations

import pytest

from tests.kit.agent_http import SERVER, calling


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


async def settle(agent, key="9.9", lease="", **more):
    query = {"lease": str(lease), **more} if lease != "" else more
    return await agent.call("POST", f"/keys/{SERVER}/{key}/settle", params=query)


async def test_an_agent_keeps_the_id_of_its_first_start_under_every_name(tmp_path):
    seen = []
    for home, name in ((tmp_path, "node-1"), (tmp_path, "node-2"), (tmp_path / "other", "node-1")):
        async with calling(home, name=name) as agent:
            _, health = await agent.call("GET", "/health")
            assert health["agent"] == name
            seen.append(health["agent_id"])
    assert seen[0] == seen[1] != seen[2]
    assert len(seen[0]) == 32


async def test_a_lower_lease_than_was_seen_starts_ends_and_forgets_nothing(tmp_path):
    async with calling(tmp_path) as agent:
        ended = await agent.completed("1.1")
        _, running = await agent.submit("2.1", lease=7)
        process = await agent.sandbox.process("2.1")
        process.finish()
        await agent.ended(running["id"])
    async with calling(tmp_path) as agent:  # what was seen outlives a restart
        for lease in ("6", ""):
            query = f"?lease={lease}" if lease else ""
            for answer in (
                await agent.submit("3.1", lease=int(lease or 0)),
                await agent.submit("2.1", lease=int(lease or 0)),
                await agent.submit("4.1", {"run.sh": b"", "big": bytes(300 << 10)}),
                await settle(agent, lease=lease),
                await settle(agent, "2.1", lease, kill="1"),
                await agent.call("POST", f"/kill/{ended}{query}"),
                await agent.call("DELETE", f"/payloads/{ended}{query}"),
            ):
                assert (answer[0], answer[1]["code"]) == (409, "stale_lease")
        assert await agent.zip(f"/retrieve_partial/{ended}")  # the refused ones took nothing away
        assert agent.sandbox.starts == {}
        assert (await settle(agent, "3.1", "7"))[1] == {"payload": None}
        assert (await agent.call("POST", f"/kill/{ended}?lease=8"))[1]["status"] == "Completed"
        assert (await agent.call("DELETE", f"/payloads/{ended}?lease=7"))[0] == 409
        assert (await agent.call("DELETE", f"/payloads/{ended}?lease=8"))[0] == 204


async def test_a_large_repeat_under_a_stale_lease_is_refused_before_it_has_come(agent):
    files = {"run.sh": b"true", "big": bytes(300 << 10)}
    assert (await agent.submit("1.1", files, lease=2))[0] == 200
    status, answer = await agent.submit("1.1", files, lease=1)
    assert (status, answer["code"]) == (409, "stale_lease")
    (await agent.sandbox.process("1.1")).finish()


async def test_leases_of_different_servers_are_counted_apart(agent):
    for server, lease in ((SERVER, 9), ("server-two", 1)):
        status, payload = await agent.submit("1.1", server=server, lease=lease)
        assert status == 200
        (await agent.sandbox.process("1.1")).finish()
        await agent.ended(payload["id"])
