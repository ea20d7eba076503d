"""Settings of an agent that are read again while it runs."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from client_agent.app import Reload
from client_agent.settings.agent import AgentSection
from shared.settings.base import SettingsError

TOKEN, OTHER = (SecretStr("a-long-random-text"),), (SecretStr("another-random-text"),)


async def reloaded(before: AgentSection, **new: Any) -> tuple[Reload, bool, list[Any]]:
    reload = Reload(before, lambda: AgentSection(**new), lambda _: None)
    with structlog.testing.capture_logs() as lines:
        done = await reload.run_once()
    return reload, done, [(one["event"], one.get("key")) for one in lines]


async def test_tokens_and_services_are_applied_and_the_rest_is_said() -> None:
    before = AgentSection(slots=4, tokens=TOKEN)
    reload, done, lines = await reloaded(before, slots=2, tokens=OTHER, services=("a",))
    assert done
    assert lines == [
        ("setting.changed", "agent.tokens"),
        ("setting.not_applied", "agent.slots"),
        ("setting.changed", "agent.services"),
        ("settings.reloaded", None),
    ]
    used = reload.settings
    assert (used.slots, used.services, used.all_tokens()) == (4, ("a",), ["another-random-text"])


@pytest.mark.parametrize("new", [{"slots": 2}, {"host": "0.0.0.0", "tokens": None}])
async def test_the_last_token_is_not_taken_out(new: dict[str, Any]) -> None:
    before = AgentSection(slots=4, tokens=TOKEN)
    reload, done, lines = await reloaded(before, **new)
    assert (done, lines) == (False, [("settings.not_reloaded", None)])
    assert reload.settings is before


async def test_wrong_settings_change_nothing() -> None:
    def read() -> AgentSection:
        raise SettingsError("agent.slots: no")

    before = AgentSection(slots=4)
    reload = Reload(before, read, lambda _: None)
    assert await reload.run_once() is False
    assert reload.settings is before
