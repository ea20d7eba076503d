"""Server, agent and client share a machine: none stumbles over the settings of another."""

from __future__ import annotations

import os
import re
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from client_agent.__main__ import cli as client_agent
from client_agent.settings import agent
from client_agent.settings.agent import AgentSettings
from ferryman import cli
from ferryman.cli.options import _TLS
from ferryman.defaults import VARIABLES
from server.__main__ import program as server
from server.maintenance.__main__ import program as maintenance
from server.settings import load
from server.settings.tables import ServerSettings
from shared.findings import Finding
from tests.support.dev_program import ROOT, environment

FILE = """
[server]
port = 1

[services.s]

[agents.node]
url = "http://node:9000"

[users.ada]
uploads_per_user = 3

[groups.lab]
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
    assert {
        line.strip("[]").partition(".")[0] for line in FILE.splitlines() if line[:1] == "["
    } == (tables)


def _of_page() -> set[str]:
    """The variables of the table in docs/scripts.md."""
    rows = re.findall(r"(?m)^\| (`FERRYMAN_.*?) \|", (ROOT / "docs/scripts.md").read_text())
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def _read_by_commands(command: Any) -> set[str]:
    """The variables that its options and those of its commands may come from."""
    found = {str(one.envvar) for one in command.params if getattr(one, "envvar", None)}
    for one in getattr(command, "commands", {}).values():
        found |= _read_by_commands(one)
    return found


def test_the_list_of_the_clients_variables_is_what_it_reads_and_what_its_page_says():
    tls = {f"FERRYMAN_{name}" for name in _TLS}
    assert _of_page() | {"FERRYMAN_CONFIG"} == VARIABLES
    assert _read_by_commands(get_command(cli.app)) | tls == VARIABLES - {"FERRYMAN_CONFIG"}


_ADMIN: Any = get_command(maintenance).commands["admin"]  # type: ignore[attr-defined]
COMMANDS: list[tuple[Any, str]] = [
    (server, "--print-config"),
    (client_agent, "--print-config"),
    (client_agent, "settings"),
    (maintenance, "settings"),
    (maintenance, "check"),
    (maintenance, "backup copy"),
    (maintenance, "restore copy"),
    (maintenance, "doctor"),
    *((maintenance, f"admin {name}") for name in _ADMIN.commands),
]


def test_no_variable_of_the_command_line_disturbs_a_program(tmp_path, monkeypatch):
    """Each names a file that is not there, or a server that does not answer."""
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("server.maintenance.doctor._agents", _no_agents)
    (tmp_path / "both.toml").write_text("[server]\nport = 0\n[services.s]\n[agent]\nport = 0\n")
    monkeypatch.setenv("FERRYMAN_CONFIG", "both.toml")
    alone = [_ended(program, words) for program, words in COMMANDS]
    for variable in VARIABLES - {"FERRYMAN_CONFIG"}:
        monkeypatch.setenv(variable, "nothing-that-is-there")
    assert [_ended(program, words) for program, words in COMMANDS] == alone
    assert {code for code, _ in alone} <= {0, 73, 74}


async def _no_agents(*_: object) -> list[Finding]:
    return []


def _ended(program: Any, words: str) -> tuple[int, str]:
    done = CliRunner().invoke(program, words.split())
    return done.exit_code, done.output
