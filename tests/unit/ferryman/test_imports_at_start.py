"""Commands start quickly because they import little: what is not needed is not there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from aiohttp import web
from typer.main import get_command

from ferryman.cli.app import COMMANDS, COMMON, app
from tests.kit.dev_program import environment
from tests.kit.each import each
from tests.unit.ferryman.fake_server import problem, serving

RUN = """
import json, sys
from ferryman.cli import main
try:
    main()
finally:
    print(json.dumps([*sys.modules]), file=sys.stderr)
"""
LIBRARIES = {"aiohttp", "asyncio", "pydantic", "rich", "ssl"}
OTHER_COMMANDS = {"admin", "agents", "events", "schedules", "tokens"}


def imported(*words: str) -> set[str]:
    """The modules that are there when a command, in a process of its own, has ended."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def own(names: set[str]) -> set[str]:
    return {f"ferryman.cli.{name}" for name in names}


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("list", "--help"),
        ("agents", "drain", "--help"),
        ("__complete", "bash", "su"),
        ("__complete", "bash", "--url", "X", "list", "--st"),
        ("__complete", "bash", "list", "--state", ""),
    ],
    ids=" ".join,
)
def test_help_and_completion_load_no_client_and_no_other_command(words: tuple[str, ...]) -> None:
    found = imported(*words)
    assert "ferryman.cli.app" in found
    assert found & LIBRARIES == set()
    assert found & own(OTHER_COMMANDS - {words[0]}) == set()


async def test_a_command_loads_neither_other_commands_nor_what_draws_tables() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return problem(404, "job_not_found", "no such job")

    async with serving(("GET", "/api/v1/jobs/17", refuse)) as url:
        found = await asyncio.to_thread(imported, "--url", url, "status", "17")
    assert "ferryman.client" in found
    assert found & (own(OTHER_COMMANDS) | {"rich"}) == set()


@each("name", COMMANDS)
def test_the_list_of_commands_says_what_their_help_says(name: str) -> None:
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    assert command.name == name
    assert not command.hidden
    assert command.get_short_help_str(100) == COMMANDS[name][1]


def test_the_common_options_are_what_they_are_in_commands() -> None:
    params = get_command(app).commands["status"].params  # type: ignore[attr-defined]
    known = {name: not one.is_flag for one in params for name in one.opts if name in COMMON}
    assert known == COMMON


def test_what_starts_both_programs_loads_no_client() -> None:
    code = "import json, sys, ferryman.dev; print(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(), capture_output=True, check=True
    )
    assert set(json.loads(done.stdout)) & {"aiohttp", "pydantic", "ferryman.client"} == set()
