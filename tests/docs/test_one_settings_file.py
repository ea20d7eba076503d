"""Server, agent and client share a machine: none stumbles over the settings of another."""

import os
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from client_agent.__main__ import cli as client_agent
from client_agent.settings import agent
from client_agent.settings.agent import AgentSettings
from ferryman.cli.app import app
from ferryman.cli.options import _TLS
from ferryman.defaults import VARIABLES
from ferryman.findings import Finding
from server.__main__ import program as server
from server.maintenance.__main__ import program as maintenance
from server.settings import load
from server.settings.tables import ServerSettings
from shared.settings.load import file_of_host
from tests.kit.dev_program import ROOT, environment

FILE = """
[server]
port = 1
[services.s]
[agents.node]
url = "http://node:9000"
[users.lab]
members = ["grace"]
[agent]
port = 2
"""


def test_both_read_a_file_with_every_table(tmp_path):
    file = tmp_path / "ferryman.toml"
    file.write_text(FILE)
    environ = {"FERRYMAN_USERS__ADA__RUNS_PER_USER": "7", "FERRYMAN_USER": "ada"}
    assert agent.load(file, {}, environ).port == 2
    assert load.read(file, {}, environ).server.port == 1
    tables = {*ServerSettings.model_fields, *AgentSettings.model_fields}
    assert tomllib.loads(FILE).keys() == tables


def _read_by_commands(command: Any) -> set[str]:
    """The variables that its options and those of its commands may come from."""
    found = {str(one.envvar) for one in command.params if getattr(one, "envvar", None)}
    for one in getattr(command, "commands", {}).values():
        found |= _read_by_commands(one)
    return found


def test_the_list_of_the_clients_variables_is_what_it_reads_and_what_its_page_says():
    rows = re.findall(r"(?m)^\| (`FERRYMAN_.*?) \|", (ROOT / "docs/cli.md").read_text())
    said = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert said | {"FERRYMAN_CONFIG"} == VARIABLES
    tls = {f"FERRYMAN_{name}" for name in _TLS}
    assert _read_by_commands(get_command(app)) | tls == VARIABLES


_ADMIN: Any = get_command(maintenance).commands["admin"]  # type: ignore[attr-defined]
_OTHERS = ("check", "backup copy", "restore copy", "doctor")
COMMANDS: list[tuple[Any, str]] = [
    *((server, "--print-config"), (client_agent, "--print-config")),
    *((maintenance, words) for words in (*_OTHERS, *(f"admin {one}" for one in _ADMIN.commands))),
]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A folder, and none of the variables of whoever runs this."""

    async def no_agents(*_: object) -> list[Finding]:
        return []

    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("server.maintenance.doctor._agents", no_agents)
    return tmp_path


def test_no_variable_of_the_command_line_disturbs_a_program(host, monkeypatch):
    """Each names a file that is not there, or a server that does not answer."""
    (host / "both.toml").write_text("[server]\nport = 0\n[services.s]\n[agent]\nport = 0\n")
    monkeypatch.setenv("FERRYMAN_CONFIG", "both.toml")
    alone = [_ended(program, words) for program, words in COMMANDS]
    for variable in VARIABLES - {"FERRYMAN_CONFIG"}:
        monkeypatch.setenv(variable, "nothing-that-is-there")
    assert [_ended(program, words) for program, words in COMMANDS] == alone
    assert {code for code, _ in alone} <= {0, 73, 74}


def _ended(program: Any, words: str) -> tuple[int, str]:
    done = CliRunner().invoke(program, words.split())
    return done.exit_code, done.output


@pytest.fixture
def installed(host, monkeypatch):
    """A host with the settings of both programs where a package has them."""
    monkeypatch.setattr("shared.settings.load.INSTALLED", host / "etc")
    (host / "etc").mkdir()
    for name in ("server", "agent"):
        (host / f"etc/{name}.toml").write_text(f"[{name}]\ndata_dir = '{host}/kept'\n")
    return host


def test_a_command_on_a_host_takes_the_settings_that_are_installed_there(installed, monkeypatch):
    """A wrong key in them is found; a file or a folder that is given is taken instead. A program
    that starts takes none that nobody named.
    """
    for program in (server, client_agent):
        assert str(installed / "etc") not in _ended(program, "--print-config")[1]
    for file in (installed / "etc").iterdir():
        file.write_text(f"[{file.stem}]\nwrong = 1\n")
    (installed / "both.toml").write_text("[server]\nport = 0\n[agent]\nport = 0\n")
    folders = ("FERRYMAN_SERVER__DATA_DIR", "FERRYMAN_AGENT__DATA_DIR")
    given = [{"FERRYMAN_CONFIG": "both.toml"}, dict.fromkeys(folders, "elsewhere")]
    wrong: list[object] = []
    for program, words in COMMANDS[2:]:
        code, said = _ended(program, words)
        if (code, "wrong: no such setting" in said) != (2, True):
            wrong.append((words, "does not take them", code, said))
        for variables in given:
            with monkeypatch.context() as patch:
                for name, text in variables.items():
                    patch.setenv(name, text)
                code, said = _ended(program, words)
            if code == 2:
                wrong.append((words, variables, code, said))
    assert wrong == []


def test_a_folder_that_is_given_is_not_mixed_with_the_settings_installed(installed, monkeypatch):
    file = partial(file_of_host, ServerSettings, "server.toml")
    there = installed / "etc/server.toml"
    assert file(None, None) == there
    assert file(None, Path("elsewhere")) is None
    assert file(Path("mine.toml"), None) == Path("mine.toml")
    monkeypatch.setenv("FERRYMAN_AGENT__DATA_DIR", "elsewhere")
    assert file(None, None) == there
    monkeypatch.setenv("DB_PATH", "elsewhere.sqlite")
    assert file(None, None) is None
    monkeypatch.delenv("DB_PATH")
    there.unlink()
    assert file(None, None) is None
