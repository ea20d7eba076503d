"""What operators see of the agents and decide about them, over HTTP; and what a restart keeps."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.kit.fake_agent import FakeAgent, is_intake, page, serving
from tests.kit.server_http import ServerClient

SLOW: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}


async def ask(caller: ServerClient, method: str, path: str = "", **query: str) -> tuple[int, Any]:
    """A POST's path ends with what is to be done."""
    given: dict[str, Any] = {"params": query}
    if method == "POST":
        path, _, action = path.rpartition("/")
        given = {"json": {"action": action, **query}}
    url = f"{caller.url}/api/v1/agents{path}"
    async with caller.session.request(method, url, **given) as answer:
        return answer.status, await answer.json()


async def agent_of(caller: ServerClient, name: str) -> dict[str, Any]:
    status, found = await ask(caller, "GET", f"/{name}")
    assert status == 200, found
    return dict(found)


async def names(caller: ServerClient, **query: str) -> dict[str, str]:
    _, found = await ask(caller, "GET", **query)
    return {one["name"]: one["state"] for one in found["items"]}


async def up(caller: ServerClient, agent: FakeAgent) -> dict[str, Any]:
    """The document of the agent, once it may get jobs."""
    await agent.until(lambda: agent.streams == 1)
    found = await agent_of(caller, agent.name)
    assert found["up"]
    return found


async def unreachable(caller: ServerClient, agent: FakeAgent) -> None:
    """Whatever answers at its address is not the agent any more, and the server knows it."""
    agent.trick = page(502)
    agent.hang_up()
    health = agent.calls["GET /health"]
    await agent.until(lambda: agent.calls["GET /health"] >= health + 2)
    assert not (await agent_of(caller, agent.name))["reachable"]


async def test_the_agents_are_shown_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    agent, away = (
        FakeAgent("north", "abc", ends="Running"),
        FakeAgent("south", url="http://[::1]:9"),
    )
    async with serving(tmp_path, agent, away, **SLOW) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        status, found = await ask(caller, "GET")
        assert status == 200
        north, south = found["items"]
        for key in ("created_at", "last_heard_at"):
            assert north.pop(key).endswith("Z")
        assert north == {
            "name": "north",
            "id": "abc",
            "state": "active",
            "message": "",
            "up": True,
            "reachable": True,
            "trouble": "",
            "warnings": [],
            "clock_ahead_s": 0.0,
            "kind": "ferryman",
            "address": agent.url,
            "in_settings": True,
            "jobs": 1,
            "running": 1,
            "slots": 4,
            "max_runs": {},
            "load": None,
            "version": None,
            "labels": {},
            "resources": {"slots": 4, "services": None},
            "health": {
                "status": "ok",
                "database": "ok",
                "agent": "north",
                "agent_id": "abc",
                "slots": 4,
                "message": "no sandbox",
                "ready": True,
                "draining": False,
                "packs": False,
            },
            "unreachable_s": None,
        }
        assert (south["id"], south["state"], south["up"]) == ("name:south", "active", False)
        assert south["unreachable_s"] >= 0
        assert south["last_heard_at"] is None
        assert "cannot be reached" in south["trouble"]
        assert (await agent_of(caller, "abc"))["name"] == "north"
        for method, path in (("GET", "/nobody"), ("POST", "/nobody/drain")):
            status, problem = await ask(caller, method, path)
            assert (status, problem["code"]) == (404, "agent_not_found")


async def test_the_last_contact_is_what_was_heard_last_not_what_was_stored(tmp_path: Path) -> None:
    agent = FakeAgent()
    async with serving(tmp_path, agent) as caller:
        await up(caller, agent)
        client = caller.server.fleet.clients["fake"]
        before = client.heard_at
        await agent.beat()
        while (heard_at := client.heard_at or 0) == before:
            await agent_of(caller, "fake")
        (record,) = await caller.server.context.agents.all()
        assert (record.last_heard_at or 0) < heard_at
        shown = datetime.fromisoformat((await agent_of(caller, "fake"))["last_heard_at"])
        assert shown.timestamp() >= heard_at // 1_000_000


async def test_a_service_says_why_no_agent_takes_its_jobs(tmp_path: Path) -> None:
    agent = FakeAgent()
    async with serving(tmp_path, agent) as caller:
        await up(caller, agent)
        for action, why in (
            ("resume", ""),
            ("drain", "agent fake gets no new jobs: it is draining"),
            ("retire", "agent fake is retired"),
        ):
            await ask(caller, "POST", f"/fake/{action}")
            async with caller.session.get(f"{caller.url}/api/v1/services/my_service") as answer:
                found = await answer.json()
            assert (found["offered"], found["trouble"]) == (True, why)


async def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    agent = FakeAgent(url="http://user:secret@[::1]:9/below")
    async with serving(tmp_path, agent) as caller:
        assert (await agent_of(caller, "fake"))["address"] == "http://[::1]:9/below"


async def test_a_drained_agent_ends_its_jobs_and_gets_no_more_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    agent = FakeAgent(ends="Running")
    async with agent.listening():
        async with serving(tmp_path, agent) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
            status, found = await ask(caller, "POST", "/fake/drain", message="new disk")
            assert (status, found["state"], found["message"]) == (200, "draining", "new disk")
            assert (found["up"], found["reachable"]) == (False, True)
            assert found["trouble"] == "agent fake gets no new jobs: it is draining"
        async with serving(tmp_path, agent) as caller:  # a restart keeps it
            await agent.followed(2)
            waiting = await caller.upload()
            why = (await caller.job(waiting, until="Queued"))["queue"]["reason"]
            assert "it is draining" in why
            await agent.end(agent.held(f"{job_id}.1"))
            assert (await caller.job(job_id))["status"] == "Completed"
            agent.ends = "Completed"
            status, found = await ask(caller, "POST", "/fake/resume")
            assert (status, found["state"], found["message"]) == (200, "active", "")
            assert (await caller.job(waiting))["status"] == "Completed"


async def test_of_a_silent_agent_it_is_not_said_what_runs_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    async with serving(tmp_path, agent, **SLOW) as caller:
        await caller.job(await caller.upload(), until="Running")
        await agent.until(lambda: agent.streams == 1)
        fleet = caller.server.context.fleet
        client = fleet.named("north")
        assert client is not None
        assert client.health is not None
        client.health = client.health.model_copy(update={"running": 3, "load": 99.5})  # type: ignore[misc]
        monkeypatch.setattr(fleet, "silent_s", lambda _: None)
        found = await agent_of(caller, "north")
        shown = ("running", "load")
        assert [found[one] for one in shown] == [found["health"][one] for one in shown] == [1, 99.5]
        assert found["trouble"] == ""
        monkeypatch.setattr(fleet, "silent_s", lambda _: 4.2)
        found = await agent_of(caller, "north")
        assert [found[one] for one in shown] == [None, None]
        assert [found["health"][one] for one in shown] == [None, None]
        assert found["trouble"] == "agent north has not said anything for 4 s"
        assert (found["up"], found["reachable"]) == (True, True)


async def test_an_agent_is_retired_once_it_has_no_jobs_and_is_then_left_alone(
    tmp_path: Path,
) -> None:
    agent, other = FakeAgent("north", "abc", ends="Running"), FakeAgent("other")
    other.slots = 0
    async with agent.listening(), other.listening():
        async with serving(tmp_path, agent, other) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
            status, problem = await ask(caller, "POST", "/north/retire")
            assert (status, problem["code"]) == (409, "agent_has_jobs")
            assert problem["detail"].startswith("agent north has 1 job: drain it")
            assert (await agent_of(caller, "north"))["state"] == "active"
            await agent.end(agent.held(f"{job_id}.1"))
            await caller.job(job_id)
            status, found = await ask(caller, "POST", "/north/retire")
            assert (status, found["state"], found["up"]) == (200, "retired", False)
            assert found["message"] == "retired by an operator"
            assert await names(caller) == {"north": "retired", "other": "active"}
            for action in ("drain", "lost"):
                status, problem = await ask(caller, "POST", f"/north/{action}")
                assert (status, problem["code"]) == (409, "agent_retired")
        agent.calls.clear()
        other.slots = 1
        async with serving(tmp_path, agent, other) as caller:
            assert (await caller.job(await caller.upload()))["agent"] == "other"
            assert not agent.calls
            assert (await agent_of(caller, "north"))["trouble"] == "agent north is retired"
            status, found = await ask(caller, "POST", "/north/resume")
            assert (status, "retired" in found["trouble"]) == (200, False)
            assert (await up(caller, agent))["id"] == "abc"


async def test_a_running_server_leaves_an_agent_that_is_retired(tmp_path: Path) -> None:
    agent = FakeAgent()
    async with serving(tmp_path, agent) as caller:
        await up(caller, agent)
        await agent.until(lambda: agent.streams == 1)
        await ask(caller, "POST", "/fake/retire")
        await agent.until(lambda: agent.streams == 0)
        assert not (await agent_of(caller, "fake"))["reachable"]


async def test_what_a_lost_agent_has_is_tried_again_at_once_or_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 0.1)
    agent, other = FakeAgent("north", ends="Running"), FakeAgent("other", slots=0)
    async with serving(tmp_path, agent, other, **SLOW) as caller:
        jobs = [await caller.upload() for _ in range(3)]
        for job_id in jobs:
            await caller.job(job_id, until="Running")
        status, problem = await ask(caller, "POST", "/north/lost")
        assert (status, problem["code"]) == (409, "agent_reachable")
        await unreachable(caller, agent)
        async with caller.session.post(f"{caller.url}/api/v1/jobs/{jobs[2]}/cancel") as answer:
            assert answer.status == 202
        status, found = await ask(caller, "POST", "/north/lost", message="its disk burned")
        assert (status, found["state"], found["jobs"]) == (200, "lost", 0)
        assert found["message"] == "its disk burned; 3 attempts ended"
        assert (await agent_of(caller, "north"))["message"] == "its disk burned"
        gone = "agent north was declared lost, whether its processes are dead is not known"
        for job_id, state in zip(jobs, ("Queued", "Queued", "Cancelled"), strict=True):
            job = await caller.job(job_id, until=state)
            assert job["status"] == state
            assert gone in job["message"]
        other.slots = 4
        other.hang_up()
        for job_id in jobs[:2]:
            job = await caller.job(job_id)
            assert (job["status"], job["agent"], job["attempt"]) == ("Completed", "other", 2)
        agent.trick = None  # it is back: nothing of what it still runs counts
        assert (await up(caller, agent))["state"] == "active"
        await agent.until(lambda: len(agent.killed) == 3)


async def test_an_agent_that_was_taken_out_of_the_settings_is_declared_lost_and_retires(
    tmp_path: Path,
) -> None:
    agent, other = FakeAgent("north", ends="Running"), FakeAgent("other")
    async with agent.listening(), other.listening():
        async with serving(tmp_path, agent, **SLOW) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
        async with serving(tmp_path, other, **SLOW) as caller:
            found = await agent_of(caller, "north")
            assert (found["state"], found["in_settings"], found["jobs"]) == ("active", False, 1)
            assert found["trouble"] == "agent north is not in the server's settings"
            for action in ("resume", "retire"):
                assert (await ask(caller, "POST", f"/north/{action}"))[0] == 409
            assert (await ask(caller, "POST", "/north/lost"))[0] == 200
            assert (await caller.job(job_id))["agent"] == "other"
        async with serving(tmp_path, other, **SLOW) as caller:
            while "north" in await names(caller):
                await caller.server.context.agents.run_once()
            assert await names(caller, retired="1") == {"north": "retired", "other": "active"}
        async with serving(tmp_path, agent, **SLOW) as caller:  # and when it is there again
            assert (await up(caller, agent))["state"] == "active"


async def test_an_agent_under_a_new_name_goes_on_with_its_jobs(tmp_path: Path) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    async with agent.listening():
        async with serving(tmp_path, agent) as caller:
            jobs = [await caller.upload() for _ in range(2)]
            for job_id in jobs:
                await caller.job(job_id, until="Running")
        agent.name = "south"
        async with serving(tmp_path, agent) as caller:
            for job_id in jobs:
                await agent.followed(2)
                await agent.end(agent.held(f"{job_id}.1"))
                job = await caller.job(job_id)
                shown = job["status"], job["attempt"], job["agent"]
                assert shown == ("Completed", 1, "south")
            assert await names(caller, retired="1") == {"south": "active"}
    assert set(agent.starts.values()) == {1}


async def test_a_delivery_to_an_agent_with_a_new_name_is_found_out_there(tmp_path: Path) -> None:
    """The server stopped before it had the answer: the agent has the job, under its new name."""
    agent = FakeAgent("north", "abc")

    async def taken_without_a_word(request: web.Request) -> web.StreamResponse | None:
        if is_intake(request):
            listeners, agent.model.listeners = agent.model.listeners, []  # nor an event
            await agent.submit(request)
            agent.model.listeners = listeners
            await agent.until(lambda: agent.trick is None)
        return None

    async with agent.listening():
        agent.trick = taken_without_a_word
        async with serving(tmp_path, agent) as caller:
            job_id = await caller.upload()
            await agent.until(lambda: bool(agent.payloads))
        agent.trick, agent.name = None, "south"
        async with serving(tmp_path, agent) as caller:
            job = await caller.job(job_id)
            assert (job["status"], job["attempt"], job["agent"]) == ("Completed", 1, "south")
    assert agent.starts == {f"{job_id}.1": 1}


async def test_a_replaced_agent_is_retired_and_its_jobs_are_tried_again(tmp_path: Path) -> None:
    agent = FakeAgent("north", "abc", ends="Running")
    async with agent.listening():
        async with serving(tmp_path, agent) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
        agent.payloads.clear()
        agent.id, agent.ends = "xyz", "Completed"
        async with serving(tmp_path, agent) as caller:
            job = await caller.job(job_id)
            assert (job["status"], job["attempt"]) == ("Completed", 2)
            assert (await agent_of(caller, "north"))["id"] == "xyz"
            assert (await agent_of(caller, "abc"))["state"] == "retired"
            status, problem = await ask(caller, "POST", "/abc/resume")
            assert (status, problem["code"]) == (409, "agent_replaced")
            assert await names(caller) == {"north": "active"}


@pytest.mark.parametrize("message", ["x" * 201, "two\nlines"])
async def test_a_message_that_cannot_be_shown_is_refused(tmp_path: Path, message: str) -> None:
    async with serving(tmp_path, FakeAgent()) as caller:
        status, problem = await ask(caller, "POST", "/fake/drain", message=message)
        assert (status, problem["code"]) == (400, "invalid_message")
