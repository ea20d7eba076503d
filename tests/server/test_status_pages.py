"""The pages about the server and its users: what they show, and for whom."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData

from server.api.server_status import ADVICE
from server.domain.troubles import SERVER_TROUBLES, Trouble, TroubleKind
from server.storage.scratch import FolderScratch
from shared.principals import Principal, Role, Scope
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Person
from tests.kit.past_week import write_past_week
from tests.kit.server_http import ServerClient, driving

PRINCIPALS = {
    "seven": Principal("seven", Role.USER, "7"),
    "bob": Principal("bob", Role.USER, "bob"),
    "portal": Principal("portal", Role.PORTAL),
    "reader": Principal("reader", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "admin": Principal("admin", Role.OPERATOR),
}
HOSTILE = "<img src=x onerror=alert(1)>"
SETTINGS = """
[server]
stored_per_user = 1000000
[users.lab]
members = ["7", "8"]
queued_per_user = 9
stored_per_user = 2000000
"""


async def status(caller: ServerClient) -> dict[str, Any]:
    async with caller.session.get(f"{caller.url}/api/v1/status") as answer:
        return dict(await answer.json())


def test_every_kind_of_trouble_has_an_advice() -> None:
    assert ADVICE.keys() == set(TroubleKind)
    assert set(TroubleKind) > SERVER_TROUBLES


@pytest.fixture
async def person(tmp_path: Path) -> AsyncIterator[tuple[ServerClient, Person, FakeAgent]]:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        await agent.until(lambda: agent.streams == 1)
        yield caller, Person(caller), agent


# -- status


async def test_all_is_well_and_the_numbers_are_those_of_the_api(person) -> None:
    caller, visitor, _ = person
    await caller.job(await caller.upload(), until="Running")
    found = await status(caller)
    assert (found["status"], found["troubles"]) == ("ok", [])
    assert (found["agents_up"], found["agents"], found["in_work"], found["slots"]) == (1, 1, 1, 4)
    assert 0 < found["disk"]["free"] < found["disk"]["total"]
    assert found["database_bytes"] > 0
    assert {"sender", "cleaner"} <= {one["name"] for one in found["loops"]}
    page = await visitor.read("/status")
    assert 'data-kind="good"' in page
    assert "Everything is all right" in page
    assert "1 of 4" in page


async def test_what_came_in_the_last_day_is_said(tmp_path: Path) -> None:
    clock = SimClock()
    (tmp_path / "data").mkdir()
    await write_past_week(tmp_path / "data" / "ferryman.sqlite", clock.now())
    async with driving(tmp_path, FakeOrchestrator(), machine=clock) as caller:
        found = await status(caller)
        assert 0 <= found["database_free_bytes"] < found["database_bytes"]
        assert found["day_jobs"] == pytest.approx(120 * 24 * 0.55, rel=0.2)
        assert found["day_bytes"] > 10_000 * found["day_jobs"]
        assert f"{found['day_jobs']:,} jobs" in await Person(caller).read("/status")


async def test_what_should_be_looked_at_is_said_with_what_to_do(person) -> None:
    caller, visitor, _ = person
    await visitor.send("/services/my_service/pause", message=HOSTILE)
    await visitor.send("/agents/fake/drain", message="new disk")
    found = await status(caller)
    assert found["status"] == "attention"
    assert [one["kind"] for one in found["troubles"]] == ["agent_draining", "service_paused"]
    page = await visitor.read("/status")
    assert "It works, but something should be looked at" in page
    assert HOSTILE not in page
    for one in found["troubles"]:
        assert one["advice"] in page
    assert 'href="/agents/fake"' in page
    assert 'href="/services/my_service"' in page


async def test_a_full_disk_is_a_serious_trouble(person, monkeypatch: pytest.MonkeyPatch) -> None:
    caller, visitor, _ = person
    monkeypatch.setattr(FolderScratch, "free_bytes", lambda _: 5)
    page = await visitor.read("/status")
    assert 'class="verdict" data-kind="bad"' in page
    assert "The disk is full." in page
    assert ADVICE[TroubleKind.DISK_FULL] in page
    assert (await status(caller))["troubles"][0]["is_serious"]
    async with caller.session.get(f"{caller.url}/health") as answer:
        assert (answer.status, (await answer.json())["message"]) == (503, "the disk is full")


async def test_agents_that_are_away_and_lost_are_troubles(tmp_path: Path) -> None:
    extra = "[agents.away]\nurl = 'http://[::1]:9'\n[agents.gone]\nurl = 'http://[::1]:10'"
    async with serving(tmp_path, extra=extra) as caller:
        visitor = Person(caller)
        await visitor.send("/agents/gone/lost", message="burned")
        kinds = {one["about"]: one["kind"] for one in (await status(caller))["troubles"]}
        assert kinds == {"away": "agent_away", "gone": "agent_lost"}
        assert "burned" in await visitor.read("/status")
    other = tmp_path / "other"
    other.mkdir()
    async with serving(other, extra="[agents]") as caller:
        page = await Person(caller).read("/status")
        assert "There is no agent, so no job can run." in page


async def test_a_trouble_of_any_kind_can_be_shown(person, monkeypatch: pytest.MonkeyPatch) -> None:
    caller, visitor, _ = person
    every = [Trouble(kind, f"{HOSTILE} {kind}", "fake") for kind in TroubleKind]

    async def troubles() -> list[Trouble]:
        return every

    object.__setattr__(caller.server.context, "troubles", troubles)
    page = await visitor.read("/status")
    assert HOSTILE not in page
    assert page.count('class="card trouble"') == len(every)


# -- users


async def test_users_are_listed_with_what_they_have(tmp_path: Path) -> None:
    orchestrator = FakeOrchestrator(then="Running")
    async with driving(tmp_path, orchestrator, extra=SETTINGS) as caller:
        await caller.job(await caller.upload(), until="Running")
        visitor = Person(caller)
        page = await visitor.read("/users")
        assert "With work now" in page
        stored = await caller.server.context.jobs.stored("7")
        assert f"{stored} B of 1.9 MiB" in page
        assert 'href="/users/7"' in page
        assert 'href="/users/7"' not in await visitor.read("/users?from=8")
        assert "No user has a name from there on" in await visitor.read("/users?from=8")
        assert (await visitor.get("/users?from=" + "x" * 65))[0] == 400
        assert HOSTILE not in await visitor.read(f"/users?from={HOSTILE}")


async def test_a_page_of_users_leads_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.web.operators.users._ROWS", 1)
    async with driving(tmp_path, FakeOrchestrator(then="Running"), principals=PRINCIPALS) as caller:
        for token in ("seven", "bob"):
            caller.session.headers["Authorization"] = f"Bearer {token}"
            async with caller.session.post(f"{caller.url}/upload", data=form()) as answer:
                assert answer.status == 201, await answer.text()
        del caller.session.headers["Authorization"]
        page = await Person(caller, "admin").read("/users")
        assert 'href="/users?from=bob"' in page
        assert "More" not in await Person(caller, "admin").read("/users?from=bob")


def form() -> FormData:
    found = FormData({"service": "my_service"})
    found.add_field("file", b"echo hello\n", filename="run.sh")
    return found


async def test_a_user_has_a_page_with_every_quota(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), extra=SETTINGS) as caller:
        page = await Person(caller).read("/users/7")
        assert "0 of 9" in page
        assert "0 B of 1.9 MiB" in page
        assert "lab" in re.sub(r"<[^>]*>", "", page)
        async with caller.session.get(f"{caller.url}/api/v1/usage?user=7") as answer:
            assert (await answer.json())["group"] == "lab"
        assert (await Person(caller).get("/users/a%20b"))[0] == 404
        for user, known in (("nobody", False), ("8", True), ("7", True), ("se", False)):
            page = await Person(caller).read(f"/users/{user}")
            assert ("has no jobs, and nothing in the settings" in page) is not known, user


async def test_a_user_does_not_see_its_group(tmp_path: Path) -> None:
    async with driving(
        tmp_path, FakeOrchestrator(), principals=PRINCIPALS, extra=SETTINGS
    ) as caller:
        headers = {"Authorization": "Bearer seven"}
        async with caller.session.get(f"{caller.url}/api/v1/usage", headers=headers) as answer:
            found = await answer.json()
        assert found["group"] is None


async def test_a_server_that_nobody_has_used_says_so(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        assert "Nobody has uploaded anything yet" in await Person(caller).read("/users")


async def test_a_job_shows_how_its_webhook_went(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), webhook_allow=["127.0.0.1"]) as caller:
        job = await caller.upload(callback_url="http://127.0.0.1:9/?key=1")
        await caller.job(job)
        page = await Person(caller).read(f"/jobs/{job}")
        assert "http://127.0.0.1:9/?key=1" in page
        assert "job.completed: pending" in page


async def test_stored_files_to_look_at_are_named_and_keep_nobody_from_uploading(
    tmp_path: Path,
) -> None:
    """More files without a row than a sweep may remove, and files that a start moved aside."""
    aside = tmp_path / "data" / "unknown"
    aside.mkdir(parents=True)
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        health: Any = caller.server.context.files_to_look_at
        health.__self__._unknown = lambda: 3
        await caller.server.context.troubles()  # looks at the disk
        found = await status(caller)
        kinds = {one["kind"]: one["message"] for one in found["troubles"]}
        assert kinds["files_unknown"] == "3 stored files without a row in the database"
        assert kinds["files_moved_aside"] == f"files were moved aside to {aside}"
        assert found["status"] == "attention"
        assert (await caller.get("/readyz"))[0] == 200
