"""SIGHUP and an agent in use."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from pydantic import SecretStr

from client_agent import app
from client_agent.app import Reload
from client_agent.settings.agent import AgentSection
from shared.clock import RealClock
from shared.settings.base import SettingsError
from tests.kit.fake_sandbox import FakeSandbox

OLD, NEW = "a-long-random-text", "another-long-random-text"


def settings(folder: Path, *texts: str) -> AgentSection:
    tokens = tuple(map(SecretStr, texts))
    return AgentSection(port=0, data_dir=folder, sandbox="none", tokens=tokens)


class World:
    """An agent, and its settings as they would be read."""

    def __init__(self, agent: app.Running, folder: Path) -> None:
        self.agent, self.folder, self.wrong = agent, folder, False
        self.settings = settings(folder, OLD)
        self.reload = Reload(self.settings, self._read, agent.use)

    def _read(self) -> AgentSection:
        if self.wrong:
            raise SettingsError("agent.slots: no")
        return self.settings

    def write(self, *texts: str, metrics: str = "") -> None:
        """Its settings; with a file of tokens for metrics if there is one to be in it."""
        self.settings = settings(self.folder, *texts)
        if metrics:
            file = self.folder / "metrics-tokens"
            file.write_text(f"{metrics}\n")
            values = self.settings.model_dump(exclude_unset=True)
            self.settings = AgentSection.model_validate(values | {"metrics_tokens": {"file": file}})

    async def answers(self, token: str, path: str = "/payloads", method: str = "GET") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.agent.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers) as answer,
        ):
            return answer.status


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = RealClock()
    given, sandbox = settings(tmp_path, OLD), FakeSandbox(clock, tmp_path)
    async with app.running(given, clock, sandbox) as agent:
        yield World(agent, tmp_path)


async def test_a_token_that_was_taken_out_is_refused_from_then_on(world: World) -> None:
    assert (await world.answers(OLD), await world.answers(NEW)) == (200, 401)
    world.write(OLD, NEW)
    assert await world.reload.run_once()
    assert (await world.answers(OLD), await world.answers(NEW)) == (200, 200)
    world.write(NEW)
    assert await world.reload.run_once()
    assert (await world.answers(OLD), await world.answers(NEW)) == (401, 200)


SCRAPER, ANOTHER = "a-token-for-metrics", "another-token-for-metrics"


async def test_a_token_for_metrics_reads_metrics_and_is_refused_everywhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every route of the agent."""
    table: list[web.RouteDef] = []
    add_routes = web.Application.add_routes

    def noting(self: web.Application, routes: list[web.RouteDef]) -> Any:
        table.extend(routes)
        return add_routes(self, routes)

    monkeypatch.setattr(web.Application, "add_routes", noting)
    clock = RealClock()
    async with app.running(settings(tmp_path, OLD), clock, FakeSandbox(clock, tmp_path)) as agent:
        world = World(agent, tmp_path)
        world.write(OLD, metrics=SCRAPER)
        assert await world.reload.run_once()
        allowed = {
            route.path
            for route in table
            if await world.answers(
                SCRAPER, re.sub(r"{\w+(:[^{}]*)?}", "1", route.path), route.method
            )
            != 403
        }
        assert allowed == {"/metrics", "/", "/health", "/livez", "/readyz"}
        assert len(table) > 15
        assert await world.answers("a-token-that-is-unknown", "/metrics") == 401
        assert await world.answers(OLD, "/metrics") == 200
        assert await world.answers(SCRAPER, "/metrics", "HEAD") == 200
        assert await world.answers(SCRAPER, "/metrics", "POST") == 403


async def test_a_changed_file_of_tokens_for_metrics_is_taken_up(world: World) -> None:
    for now, before in ((SCRAPER, ANOTHER), (ANOTHER, SCRAPER)):
        world.write(OLD, metrics=now)
        assert await world.reload.run_once()
        assert await world.answers(now, "/metrics") == 200
        assert await world.answers(before, "/metrics") == 401
        assert await world.answers(OLD) == 200
    world.write(OLD)
    assert await world.reload.run_once()
    assert await world.answers(ANOTHER, "/metrics") == 401


def test_a_token_for_metrics_may_not_be_one_that_may_do_everything(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    file.write_text(f"{SCRAPER}\n{OLD}\n")
    with pytest.raises(ValueError, match="one of them is in tokens, too"):
        AgentSection.model_validate({"tokens": [OLD], "metrics_tokens": {"file": file}})


async def test_a_wrong_file_changes_nothing(world: World) -> None:
    before, world.wrong = world.reload.settings, True
    world.write(NEW)
    assert not await world.reload.run_once()
    assert world.reload.settings is before
    assert (await world.answers(OLD), await world.answers(NEW)) == (200, 401)


async def reloaded(before: AgentSection, **new: Any) -> tuple[Reload, bool, list[Any]]:
    reload = Reload(before, lambda: AgentSection(**new), lambda _: None)
    with structlog.testing.capture_logs() as lines:
        done = await reload.run_once()
    return reload, done, [(one["event"], one.get("key")) for one in lines]


async def test_tokens_and_services_are_applied_and_the_rest_is_said() -> None:
    before = AgentSection(slots=4, tokens=(SecretStr(OLD),))
    reload, done, lines = await reloaded(before, slots=2, tokens=(SecretStr(NEW),), services=("a",))
    assert done
    assert lines == [
        ("setting.changed", "agent.tokens"),
        ("setting.not_applied", "agent.slots"),
        ("setting.changed", "agent.services"),
        ("settings.reloaded", None),
    ]
    used = reload.settings
    assert (used.slots, used.services, used.all_tokens()) == (4, ("a",), [NEW])


@pytest.mark.parametrize("new", [{"slots": 2}, {"host": "0.0.0.0", "tokens": None}])
async def test_the_last_token_is_not_taken_out(new: dict[str, Any]) -> None:
    before = AgentSection(slots=4, tokens=(SecretStr(OLD),))
    reload, done, lines = await reloaded(before, **new)
    assert (done, lines) == (False, [("settings.not_reloaded", None)])
    assert reload.settings is before
