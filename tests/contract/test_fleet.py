"""The agents of a running server come, go, and change: over HTTP, with fake agents."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from ferryman.cli.agents import _details, _state
from ferryman.cli.doctor import Examination
from ferryman.client import Client
from ferryman.clock import wall_clock
from ferryman.models.operators import AgentDoc
from server.settings.agents import AgentTable
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.server_http import ServerClient

PARTS = {f"part{number}": bytes(1 << 20) for number in range(40)}
"""More than sockets buffer."""
SLOW: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}


class Server:
    """A server, and its agents by name."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller = caller

    async def use(self, **agents: FakeAgent | AgentTable) -> None:
        """As the settings have them from now on."""
        tables = {
            name: one if isinstance(one, AgentTable) else AgentTable(url=one.url)
            for name, one in agents.items()
        }
        await self.caller.server.fleet.apply(tables)

    async def agents(self) -> dict[str, dict[str, Any]]:
        async with self.caller.session.get(f"{self.caller.url}/api/v1/agents") as answer:
            return {one["name"]: one for one in (await answer.json())["items"]}

    async def cancel(self, job_id: int) -> tuple[int, str]:
        url = f"{self.caller.url}/api/v1/jobs/{job_id}/cancel"
        async with self.caller.session.post(url) as answer:
            return answer.status, (await answer.json())["message"]

    async def running(self, agent: FakeAgent) -> int:
        """A job that runs there."""
        job_id = await self.caller.upload()
        await agent.until(lambda: agent.starts[f"{job_id}.1"] == 1)
        await self.caller.job(job_id, until="Running")
        return job_id


@asynccontextmanager
async def fleet(folder: Path, *used: FakeAgent, others: int = 0, **more: Any) -> AsyncIterator[Any]:
    """A server with agents, and some agents that it does not know."""
    async with AsyncExitStack() as stack:
        strangers = [FakeAgent(f"new{number}", f"id{number}") for number in range(others)]
        for one in strangers:
            await stack.enter_async_context(one.listening())
        caller = await stack.enter_async_context(serving(folder, *used, **more, **SLOW))
        for one in used:
            await one.until(functools.partial(_is_followed, one))
        yield Server(caller), *strangers


def _is_followed(agent: FakeAgent) -> bool:
    return agent.streams == 1


async def test_an_agent_that_is_added_gets_the_jobs_that_wait(tmp_path: Path) -> None:
    async with fleet(tmp_path, FakeAgent("old", slots=0), others=1) as (server, new):
        job_id = await server.caller.upload()
        await server.use(old=AgentTable(url="http://[::1]:9"), new0=new)
        assert (await server.caller.job(job_id))["status"] == "Completed"
        assert new.starts[f"{job_id}.1"] == 1
        for _ in range(3):
            await server.use(old=AgentTable(url="http://[::1]:9"), new0=new)
        await new.until(lambda: new.streams == 1)
        assert new.calls["GET /events"] == 1, "the same again changes nothing"


async def test_an_agent_that_is_taken_out_is_left_alone_and_its_jobs_go_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    async with fleet(tmp_path, agent) as (server,):
        job_id = await server.running(agent)
        await server.use()
        found = await server.caller.job(job_id, until="Unknown")
        assert "agent north is not in the server's settings" in found["message"]
        await agent.until(lambda: agent.streams == 0)
        calls = agent.calls.total()
        second = await server.caller.upload()
        north = (await server.agents())["north"]
        assert (north["in_settings"], north["up"], north["jobs"]) == (False, False, 1)
        await server.use(north=agent)
        await agent.until(lambda: agent.streams == 1)
        assert calls < agent.calls.total()
        await agent.end(agent.held(f"{job_id}.1"))
        done = await server.caller.job(job_id)
        assert (done["status"], done["attempt"]) == ("Completed", 1)
        await agent.until(lambda: agent.starts[f"{second}.1"] == 1)
        assert agent.starts[f"{job_id}.1"] == 1


async def test_a_cancel_at_an_agent_that_was_taken_out_is_not_confirmed_until_it_is_back(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    async with fleet(tmp_path, agent) as (server,):
        job_id = await server.running(agent)
        await server.use()
        status, message = await server.cancel(job_id)
        assert status == 202
        assert "agent north is not in the server's settings" in message
        assert not agent.killed
        listed = (await server.agents())["north"]
        assert (listed["state"], listed["in_settings"]) == ("active", False)
        assert _state(AgentDoc.model_validate(listed)) == "not in settings"
        await server.use(north=agent)
        found = await server.caller.job(job_id, until="Cancelled")
        assert found["status"] == "Cancelled"
        assert agent.killed == [f"{job_id}.1"]


async def test_an_agent_without_jobs_is_retired_and_one_that_is_back_is_active(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc")
    async with fleet(tmp_path, agent) as (server,):
        await server.use()
        assert await server.agents() == {}
        async with server.caller.session.get(
            f"{server.caller.url}/api/v1/agents", params={"retired": "1"}
        ) as answer:
            (north,) = (await answer.json())["items"]
        assert north["state"] == "retired"
        await server.use(north=agent)
        await agent.until(lambda: agent.streams == 1)
        assert (await server.agents())["north"]["state"] == "active"


async def test_a_bundle_that_is_being_sent_to_an_agent_that_is_taken_out_goes_to_another_one(
    tmp_path: Path,
) -> None:
    slow, begun, over = FakeAgent("slow"), asyncio.Event(), asyncio.Event()

    async def stuck(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/submit":
            begun.set()
            await over.wait()  # reads nothing meanwhile
            return web.Response(status=503)
        return None

    slow.trick = stuck
    async with fleet(tmp_path, slow, others=1) as (server, new):
        job_id = await server.caller.upload({"run.sh": b"true\n", **PARTS})
        await begun.wait()
        await server.use(new0=new)
        found = await server.caller.job(job_id)
        assert (found["status"], found["agent"]) == ("Completed", "new0")
        assert not slow.starts
        over.set()


async def test_a_bundle_that_was_sent_to_its_end_waits_for_the_agents_answer(
    tmp_path: Path,
) -> None:
    """The agent may have it and run it: another attempt would be a second run."""
    north, taken = FakeAgent("north", "abc", ends="Running"), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/submit":
            return None
        await north.submit(request)
        taken.set()
        await asyncio.Event().wait()
        return None

    north.trick = silent
    async with fleet(tmp_path, north, others=1) as (server, new):
        job_id = await server.caller.upload()
        await taken.wait()
        await server.use(new0=new)
        await new.until(lambda: new.streams == 1)
        north.trick = None
        await server.use(new0=new, north=north)
        await server.caller.job(job_id, until="Running")
        await north.end(north.held(f"{job_id}.1"))
        found = await server.caller.job(job_id)
        assert (found["status"], found["agent"], found["attempt"]) == ("Completed", "north", 1)
        assert not new.starts


async def test_a_result_that_is_being_fetched_is_cut_off_and_fetched_again(tmp_path: Path) -> None:
    agent, begun = FakeAgent("north", "abc", ends="Running"), asyncio.Event()

    async def stuck(request: web.Request) -> web.StreamResponse | None:
        if request.path.startswith("/retrieve"):
            begun.set()
            await asyncio.Event().wait()
        return None

    agent.trick = stuck
    async with fleet(tmp_path, agent) as (server,):
        job_id = await server.running(agent)
        await agent.end(agent.held(f"{job_id}.1"))
        await begun.wait()
        await server.use()
        found = await server.caller.job(job_id, until="Unknown")
        assert "not in the server's settings" in found["message"]
        agent.trick = None
        await server.use(north=agent)
        assert (await server.caller.job(job_id, until="Completed"))["attempt"] == 1


async def test_an_agent_with_another_token_or_name_is_connected_again_and_keeps_its_jobs(
    tmp_path: Path,
) -> None:
    agent, seen = FakeAgent("north", "abc", ends="Running"), list[str]()

    async def note(request: web.Request) -> web.StreamResponse | None:
        seen.append(request.headers.get("Authorization", ""))
        return None

    agent.trick = note
    async with fleet(tmp_path, agent) as (server,):
        job_id = await server.running(agent)
        assert set(seen) == {""}
        secret = AgentTable.model_validate({"url": agent.url, "token": "a long secret"})
        await server.use(north=secret)
        await agent.until(lambda: "Bearer a long secret" in seen)
        await agent.followed(2)
        await server.use(south=secret)
        await agent.followed(3)
        found = await server.agents()
        assert (list(found), found["south"]["id"], found["south"]["jobs"]) == (["south"], "abc", 1)
        assert (await server.caller.job(job_id, until="Running"))["agent"] == "south"
        await agent.end(agent.held(f"{job_id}.1"))
        done = await server.caller.job(job_id)
        assert (done["status"], done["attempt"], done["agent"]) == ("Completed", 1, "south")


async def test_a_small_result_is_fetched_with_the_token_of_now(tmp_path: Path) -> None:
    agent, fetched = FakeAgent("north", "abc"), list[str]()

    async def note(request: web.Request) -> web.StreamResponse | None:
        if request.path.startswith("/retrieve"):
            fetched.append(request.headers.get("Authorization", ""))
        return None

    agent.trick = note
    async with fleet(tmp_path, agent) as (server,):
        assert (await server.caller.job(await server.caller.upload()))["status"] == "Completed"
        secret = {"url": agent.url, "token": "a long secret"}
        await server.use(north=AgentTable.model_validate(secret))
        assert (await server.caller.job(await server.caller.upload()))["status"] == "Completed"
        assert fetched == ["", "Bearer a long secret"]


async def test_two_agents_that_exchange_their_names_keep_their_jobs_and_get_higher_tokens(
    tmp_path: Path,
) -> None:
    one, two = (FakeAgent(name, f"id-{name}", ends="Running", slots=1) for name in ("one", "two"))
    async with fleet(tmp_path, one, two) as (server,):
        jobs = [await server.caller.upload() for _ in range(2)]
        for job_id in jobs:
            await server.caller.job(job_id, until="Running")
        mine, others = (agent.payloads[1].key for agent in (one, two))
        before = {agent.orders[0]["lease"] for agent in (one, two)}
        await server.use(one=two, two=one)
        await one.followed(2)
        await two.followed(2)
        names = {
            key: (await server.caller.job(int(key.split(".")[0]), until="Running"))["agent"]
            for key in (mine, others)
        }
        assert names == {mine: "two", others: "one"}
        tokens = {agent.lease for agent in server.caller.server.clients.values()}
        assert min(tokens) > max(before), "an agent refuses a lower one than it has seen"
        for agent in (one, two):
            await agent.end(agent.payloads[1])
        for job_id in jobs:
            assert (await server.caller.job(job_id, until="Completed"))["attempt"] == 1
        assert (one.starts.total(), two.starts.total()) == (1, 1)


async def test_other_services_need_no_new_connection(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc")
    async with fleet(tmp_path, agent) as (server,):
        await server.use(north=AgentTable(url=agent.url, services=("other",)))
        job_id = await server.caller.upload()
        await server.use(north=AgentTable(url=agent.url, services=("my_service",)))
        assert (await server.caller.job(job_id))["status"] == "Completed"
        assert agent.calls["GET /events"] == 1


async def test_an_agent_gets_no_more_jobs_than_slots_unless_it_is_to_prefetch(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc", ends="Running", slots=1)
    async with fleet(tmp_path, agent) as (server,):
        first = await server.running(agent)
        second, third = await server.caller.upload(), await server.caller.upload()
        queue = (await server.caller.job(second, until="Queued"))["queue"]
        assert (queue["code"], agent.starts.total()) == ("agents_busy", 1)
        await server.use(north=AgentTable(url=agent.url, prefetch=1))
        await agent.until(lambda: agent.starts.total() == 2)
        waiting = await server.caller.job(third, until="Queued")
        assert waiting["queue"]["code"] == "agents_busy"
        await agent.end(agent.held(f"{first}.1"))
        await agent.until(lambda: agent.starts.total() == 3)


async def test_an_agent_has_no_more_jobs_of_a_service_at_once_than_the_settings_say(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc", ends="Running", slots=3)
    async with fleet(tmp_path, agent, extra="[services.other]") as (server,):
        await server.use(north=AgentTable(url=agent.url, max_runs={"my_service": 1}))
        north = (await server.agents())["north"]
        assert (north["slots"], north["max_runs"]) == (3, {"my_service": 1})
        said = "at most 1 of my_service at once"
        assert f"  {said}" in list(_details(AgentDoc.model_validate(north)))
        for page in ("/agents", "/agents/north"):
            assert f"any, {said}".encode() in (await server.caller.get(page))[2]
        first = await server.running(agent)
        second = await server.caller.upload()
        await server.caller.job(await server.caller.upload(service="other"), until="Running")
        waiting = await server.caller.job(second, until="Queued")
        queue = waiting["queue"]
        assert (queue["code"], queue["used"], queue["limit"]) == ("agents_busy", 1, 1)
        assert queue["reason"] == "agent north has as many jobs of my_service as it may have: 1"
        await agent.end(agent.held(f"{first}.1"))
        await server.caller.job(second, until="Running")
        third = await server.caller.upload()
        await server.use(north=AgentTable(url=agent.url))
        await server.caller.job(third, until="Running")
        assert (await server.agents())["north"]["max_runs"] == {}


async def test_an_agent_that_stops_ends_the_jobs_of_services_that_want_it_so(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    says = {"my_service": "", "ends": 'on_shutdown = "stop"', "once": "infra_retries = 0"}
    extra = "\n".join(f"[services.{name}]\n{said}" for name, said in says.items() if said)
    async with fleet(tmp_path, agent, extra=extra) as (server,):
        jobs = {name: await server.caller.upload(service=name) for name in says}
        for job_id in jobs.values():
            await server.caller.job(job_id, until="Running")
            held = agent.held(f"{job_id}.1")
            held.more = {"reason": "shutdown", "interrupted": True, "message": "it was stopped"}
            await agent.end(held, "Failed")
        for name in ("ends", "once"):
            ended = await server.caller.job(jobs[name], until="Failed")
            why = f"it was stopped; it is not tried again, as service {name} says (on_shutdown)"
            assert (ended["reason"], ended["message"], ended["attempt"]) == ("shutdown", why, 1)
        await agent.until(lambda: agent.starts[f"{jobs['my_service']}.2"] == 1)
        assert agent.starts.total() == 4


async def test_a_service_that_no_agent_offers_is_named_to_its_user_and_to_operators(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc")
    async with fleet(tmp_path, agent, extra="[services.lonely]") as (server,):
        await server.use(north=AgentTable(url=agent.url, services=("my_service",)))
        fine, job_id = [await server.caller.upload(service=one) for one in ("my_service", "lonely")]
        assert (await server.caller.job(fine))["warnings"] == []
        waiting = await server.caller.job(job_id, until="Queued")
        why = "no agent offers the service lonely: the job waits until one does"
        assert (waiting["warnings"], waiting["queue"]["code"]) == ([why], "no_agent")
        form = aiohttp.FormData({"user_id": "7", "service": "lonely"})
        form.add_field("file", b"true", filename="run.sh")
        async with server.caller.session.post(f"{server.caller.url}/upload", data=form) as answer:
            assert (answer.status, (await answer.json())["warnings"]) == (201, [why])
        page = (await server.caller.get(f"/jobs/{job_id}"))[2]
        assert b"no agent of this server offers the service lonely" in page.replace(b"No", b"no")
        status = json.loads((await server.caller.get("/api/v1/status"))[2])
        assert [one["about"] for one in status["troubles"]] == ["lonely"]
        async with Client(server.caller.url) as client:
            doctor = Examination(client, str, has_token=False, version="1", now=wall_clock)
            found = [(one.about, one.text) async for one in doctor.findings()]
        assert ("service lonely", "no agent offers it") in found


async def test_a_script_is_told_which_try_it_is_without_those_that_never_came_to_it(
    tmp_path: Path,
) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    again = "retries = 1\nretry_on = ['exit_code']\nretry_delays = ['0s']"
    async with fleet(tmp_path, agent, extra=again) as (server,):
        job_id = await server.caller.upload()
        first, refused, stopped, last = (f"{job_id}.{number}" for number in (1, 2, 3, 4))
        agent.refused.add(refused)
        await server.caller.job(job_id, until="Running")
        agent.ends = "Prepared"
        agent.held(first).more = {"reason": "exit_code", "exit_code": 1}
        await agent.end(agent.held(first), "Failed")
        await agent.until(lambda: agent.starts[stopped] == 1)
        agent.ends = "Completed"
        gone = {"reason": "agent_error", "interrupted": True, "started_at": None}
        agent.held(stopped).more = gone
        await agent.end(agent.held(stopped), "Failed")
        done = await server.caller.job(job_id, until="Completed")
        tries = {order["key"]: order["try_number"] for order in agent.orders}
        assert tries == {first: 1, refused: 2, stopped: 2, last: 2}
        assert done["attempt"] == 4
