"""The agents of a running server come, go, and change: over HTTP, with fake agents."""

import asyncio
import sqlite3
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from server.settings.tables import AgentTable
from server.store import agents
from shared.sqlite.files import DatabaseUnavailable
from tests.fleet.warm_fleet import Fleet
from tests.kit.fake_agent import FakeAgent, is_intake

pytestmark = pytest.mark.asyncio(loop_scope="module")
PARTS = {f"part{number}": bytes(1 << 20) for number in range(40)}
"""More than sockets buffer."""


async def north_of(fleet: Fleet, **how: Any) -> FakeAgent:
    """The server's one agent, whose attempts run until they are ended."""
    agent = FakeAgent("north", "abc", **{"ends": "Running"} | how)
    await fleet.use(agent)
    return agent


def asked_of(agent: FakeAgent) -> list[tuple[str, str]]:
    """The routes that it is asked from now on, each with its credentials."""
    seen = list[tuple[str, str]]()

    async def note(request: web.Request) -> None:
        seen.append((request.path.split("/")[1], request.headers.get("Authorization", "")))

    agent.trick = note
    return seen


async def completes(fleet: Fleet, job_id: int, agent: str = "north") -> None:
    """By its first attempt, there."""
    job = await fleet.job(job_id)
    assert (job["status"], job["attempt"], job["agent"]) == ("Completed", 1, agent)


def with_token(agent: FakeAgent) -> AgentTable:
    return AgentTable.model_validate({"url": agent.url, "token": "a long secret"})


async def test_an_agent_that_is_added_gets_the_jobs_that_wait(fleet: Fleet) -> None:
    """Where nothing else has changed, or other services, its connection stays."""
    await fleet.use(FakeAgent("old", slots=0))
    new = FakeAgent("new0", "id0")
    job_id = await fleet.upload()
    await fleet.now(old=AgentTable(url="http://[::1]:9"), new0=new)
    await completes(fleet, job_id, "new0")
    for _ in range(3):
        await fleet.now(old=AgentTable(url="http://[::1]:9"), new0=new)
    await fleet.now(new0=AgentTable(url=new.url, services=("other",)))
    job_id = await fleet.upload()
    assert (await fleet.job(job_id, until="Queued"))["queue"]["code"] == "no_agent"
    await fleet.now(new0=AgentTable(url=new.url, services=(fleet.service,)))
    await completes(fleet, job_id, "new0")
    assert new.calls["GET /events"] == 1


async def test_an_agent_that_is_taken_out_is_left_alone_and_its_jobs_go_on_when_it_is_back(fleet):
    """A cancel is not confirmed until then."""
    agent = await north_of(fleet)
    job_id, cancelled = await fleet.running(2)
    await fleet.now()
    await agent.until(lambda: agent.streams == 0)
    calls, gone = agent.calls.total(), "agent north is not in the server's settings"
    with capture_logs() as logs:
        status, message = await fleet.cancel(cancelled)
        assert (await fleet.terminate(cancelled))[0] == status == 202
        await fleet.clock.sleep(30.0)
    assert {one["job_id"] for one in logs if one["event"] == "cancel.waits"} == {cancelled}
    assert gone in message
    assert gone in (await fleet.job(job_id, until="Unknown"))["message"]
    second = await fleet.upload()
    north = (await fleet.agents())["north"]
    assert (north["state"], north["in_settings"]) == ("active", False)
    assert (north["up"], north["jobs"]) == (False, 2)
    assert "north\tnot in settings\t" in (await fleet.cli("agents", "list"))[1]
    assert calls == agent.calls.total()
    await fleet.now(north=agent)
    await agent.followed()
    assert (await fleet.job(cancelled, until="Cancelled"))["status"] == "Cancelled"
    assert agent.killed == [f"{cancelled}.1"]
    await agent.end(agent.held(f"{job_id}.1"))
    await completes(fleet, job_id)
    await agent.until(lambda: agent.starts[f"{second}.1"] == 1)
    assert agent.starts[f"{job_id}.1"] == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_an_agent_that_was_taken_out_has_is_lost_at_last(fleet, cancelled):
    agent = await north_of(fleet)
    (job_id,) = await fleet.running()
    await fleet.now()
    if cancelled:
        assert (await fleet.cancel(job_id))[0] == 202
    job = await fleet.given_up(job_id, "Queued")
    assert job["status"] == ("Cancelled" if cancelled else "Queued")
    assert "has not been in the server's settings for" in job["message"]
    assert ("whether its processes are dead is not known" in job["message"]) is cancelled
    assert not agent.killed


async def test_a_bundle_that_is_being_sent_to_an_agent_that_is_taken_out_goes_to_another_one(fleet):
    slow, begun, over = FakeAgent("slow"), asyncio.Event(), asyncio.Event()

    async def stuck(request: web.Request) -> web.StreamResponse | None:
        if is_intake(request):
            begun.set()
            await over.wait()  # reads nothing meanwhile
            return web.Response(status=503)
        return None

    slow.trick = stuck
    await fleet.use(slow)
    new = FakeAgent("new0", "id0")
    job_id = await fleet.upload({"run.sh": b"true\n", **PARTS})
    await begun.wait()
    await fleet.now(new0=new)
    job = await fleet.job(job_id)
    assert (job["status"], job["agent"]) == ("Completed", "new0")
    assert not slow.starts
    over.set()


async def test_a_bundle_that_was_sent_to_its_end_waits_for_the_agents_answer(fleet):
    """The agent may have it and run it: another attempt would be a second run."""
    north, taken = FakeAgent("north", "abc", ends="Running"), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse | None:
        if not is_intake(request):
            return None
        await north.submit(request)
        taken.set()
        await asyncio.Event().wait()
        return None

    north.trick = silent
    await fleet.use(north)
    new = FakeAgent("new0", "id0")
    job_id = await fleet.upload()
    await taken.wait()
    await fleet.now(new0=new)
    await new.followed()
    north.trick = None
    await fleet.now(new0=new, north=north)
    await fleet.job(job_id, until="Running")
    await north.end(north.held(f"{job_id}.1"))
    await completes(fleet, job_id)
    assert not new.starts


async def test_a_result_that_is_being_fetched_is_cut_off_and_fetched_again(fleet: Fleet) -> None:
    begun = asyncio.Event()

    async def stuck(request: web.Request) -> web.StreamResponse | None:
        if request.path.startswith("/retrieve"):
            begun.set()
            await asyncio.Event().wait()
        return None

    agent = await north_of(fleet, sends_results=False)
    (job_id,) = await fleet.running()
    agent.trick = stuck
    await agent.end(agent.held(f"{job_id}.1"))
    await begun.wait()
    await fleet.now()
    found = await fleet.job(job_id, until="Unknown")
    assert "not in the server's settings" in found["message"]
    agent.trick = None
    await fleet.now(north=agent)
    await completes(fleet, job_id)


async def test_an_agent_with_another_token_or_name_is_connected_again_and_keeps_its_jobs(fleet):
    agent = await north_of(fleet, sends_results=False)
    seen = asked_of(agent)
    first, second = await fleet.running(2)
    await agent.end(agent.held(f"{first}.1"))
    await completes(fleet, first)
    assert {token for _, token in seen} == {""}
    seen.clear()
    await fleet.now(north=with_token(agent))
    await agent.followed(2)
    await fleet.now(south=with_token(agent))
    await agent.followed(3)
    found = await fleet.agents()
    assert (list(found), found["south"]["id"], found["south"]["jobs"]) == (["south"], "abc", 1)
    assert (await fleet.job(second, until="Running"))["agent"] == "south"
    await agent.end(agent.held(f"{second}.1"))
    await completes(fleet, second, "south")
    assert ("retrieve_partial", "Bearer a long secret") in seen
    assert {token for _, token in seen} == {"Bearer a long secret"}


async def test_where_new_settings_cannot_be_used_the_agents_before_are(fleet, monkeypatch):
    agent = await north_of(fleet, ends="Completed")
    seen = asked_of(agent)

    def fails(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    for tables in ({"north": with_token(agent)}, {"south": agent}, {}):
        with monkeypatch.context() as broken:
            broken.setattr(agents, "register", fails)
            with pytest.raises(DatabaseUnavailable):
                await fleet.now(**tables)
        await completes(fleet, await fleet.upload())
    assert {token for _, token in seen} == {""}


async def test_an_agent_gets_no_more_jobs_than_slots_unless_it_is_to_prefetch(fleet):
    agent = await north_of(fleet, slots=1)
    (first,) = await fleet.running()
    second, third = await fleet.upload(), await fleet.upload()
    queue = (await fleet.job(second, until="Queued"))["queue"]
    assert (queue["code"], agent.starts.total()) == ("agents_busy", 1)
    await fleet.now(north=AgentTable(url=agent.url, prefetch=1))
    await agent.until(lambda: agent.starts.total() == 2)
    waiting = await fleet.job(third, until="Queued")
    assert waiting["queue"]["code"] == "agents_busy"
    await agent.end(agent.held(f"{first}.1"))
    await agent.until(lambda: agent.starts.total() == 3)


async def test_an_agent_has_no_more_jobs_of_a_service_at_once_than_the_settings_say(fleet):
    agent = await north_of(fleet, slots=3)
    await fleet.configure("other")
    await fleet.now(north=AgentTable(url=agent.url, max_runs={fleet.service: 1}))
    north = (await fleet.agents())["north"]
    assert (north["slots"], north["max_runs"]) == (3, {fleet.service: 1})
    said = f"at most 1 of {fleet.service} at once"
    assert f"\n  {said}\n" in (await fleet.cli("agents", "show", "north"))[1]
    for page in ("/agents", "/agents/north"):
        assert f"any, {said}".encode() in (await fleet.get(page))[2]
    (first,) = await fleet.running()
    second = await fleet.upload()
    await fleet.job(await fleet.upload(service="other"), until="Running")
    waiting = await fleet.job(second, until="Queued")
    queue = waiting["queue"]
    assert (queue["code"], queue["used"], queue["limit"]) == ("agents_busy", 1, 1)
    assert queue["reason"] == f"agent north has as many jobs of {fleet.service} as it may have: 1"
    await agent.end(agent.held(f"{first}.1"))
    await fleet.job(second, until="Running")
    third = await fleet.upload()
    await fleet.now(north=AgentTable(url=agent.url))
    await fleet.job(third, until="Running")
    assert (await fleet.agents())["north"]["max_runs"] == {}


async def test_a_service_that_no_agent_offers_is_named_to_its_user_and_to_operators(fleet):
    await north_of(fleet, ends="Completed", says={"services": [fleet.service]})
    await fleet.configure("lonely")
    fine, job_id = [await fleet.upload(service=one) for one in ("", "lonely")]
    assert (await fleet.job(fine))["warnings"] == []
    waiting = await fleet.job(job_id, until="Queued")
    why = "no agent offers the service lonely: the job waits until one does"
    assert (waiting["warnings"], waiting["queue"]["code"]) == ([why], "no_agent")
    status, said = await fleet.posted(service="lonely")
    assert (status, said["warnings"]) == (201, [why])
    page = (await fleet.get(f"/jobs/{job_id}"))[2]
    assert b"no agent of this server offers the service lonely" in page.replace(b"No", b"no")
    troubles = (await fleet.api("GET", "/status"))["troubles"]
    assert "lonely" in [one["about"] for one in troubles]
    assert "service lonely: no agent offers it" in (await fleet.cli("doctor"))[1]


async def test_a_script_is_told_which_try_it_is_without_those_that_never_came_to_it(fleet):
    agent = FakeAgent("north", "abc", ends="Running")
    await fleet.use(agent, retries=1, retry_on=["exit_code"], retry_delays=["0s"])
    job_id = await fleet.upload()
    first, refused, stopped, last = (f"{job_id}.{number}" for number in (1, 2, 3, 4))
    await fleet.job(job_id, until="Running")
    agent.model.settled.add((agent.held(first).server, refused))
    agent.ends = "Prepared"
    agent.held(first).more = {"reason": "exit_code", "exit_code": 1}
    await agent.end(agent.held(first), "Failed")
    await agent.until(lambda: agent.starts[stopped] == 1)
    agent.ends = "Completed"
    gone = {"reason": "agent_error", "interrupted": True, "started_at": None}
    agent.held(stopped).more = gone
    await agent.end(agent.held(stopped), "Failed")
    done = await fleet.job(job_id, until="Completed")
    tries = {order["key"]: order["try_number"] for order in agent.orders}
    assert tries == {first: 1, refused: 2, stopped: 2, last: 2}
    assert done["attempt"] == 4
