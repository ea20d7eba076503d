"""The pages about agents: what they show, what they do, and for whom."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from shared.principals import Principal, Role, Scope
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Person
from tests.kit.server_http import ServerClient, driving

SLOW: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}
PRINCIPALS = {
    "ann": Principal("ann-laptop", Role.USER, "ann"),
    "portal": Principal("portal", Role.PORTAL),
    "reader": Principal("reader", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "admin": Principal("admin", Role.OPERATOR),
}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
async def person(tmp_path: Path) -> AsyncIterator[tuple[ServerClient, Person, FakeAgent]]:
    agent = FakeAgent("north", "abc", ends="Running")
    async with serving(tmp_path, agent, **SLOW) as caller:
        await agent.until(lambda: agent.streams == 1)
        yield caller, Person(caller), agent


async def test_an_agent_is_shown_with_its_jobs_and_slots(person) -> None:
    caller, visitor, _ = person
    job_id = await caller.upload()
    await caller.job(job_id, until="Running")
    for path in ("/agents", "/agents/north", "/agents/abc"):
        page = await visitor.read(path)
        assert re.search(r'data-state="good">.*Up</span>', page), path
        assert "1 of 4" in page
        assert f'href="/jobs/{job_id}"' in page


async def test_an_agent_is_drained_resumed_and_retired_by_forms(person) -> None:
    caller, visitor, _ = person
    status, page = await visitor.send("/agents/north/drain", message="new disk")
    assert status == 200
    assert "Agent north: it gets no new jobs now" in page
    assert "new disk" in page
    assert "Draining" in page
    assert (await agent(caller))["message"] == "new disk"
    status, page = await visitor.send("/agents/north/resume")
    assert (await agent(caller))["state"] == "active"
    status, page = await visitor.send("/agents/north/retire")
    assert (await agent(caller))["message"] == "retired by an operator"
    assert "Retired" in page


async def agent(caller: ServerClient, name: str = "north") -> dict[str, Any]:
    async with caller.session.get(f"{caller.url}/api/v1/agents/{name}") as answer:
        return dict(await answer.json())


async def test_what_is_refused_is_said_on_the_page_and_changes_nothing(person) -> None:
    caller, visitor, _ = person
    await caller.job(await caller.upload(), until="Running")
    for action, says in (("retire", "has 1 job: drain it"), ("lost", "can be reached")):
        status, page = await visitor.send(f"/agents/north/{action}")
        assert (status, says in page) == (409, True)
    assert (await agent(caller))["state"] == "active"
    status, page = await visitor.send("/agents/north/drain", message="x" * 201)
    assert (status, "at most 200 characters" in page) == (400, True)
    assert (await visitor.send("/agents/nobody/drain"))[0] == 404
    assert (await visitor.get("/agents/nobody"))[0] == 404


@pytest.mark.parametrize("action", ["drain", "resume", "retire", "lost"])
async def test_a_form_of_another_page_changes_nothing(person, action: str) -> None:
    caller, visitor, _ = person
    before = await agent(caller)
    status, page = await visitor.send(f"/agents/north/{action}", csrf="")
    assert (status, "was not sent by a page of this server" in page) == (403, True)
    assert (await agent(caller))["state"] == before["state"]


async def test_the_pages_are_for_operators_who_may_operate(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        name = next(iter(caller.server.clients))
        for token in ("ann", "portal", "reader"):
            visitor = Person(caller, token)
            for path in ("/agents", f"/agents/{name}"):
                assert (await visitor.get(path))[0] == 403, (token, path)
            for action in ("drain", "resume", "retire", "lost"):
                assert (await visitor.send(f"/agents/{name}/{action}"))[0] == 403
        assert (await Person(caller, "admin").get("/agents"))[0] == 200


async def test_an_agent_that_is_away_is_down_with_the_reason_and_can_be_given_up(person) -> None:
    caller, visitor, fake = person
    await caller.job(await caller.upload(), until="Running")

    async def gone(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text=HOSTILE)

    fake.trick = gone
    fake.hang_up()
    health = fake.calls["GET /health"]
    await fake.until(lambda: fake.calls["GET /health"] >= health + 2)
    page = await visitor.read("/agents")
    assert re.search(r'data-state="bad">.*Down</span>', page)
    assert "away for" in page
    assert HOSTILE not in page
    _, page = await visitor.send("/agents/north/lost", message=HOSTILE)
    assert "Lost" in page
    assert HOSTILE not in page
    assert "&lt;img src=x" in page
    assert (await agent(caller))["jobs"] == 0


async def test_whatever_an_agent_says_is_only_text(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "status": "error",
        "agent": HOSTILE,
        "agent_id": "abc",
        "version": HOSTILE,
        "slots": 2**62,
        "load": 1e300,
        "labels": {HOSTILE: HOSTILE},
        "services": [HOSTILE],
        "message": HOSTILE,
        "sandbox": {
            "backend": HOSTILE,
            "enforcement": {HOSTILE: HOSTILE, "memory": ["soft"]},
            "advice": [HOSTILE, 7],
            "warning": HOSTILE,
            "broken": HOSTILE,
            "check": {"at": HOSTILE, "passed": "yes", "rows": [7, {"limit": "log"}, HOSTILE]},
        },
    }
    fake = FakeAgent("north")

    async def answer(request: web.Request) -> web.StreamResponse | None:
        return web.json_response(said, status=503) if request.path == "/health" else None

    fake.trick = answer
    async with serving(tmp_path, fake, **SLOW) as caller:
        await fake.until(lambda: fake.streams == 1)
        visitor = Person(caller)
        for path in ("/agents", "/agents/north"):
            page = await visitor.read(path)
            assert HOSTILE not in page
            assert "&lt;img src=x" in page


async def test_an_agent_may_be_called_anything_in_the_settings(tmp_path: Path) -> None:
    extra = f"[agents.\"a/b {HOSTILE}?#\"]\nurl = 'http://[::1]:9'"
    async with serving(tmp_path, extra=extra) as caller:
        visitor = Person(caller)
        page = await visitor.read("/agents")
        assert HOSTILE not in page
        (path,) = set(re.findall(r'<h2 class="wrap"><a href="([^"]*)"', page))
        assert "Agent a/b &lt;img" in await visitor.read(path)
        status, page = await visitor.send(f"{path}/drain")
        assert (status, "Draining" in page) == (200, True)


async def test_a_server_without_agents_says_how_to_add_one(tmp_path: Path) -> None:
    async with serving(tmp_path, extra="[agents]") as caller:
        page = await Person(caller).read("/agents")
        assert "This server has no agents" in page
        assert "[agents.node-1]" in page
