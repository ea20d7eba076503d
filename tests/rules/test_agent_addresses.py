"""An agent has one table in the settings, however its address is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.domain.errors import NotReloaded
from server.maintenance.__main__ import program as maintenance
from server.reload import Reload
from server.settings import load
from server.settings.tables import ServerSettings
from shared.settings.base import SettingsError

TWO = "[services.s]\n[agents.a]\nurl = '{}'\n[agents.b]\nurl = '{}'\n"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, str], ServerSettings]:
    def read(first: str, second: str) -> ServerSettings:
        file = tmp_path / "server.toml"
        file.write_text(TWO.format(first, second))
        return load.read(file, {}, {})

    return read


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("http://n:9000", "http://n:9000"),
        ("http://n:9000", "HTTP://user:password@N:9000/"),
        ("http://n", "http://n:80//"),
        ("https://n:443/x", "https://n/./x/"),
    ],
)
def test_one_address_under_two_names_is_refused(read, first: str, second: str) -> None:
    with pytest.raises(SettingsError, match=r"agents\.a and agents\.b have the same url") as raised:
        read(first, second)
    assert "password" not in str(raised.value)


@pytest.mark.parametrize(
    "second", ["https://n:9000", "http://m:9000", "http://n:9001", "http://n:9000/x"]
)
def test_addresses_that_differ_are_two_agents(read, second: str) -> None:
    assert len(read("http://n:9000", second).agents) == 2


async def test_a_reload_may_swap_two_addresses_and_not_make_them_the_same(read) -> None:
    used = []

    async def use(agents: object) -> None:
        used.append(agents)

    new = [("http://b", "http://a"), ("http://a", "http://a")]
    reload = Reload(
        read("http://a", "http://b"), lambda: read(*new.pop(0)), lambda _old, _new: None, use
    )
    await reload.run_once()
    assert (reload.settings.agents["a"].url, len(used)) == ("http://b", 1)
    with pytest.raises(NotReloaded, match="have the same url"):
        await reload.run_once()
    assert (reload.settings.agents["a"].url, len(used)) == ("http://b", 1)


def test_the_check_of_a_file_says_it(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(TWO.format("http://a", "http://a/"))
    done = CliRunner().invoke(maintenance, ["check", "--config", str(file)])
    assert done.exit_code == 2
    assert f"{file}: agents.a and agents.b have the same url" in done.output
