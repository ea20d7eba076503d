"""The schedules as pages: what they show to whom, and what their forms do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import FormData

from tests.contract.test_jobs_pages import PRINCIPALS, World
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, driving

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


async def test_everybody_sees_their_own_schedules_only(world):
    own = await schedule(world)
    await schedule(world, "bob", name="of-bob")
    _, page = await world.see("/schedules")
    assert f'id="schedule-{own}"' in page
    assert "of-bob" not in page
    assert "of-bob" in (await world.see("/schedules", "admin"))[1]


async def test_hostile_text_stays_text(world):
    await schedule(world, name=HOSTILE, tags="<b>t</b>")
    _, page = await world.see("/schedules")
    assert "<img" not in page
    assert "&gt;&lt;img src=x&gt;" in page
