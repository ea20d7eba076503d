"""Settings that are read again while the server runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from server.domain.errors import NotReloaded
from server.reload import Reload
from server.settings import load
from server.settings.tables import ServerSettings
from shared.settings.base import SettingsError

AGENT = "[agents.a]\nurl = 'http://a:1'\n"


def reloading(settings: ServerSettings, read: Callable[[], ServerSettings]) -> Reload:
    """Of a server that takes all settings."""

    async def use(_: ServerSettings) -> None:
        """Fail never."""

    return Reload(settings, read, lambda _old, _new: None, use)


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
    text = f"[server]\ntokens = ['a-long-random-text']\nport = 1\n[services.s]\n{AGENT}prefetch = 2"
    before = reading(f"[services.s]\n{AGENT}")
    reload = reloading(before, lambda: reading(text))
    first, second = await reloaded(reload), await reloaded(reload)
    assert {(one["event"], one["key"]): (one["old"], one["new"]) for one in first[:-1]} == {
        ("setting.changed", "server.tokens"): (None, "(secret)"),
        ("setting.not_applied", "server.port"): ("5000", "1"),
        ("setting.changed", "agents.a.prefetch"): ("0", "2"),
    }
    assert (first[-1]["applied"], first[-1]["waiting"]) == (2, 1)
    assert (second[-1]["applied"], second[-1]["waiting"]) == (0, 1)
    assert reload.settings.agents["a"].prefetch == 2


async def test_settings_that_cannot_be_read_change_nothing(reading: Any) -> None:
    before, wrong = reading("[services.s]"), "[services.s]\nretries = -1"
    reload = reloading(before, lambda: reading(wrong))
    (line,) = await reloaded(reload)
    assert line["event"] == "settings.not_reloaded"
    assert "services.s.retries" in line["why"]
    assert reload.settings is before


async def test_a_service_that_is_taken_out_is_gone_and_one_that_is_new_is_there(
    reading: Any,
) -> None:
    new = "[services.new]\nmax_runs = 3"
    before = reading("[services.old]")
    reload = reloading(before, lambda: reading(new))
    lines = await reloaded(reload)
    assert {one["key"]: (one["old"], one["new"]) for one in lines[:-1]} == {
        "services.old": ("taken out", None),
        "services.new": (None, "added"),
    }
    assert {name: one.max_runs for name, one in reload.settings.services.items()} == {"new": 3}


async def test_an_agent_that_is_added_or_taken_out_is_named_with_its_address(reading: Any) -> None:
    before = reading("[services.s]\n[agents.a]\nurl = 'http://a:1'")
    new = "[services.s]\n[agents.b]\nurl = 'http://me:secret@b:2'"
    lines = await reloaded(reloading(before, lambda: reading(new)))
    assert {one["key"]: (one["old"], one["new"]) for one in lines[:-1]} == {
        "agents.a": ("taken out (http://a:1)", None),
        "agents.b": (None, "added (http://***@b:2)"),
    }


async def test_the_file_of_a_secret_is_read_again(reading: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    text = f"[services.s.env]\nKEY = {{ file = '{file}' }}\n"
    file.write_text("first\n")
    before = reading(text)
    reload = reloading(before, lambda: reading(text))
    file.write_text("second\n")
    assert (await reloaded(reload))[0]["key"] == "services.s.env.KEY"
    assert reload.settings.services["s"].service("s").env == {"KEY": "second"}
    file.write_text("\n")
    with pytest.raises(SettingsError, match=r"env.KEY: file .*key: there is nothing in it"):
        reading(text)
    file.unlink()
    with pytest.raises(SettingsError, match=r"env.KEY: file .*key: No such file"):
        reading(text)
    assert "settings.not_reloaded" in str(await reloaded(reload))
