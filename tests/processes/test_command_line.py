"""Wrong words for the programs of server and agent."""

from __future__ import annotations

import json

import pytest

from client_agent.__main__ import cli as agent
from server.__main__ import program as server
from server.maintenance.__main__ import program as maintenance
from shared.command_line import run_command


@pytest.mark.parametrize(
    ("program", "name", "words", "message", "help_of"),
    [
        (server, "ferryman server", "--prt 3", "no such option: --prt; did you mean --port?", ""),
        (
            server,
            "ferryman server",
            "--port x",
            "invalid value for '--port': should be a whole",
            "",
        ),
        (
            agent,
            "ferryman agent",
            "--slots x",
            "invalid value for '--slots': should be a whole",
            "",
        ),
        (agent, "ferryman agent", "cheque", "no such command 'cheque'", ""),
        (maintenance, "ferryman", "backup", "missing argument 'TARGET'", " backup"),
        (maintenance, "ferryman", "restore b --skip-ids x", "invalid value for", " restore"),
    ],
)
def test_wrong_words_are_said_as_the_command_line_says_them(
    program, name, words, message, help_of, capsys
):
    with pytest.raises(SystemExit) as ended:
        run_command(program, name, words.split())
    assert ended.value.code == 2
    said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{name}: {message}")
    assert hint == f"what it takes: {name}{help_of} -h"

    with pytest.raises(SystemExit):
        run_command(program, name, [*words.split(), "--json"])
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "bad_argument"
    assert error["hint"] == f"what it takes: {name}{help_of} -h"


def test_help_ends_well(capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(maintenance, "ferryman", ["backup", "-h"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: ferryman backup [OPTIONS] {TARGET}")
