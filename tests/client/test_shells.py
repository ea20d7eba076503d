"""What the tab key does, in the shells themselves, and what is imported before a command works."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ferryman.cli.app import COMMANDS, COMMON, app
from ferryman.cli.completion import SCRIPTS, candidates
from tests.client.fake_server import HERE, problem
from tests.kit.dev_program import ended
from tests.kit.each import each
from tests.kit.installed import program


@each(
    ("words", "found"),
    [
        (["statu"], ["status"]),
        (["agents", "dr"], ["drain"]),
        (["--url", "X", "agents", "dr"], ["drain"]),
        (["agents", "--url", "X", "dr"], ["drain"]),
        (["status", "--js"], ["--json"]),
        (["status", "1", "--wait", "--js"], ["--json"]),
        (["list", "--sta"], ["--state"]),
        (["list", "--state", "F"], ["Failed"]),
        (["submit", "--batch-policy", ""], ["wait_all", "fail_fast"]),
        (["status", "la"], ["last"]),
        (["schedule", "delete", "la"], []),
        (["submit", "--output", ""], []),
        (["submit", "my"], []),
        (["submit", "--", "--js"], []),
        (["levitate", "x"], []),
    ],
)
def test_what_fits_is_found(words: list[str], found: list[str]) -> None:
    assert [one for one, _ in candidates(words, get_command(app))] == found


def test_every_command_is_offered_as_its_help_says_and_nothing_hidden() -> None:
    root: Any = get_command(app)
    offered = {one for one, _ in candidates([""], root)}
    assert offered == {one for one, _ in candidates([], root)} == set(root.commands)
    assert all(about for _, about in candidates([""], root))
    for name, (_, about) in COMMANDS.items():
        command = root.commands[name]
        assert (command.name, command.hidden) == (name, False)
        assert command.get_short_help_str(100) == about
    params = root.commands["status"].params
    known = {name: not one.is_flag for one in params for name in one.opts if name in COMMON}
    assert known == COMMON


def shell(name: str, home: Path, *words: str) -> str:
    """What a shell prints in a home of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"HOME": str(home), "PATH": path, "TERM": "dumb"}
    return ended(program(name), *words, env=env, cwd=home, status=None).stdout


COMPLETE = "complete -o bashdefault -o default -F _ferryman ferryman"
BASH = """
complete -p ferryman
COMP_WORDS=(ferryman agents d) COMP_CWORD=2; _ferryman; echo "${COMPREPLY[@]}"
COMP_WORDS=(ferryman submit x) COMP_CWORD=2; _ferryman; echo "files${COMPREPLY[@]}"
"""
ZSH = """
print -- $_comps[ferryman]
compdef() { }; _describe() { print -l $found }; _files() { print files }; source ./script
words=(ferryman agents d); CURRENT=3; _ferryman
words=(ferryman submit x); CURRENT=3; _ferryman
"""
FISH = """
complete -C "ferryman statu"; complete -C "ferryman agents d"; complete -C "ferryman submit fil"
"""


@pytest.mark.parametrize(
    ("name", "code", "printed"),
    [
        ("bash", BASH, [COMPLETE, "drain", "files"]),
        ("zsh", ZSH, ["_ferryman", "drain:Give an agent no new jobs.", "files"]),
        ("fish", FISH, ["status\tShow jobs.", "drain\tGive an agent no new jobs.", "files.txt"]),
    ],
)
async def test_one_command_sets_it_up(ferryman, tmp_path, name, code, printed) -> None:
    home = tmp_path / "home"
    home.mkdir()
    gone = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"))
    env = {"HOME": str(home), "SHELL": f"/usr/bin/{name}", **gone}
    (home / f".{name}rc").write_text("true")  # without a line end
    first = await ferryman("completion", "--install", **env)
    files = {path: path.read_text() for path in home.rglob("*") if path.is_file()}
    second = await ferryman("completion", name, "--install", **env)
    assert (first.code, second.code) == (0, 0)
    assert first.err.splitlines()[-1] == "it works in your next shell"
    assert {path: path.read_text() for path in home.rglob("*") if path.is_file()} == files
    (home / "script").write_text(SCRIPTS[name])
    (home / "files.txt").touch()
    assert shell(name, home, "-ic", code).splitlines() == printed


async def test_the_script_is_printed_or_the_shells_are_named(ferryman) -> None:
    printed = await ferryman("completion", "zsh", SHELL=None)
    assert (printed.code, printed.out, printed.err) == (0, SCRIPTS["zsh"], "")
    for words, why in ((("tcsh",), "'tcsh' is not known"), ((), "it is not known which shell")):
        done = await ferryman("completion", *words, SHELL=None)
        assert (done.code, done.out) == (2, "")
        assert why in done.err
        assert "there are bash, zsh, fish" in done.err
        assert done.err.splitlines()[1] == "for bash: ferryman completion bash --install"


RUN = """
import json, sys
from ferryman.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["ferryman", *words]
    try:
        main()
    except SystemExit:
        pass
    print(json.dumps([*sys.modules]), file=sys.stderr)
"""
START = "import json, sys, ferryman.dev; print(json.dumps([*sys.modules]), file=sys.stderr)"
LIBRARIES = {"aiohttp", "asyncio", "pydantic", "rich", "ssl"}
OTHERS = {f"ferryman.cli.{name}" for name in ("admin", "events", "schedules", "tokens")}


def imported(*commands: list[str], code: str = RUN) -> list[set[str]]:
    """The modules that are there after each of these commands in a process of their own."""
    done = ended(sys.executable, "-P", "-c", code, json.dumps(commands))
    return [set(json.loads(line)) for line in done.stderr.splitlines() if line.startswith("[")]


async def test_what_is_not_needed_is_not_loaded(fake) -> None:
    """Help and completion no client, a command no other one and nothing that draws tables."""
    complete = ["__complete", "bash"]
    lines = [["su"], ["--url", "X", "list", "--st"], ["list", "--state", ""]]
    helps = [["--help"], ["--version"], ["list", "--help"], ["agents", "drain", "--help"]]
    found = imported(*helps, *[complete + line for line in lines])
    assert len(found) == 7
    assert "ferryman.cli.app" in found[0]
    assert "ferryman.cli.agents" not in found[2]
    assert found[-1] & (LIBRARIES | OTHERS | {"ferryman.client"}) == set()
    fake.on(f"GET {HERE}", problem(404, "job_not_found", "no such job"))
    (status,) = await asyncio.to_thread(imported, ["--url", fake.url, "status", "17"])
    assert "ferryman.client" in status
    assert status & (OTHERS | {"ferryman.cli.agents", "rich"}) == set()
    (dev,) = imported(code=START)
    assert dev & {"aiohttp", "pydantic", "ferryman.client"} == set()
