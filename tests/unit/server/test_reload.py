"""Settings that are read again while the server runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from server.domain.allowances import Allowance
from server.domain.errors import NotReloaded
from server.reload import Reload
from server.settings import load
from server.settings.agents import AgentTable
from server.settings.allowances import allowances
from server.settings.tables import ServerSettings
from shared.live import Live
from shared.settings.base import SettingsError

AGENT = "[agents.a]\nurl = 'http://a:1'\n"


class Applied:
    """What was applied."""

    def __init__(self) -> None:
        self.agents_used: list[Mapping[str, AgentTable]] = []

    async def use_agents(self, agents: Mapping[str, AgentTable]) -> None:
        self.agents_used.append(agents)


def no_check(_: ServerSettings) -> None:
    """All is well."""


@pytest.fixture
def reading(tmp_path: Path) -> Callable[[str], ServerSettings]:
    def read(text: str) -> ServerSettings:
        file = tmp_path / "server.toml"
        file.write_text(text)
        return load.read(file, {}, {})

    return read


async def reloaded(reload: Reload) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as lines, contextlib.suppress(NotReloaded):
        await reload.run_once()
    return [dict(line) for line in lines]


async def test_what_needs_a_restart_is_said_at_each_reload_and_the_rest_once(reading: Any) -> None:
    applied = Applied()
    text = f"[server]\ntokens = ['a-long-random-text']\nport = 1\n[services.s]\n{AGENT}drain = true"
    live = Live(reading(f"[services.s]\n{AGENT}"))
    reload = Reload(live, lambda: reading(text), no_check, applied.use_agents)
    first, second = await reloaded(reload), await reloaded(reload)
    assert {(one["event"], one["key"]): (one["old"], one["new"]) for one in first[:-1]} == {
        ("setting.changed", "server.tokens"): (None, "(secret)"),
        ("setting.not_applied", "server.port"): ("5000", "1"),
        ("setting.changed", "agents.a.drain"): ("false", "true"),
    }
    assert (first[-1]["applied"], first[-1]["waiting"]) == (2, 1)
    assert (second[-1]["applied"], second[-1]["waiting"]) == (0, 1)
    assert [one["a"].drain for one in applied.agents_used] == [True, True]


async def test_settings_that_cannot_be_read_change_nothing(reading: Any) -> None:
    applied = Applied()
    live = Live(reading("[services.s]"))
    before, wrong = live.current, "[services.s]\nretries = -1"
    reload = Reload(live, lambda: reading(wrong), no_check, applied.use_agents)
    (line,) = await reloaded(reload)
    assert line["event"] == "settings.not_reloaded"
    assert "services.s.retries" in line["why"]
    assert live.current is before
    assert not applied.agents_used


async def test_a_service_that_is_taken_out_is_gone_and_one_that_is_new_is_there(
    reading: Any,
) -> None:
    new = "[services.new]\nmax_runs = 3"
    live = Live(reading("[services.old]"))
    reload = Reload(live, lambda: reading(new), no_check, Applied().use_agents)
    lines = await reloaded(reload)
    assert {one["key"]: (one["old"], one["new"]) for one in lines[:-1]} == {
        "services.old": ("taken out", None),
        "services.new": (None, "added"),
    }
    assert {name: one.max_runs for name, one in live.current.services.items()} == {"new": 3}


async def test_an_agent_that_is_added_or_taken_out_is_named_with_its_address(reading: Any) -> None:
    live = Live(reading("[services.s]\n[agents.a]\nurl = 'http://a:1'"))
    new = "[services.s]\n[agents.b]\nurl = 'http://me:secret@b:2'"
    lines = await reloaded(Reload(live, lambda: reading(new), no_check, Applied().use_agents))
    assert {one["key"]: (one["old"], one["new"]) for one in lines[:-1]} == {
        "agents.a": ("taken out (http://a:1)", None),
        "agents.b": (None, "added (http://***@b:2)"),
    }


async def test_what_holds_for_all_users_is_applied_and_exceptions_are(
    reading: Any,
) -> None:
    live = Live(reading("[services.s]"))
    new = "[server]\nstored_per_user = 9\n[users.ann]\nuploads_per_user = 3\n[services.s]"
    lines = await reloaded(Reload(live, lambda: reading(new), no_check, Applied().use_agents))
    assert [(one["event"], one["key"]) for one in lines[:-1]] == [
        ("setting.changed", "server.stored_per_user"),
        ("setting.changed", "users.ann"),
    ]
    allowed = allowances(live.current)
    assert allowed.of("ann") == Allowance(stored=9, uploads=3, sources={"uploads": "users.ann"})
    assert allowed.of("bob") == Allowance(stored=9)


async def test_the_file_of_a_secret_is_read_again(reading: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    text = f"[services.s.secrets]\nKEY = {{ file = '{file}' }}\n"
    file.write_text("first\n")
    live = Live(reading(text))
    reload = Reload(live, lambda: reading(text), no_check, Applied().use_agents)
    file.write_text("second\n")
    assert (await reloaded(reload))[0]["key"] == "services.s.secrets.KEY"
    assert live.current.services["s"].service("s").env == {"KEY": "second"}
    file.unlink()
    with pytest.raises(SettingsError, match=r"KEY: file .*key: No such file"):
        reading(text)
    assert "settings.not_reloaded" in str(await reloaded(reload))
