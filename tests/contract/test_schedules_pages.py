"""The schedules as pages: what they show to whom, and what their forms do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import FormData

from tests.contract.test_jobs_pages import PRINCIPALS, World
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import RUN, driving

HOSTILE = '"><img src=x>'


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        yield World(caller)


async def schedule(world: World, user: str = "ann", **fields: str) -> int:
    given = {"user_id": user, "service": "my_service", "cron": "0 3 1 1 *", "name": "yearly"}
    form = FormData()
    for name, value in {**given, **fields}.items():
        form.add_field(name, value)
    form.add_field("file", RUN, filename="run.sh")
    async with world.caller.session.post(
        f"{world.url}/api/v1/schedules", data=form, headers=world.shown("admin")
    ) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


async def test_who_has_no_schedules_is_shown_how_to_make_one(world):
    status, page = await world.see("/schedules")
    assert status == 200
    assert "No schedules yet." in page
    assert "ferryman schedule add run.sh --cron" in page
    assert "This user has no schedules." in (await world.see("/schedules?user=x", "admin"))[1]


async def test_everybody_sees_their_own_schedules_only(world):
    own, other = await schedule(world), await schedule(world, "bob", name="of-bob")
    _, page = await world.see("/schedules")
    assert f'id="schedule-{own}"' in page
    assert "of-bob" not in page
    assert "of-bob" in (await world.see("/schedules", "admin"))[1]
    assert "yearly" not in (await world.see("/schedules?user=bob", "admin"))[1]
    assert "of-bob" not in (await world.see("/schedules?user=bob"))[1]
    for path in (str(other), "99", "x", "9" * 30):
        assert (await world.see(f"/schedules/{path}"))[0] == 404
    for what in ("pause", "resume", "run", "delete"):
        assert (await world.send(f"/schedules/{other}/{what}", []))[0] == 404
    _, page = await world.see(f"/schedules/{other}", "bob")
    assert "It has made no jobs yet." in page


async def test_a_schedule_is_paused_resumed_run_and_deleted(world):
    number = await schedule(world)
    here = f"/schedules/{number}"
    for what in ("pause", "resume"):
        status, _, there = await world.send(f"{here}/{what}", [])
        assert (status, there) == (303, f"{here}?done={what}d")
        _, page = await world.see(there)
        assert ("Paused" in page) is (what == "pause")
        assert 'class="notice"' in page
    status, _, there = await world.send(f"{here}/run", [])
    assert (status, there) == (303, "/jobs/1")
    for path in ("/schedules", here):
        assert 'href="/jobs/1"' in (await world.see(path))[1]
    assert await world.rows(f"/jobs?schedule={number}") == [1]
    status, _, there = await world.send(f"{here}/delete", [])
    assert (status, there) == (303, "/schedules?done=deleted")
    assert (await world.see(here))[0] == 404
    assert await world.rows("/jobs") == [1]


async def test_why_a_schedule_cannot_run_now_is_said_on_its_page(world):
    number = await schedule(world)
    async with world.caller.session.post(
        f"{world.url}/api/v1/services/my_service/pause", headers=world.shown("admin")
    ):
        pass
    assert (await world.send(f"/schedules/{number}/run", []))[0] == 303  # it waits
    status, page, _ = await world.send(f"/schedules/{number}/run", [])
    assert status == 409
    assert 'data-kind="bad"' in page
    assert "yearly" in page


async def test_hostile_text_stays_text(world):
    number = await schedule(world, name=HOSTILE, tags="<b>t</b>")
    for path in ("/schedules", f"/schedules/{number}"):
        _, page = await world.see(path)
        assert "<img" not in page
        assert "<b>t</b>" not in page
        assert "&gt;&lt;img src=x&gt;" in page


async def test_whoever_may_only_read_has_no_buttons(world):
    number = await schedule(world)
    for path in ("/schedules", f"/schedules/{number}"):
        _, page = await world.see(path, "a-reader")
        assert "yearly" in page
        assert 'action="/schedules' not in page
    for what in ("pause", "resume", "run", "delete"):
        assert (await world.send(f"/schedules/{number}/{what}", [], "a-reader"))[0] == 403


async def test_a_form_that_is_not_of_a_page_changes_nothing(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:  # without tokens
        data = FormData()
        fields = {"user_id": "7", "service": "my_service", "cron": "0 3 1 1 *", "name": "yearly"}
        for name, value in fields.items():
            data.add_field(name, value)
        data.add_field("file", RUN, filename="run.sh")
        async with caller.session.post(f"{caller.url}/api/v1/schedules", data=data) as answer:
            assert answer.status == 201
        for what in ("pause", "resume", "run", "delete"):
            async with caller.session.post(f"{caller.url}/schedules/1/{what}") as answer:
                assert answer.status == 403
        async with caller.session.get(f"{caller.url}/api/v1/schedules/1") as answer:
            found = await answer.json()
    assert (found["paused"], found["last_job_id"]) == (False, None)
