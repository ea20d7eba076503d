"""An agent's own id, and which start of a server it obeys."""

import pytest

from shared.ids import Start
from shared.wire import START
from tests.kit.agent_http import SERVER, AgentClient, calling
from tests.kit.each import each

pytestmark = pytest.mark.asyncio(loop_scope="module")
LARGE = {"run.sh": b"", "big": bytes(300 << 10)}


async def test_an_agent_keeps_the_id_of_its_first_start_under_every_name(tmp_path):
    seen = []
    for home, name in ((tmp_path, "node-1"), (tmp_path, "node-2"), (tmp_path / "other", "node-1")):
        async with calling(home, name=name) as agent:
            _, health = await agent.call("GET", "/health")
            assert health["agent"] == name
            seen.append(health["agent_id"])
    assert seen[0] == seen[1] != seen[2]
    assert len(seen[0]) == 32


async def answers_to_a_stale_start(agent: AgentClient, ended: int) -> list[tuple[int, str]]:
    """To all that a server asks for; the second attempt is known, with another bundle."""
    refs = [{"id": ended, "key": "1.1"}]
    of_server = {"server": SERVER}
    answers = [
        await agent.submit("3.1"),
        await agent.submit("2.1"),
        await agent.submit("4.1", LARGE),
        await agent.settle("9.9"),
        await agent.settle("2.1", kill="1"),
        await agent.call("POST", f"/kill/{ended}"),
        await agent.call("GET", "/events", params=of_server),
    ]
    listed = await agent.post(agent.sent("3.1"), acknowledge=refs)
    assert listed["refused"] == {str(ended): "stale_start"}
    return [(one[0], one[1]["code"]) for one in answers] + [(409, listed["answers"][0]["code"])]


@each("stale", [Start(6, "a"), Start(7, "b"), None])
async def test_a_stale_start_of_a_server_starts_ends_and_forgets_nothing(tmp_path, stale):
    home = tmp_path / str(stale)
    home.mkdir()
    async with calling(home) as agent:
        ended = await agent.completed("1.1")
        agent.start = Start(7, "a")
        _, running = await agent.submit("2.1")
        (await agent.sandbox.process("2.1")).finish()
        await agent.ended(running["id"])
    async with calling(home) as agent:  # what was seen outlives a restart
        agent.start = stale
        found = await answers_to_a_stale_start(agent, ended)
        assert set(found) == {(409, "stale_start")}
        _, refused = await agent.settle("9.9")
        which = f"start {stale} of the server is stale" if stale else "the request names no start"
        assert refused["message"] == f"{which}: start 7-a of the server was seen here"
        assert await agent.zip(f"/retrieve_partial/{ended}")  # the refused ones took nothing away
        assert agent.sandbox.starts == {}
        agent.start = Start(7, "a")
        assert (await agent.settle("3.1"))[1] == {"payload": None}
        agent.start = Start(8, "c")
        assert (await agent.call("POST", f"/kill/{ended}"))[1]["status"] == "Completed"
        agent.start = Start(7, "a")
        refused = (await agent.post(acknowledge=[{"id": ended}]))["refused"]
        assert refused == {str(ended): "stale_start"}
        agent.start = Start(8, "c")
        await agent.forget(ended)


async def test_starts_of_different_servers_are_counted_apart(tmp_path):
    async with calling(tmp_path) as agent:
        for server, number in ((SERVER, 9), ("server-two", 1)):
            agent.start = Start(number, "a")
            status, payload = await agent.submit("1.1", server=server)
            assert status == 200
            (await agent.sandbox.process("1.1")).finish()
            await agent.ended(payload["id"])


@each("text", ["9" * 19 + "-a", "9" * 5_000 + "-a", "-1-a", "x", "7", "7-", "7-g"])
async def test_what_is_no_start_is_refused(agent, text):
    answer = await agent.call("GET", "/events", params={"server": "s"}, headers={START: text})
    assert (answer[0], answer[1]["code"]) == (400, "invalid_start")
