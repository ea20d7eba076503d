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

from client_agent import app
from client_agent.app import Reload
from client_agent.settings.agent import AgentSection
from shared.clock import RealClock
from shared.settings.base import SettingsError
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeSandbox

OLD, NEW = "a-long-random-text", "another-long-random-text"
OPEN = {"/", "/health", "/livez", "/readyz"}
SCRAPER, ANOTHER = "a-token-for-metrics", "another-token-for-metrics"


class World:
    """An agent, and its settings as they would be read."""

    def __init__(self, agent: app.Running, folder: Path) -> None:
        self.agent, self.folder, self.wrong = agent, folder, False
        self.settings = AgentSection(port=0, data_dir=folder)
        self.write(OLD)
        self.reload = Reload(self.settings, self._read, agent.use)

    def _read(self) -> AgentSection:
        if self.wrong:
            raise SettingsError("agent.slots: no")
        return self.settings

    def write(self, *tokens: str, metrics: str = "") -> None:
        """Its settings; with a file of tokens for metrics if there is one to be in it."""
        given: dict[str, Any] = {"port": 0, "data_dir": self.folder, "tokens": list(tokens)}
        if metrics:
            file = self.folder / "metrics-tokens"
            file.write_text(f"{metrics}\n")
            given["metrics_tokens"] = {"file": file}
        self.settings = AgentSection.model_validate(given)

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
    given = AgentSection.model_validate({"port": 0, "data_dir": tmp_path, "tokens": [OLD]})
    async with app.running(given, clock, FakeSandbox(clock, tmp_path)) as agent:
        yield World(agent, tmp_path)


async def test_a_token_that_was_taken_out_is_refused_from_then_on(world: World) -> None:
    for tokens, old, new in (((OLD,), 200, 401), ((OLD, NEW), 200, 200), ((NEW,), 401, 200)):
        world.write(*tokens)
        assert await world.reload.run_once()
        assert (await world.answers(OLD), await world.answers(NEW)) == (old, new)
    before, world.wrong = world.reload.settings, True
    world.write(OLD)
    assert not await world.reload.run_once()
    assert world.reload.settings is before
    assert (await world.answers(OLD), await world.answers(NEW)) == (401, 200)


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[web.RouteDef]:
    """Every route of the agent that starts next."""
    table: list[web.RouteDef] = []
    add_routes = web.Application.add_routes

    def noting(self: web.Application, routes: list[web.RouteDef]) -> Any:
        table.extend(routes)
        return add_routes(self, routes)

    monkeypatch.setattr(web.Application, "add_routes", noting)
    return table


async def test_a_token_for_metrics_reads_metrics_and_is_refused_everywhere_else(
    routes: list[web.RouteDef], world: World
) -> None:
    world.write(OLD, metrics=SCRAPER)
    assert await world.reload.run_once()
    allowed = set()
    for route in routes:
        path = re.sub(r"{\w+(:[^{}]*)?}", "1", route.path)
        if await world.answers(SCRAPER, path, route.method) != 403:
            allowed.add(route.path)
        if route.path not in OPEN:
            assert await world.answers("a-token-that-is-unknown", path, route.method) == 401
    assert allowed == {"/metrics", *OPEN}
    assert len(routes) > 15
    for token, method, status in (
        (OLD, "GET", 200),
        (SCRAPER, "HEAD", 200),
        (SCRAPER, "POST", 403),
        (ANOTHER, "GET", 401),
    ):
        assert await world.answers(token, "/metrics", method) == status
    for metrics, status in ((ANOTHER, 200), ("", 401)):  # a changed file is taken up
        world.write(OLD, metrics=metrics)
        assert await world.reload.run_once()
        assert await world.answers(ANOTHER, "/metrics") == status
        assert await world.answers(SCRAPER, "/metrics") == 401
        assert await world.answers(OLD) == 200


def test_a_token_for_metrics_may_not_be_one_that_may_do_everything(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    file.write_text(f"{SCRAPER}\n{OLD}\n")
    with pytest.raises(ValueError, match="one of them is in tokens, too"):
        AgentSection.model_validate({"tokens": [OLD], "metrics_tokens": {"file": file}})


APPLIED = [
    ("setting.changed", "agent.tokens"),
    ("setting.not_applied", "agent.slots"),
    ("setting.changed", "agent.services"),
    ("settings.reloaded", None),
]
REFUSED = [("settings.not_reloaded", None)]


@each(
    "new, applied",
    [
        ({"slots": 2, "tokens": [NEW], "services": ("a",)}, True),
        ({"slots": 2}, False),  # the last token is not taken out
        ({"host": "0.0.0.0", "tokens": None}, False),
    ],
)
async def test_tokens_and_services_are_applied_and_the_rest_is_said(new, applied) -> None:
    before = AgentSection.model_validate({"slots": 4, "tokens": [OLD]})
    reload = Reload(before, lambda: AgentSection.model_validate(new), lambda _: None)
    with structlog.testing.capture_logs() as lines:
        done = await reload.run_once()
    said = [(one["event"], one.get("key")) for one in lines]
    assert (done, said) == (applied, APPLIED if applied else REFUSED)
    used = reload.settings
    assert (used.slots, used.services, used.all_tokens()) == (
        (4, ("a",), [NEW]) if applied else (4, None, [OLD])
    )
