"""What the tab key does, in the shells themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from ferryman.cli.app import app
from ferryman.cli.completion import SCRIPTS, candidates
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


def test_every_command_is_offered_and_nothing_hidden() -> None:
    root = get_command(app)
    offered = {one for one, _ in candidates([""], root)}
    assert offered == set(root.commands)  # type: ignore[attr-defined]
    assert {one for one, _ in candidates([], root)} == offered
    assert all(about for _, about in candidates([""], root))


def shell(name: str, home: Path, *words: str) -> str:
    """What a shell prints in a home of its own."""
    done = subprocess.run(
        [program(name), *words],
        env={
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "dumb",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


BASH = """
source ./script
COMP_WORDS=(ferryman agents d) COMP_CWORD=2; _ferryman; echo "${COMPREPLY[@]}"
COMP_WORDS=(ferryman statu) COMP_CWORD=1; _ferryman; echo "${COMPREPLY[@]}"
COMP_WORDS=(ferryman submit x) COMP_CWORD=2; _ferryman; echo "files${COMPREPLY[@]}"
"""
ZSH = """
compdef() { }; _describe() { print -l $found }; _files() { print files }; source ./script
words=(ferryman agents d); CURRENT=3; _ferryman
words=(ferryman statu); CURRENT=2; _ferryman
words=(ferryman submit x); CURRENT=3; _ferryman
"""
FISH = """
source ./script; complete -C "ferryman agents d"; complete -C "ferryman statu"
complete -C "ferryman submit fil"
"""


@pytest.mark.parametrize(
    ("name", "flags", "code", "printed"),
    [
        ("bash", ["--norc"], BASH, ["drain", "status", "files"]),
        (
            "zsh",
            ["-f"],
            ZSH,
            ["drain:Give an agent no new jobs.", "status:Show jobs.", "files"],
        ),
        (
            "fish",
            ["--no-config"],
            FISH,
            ["drain\tGive an agent no new jobs.", "status\tShow jobs.", "files.txt"],
        ),
    ],
)
def test_the_shells_take_it(home, tmp_path, monkeypatch, name, flags, code, printed) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script").write_text(SCRIPTS[name])
    (tmp_path / "files.txt").touch()
    assert shell(name, home, *flags, "-c", code).splitlines() == printed


@pytest.mark.parametrize(
    ("name", "asks", "answer"),
    [
        ("bash", "complete -p ferryman", "-F _ferryman ferryman"),
        ("zsh", "print -- $_comps[ferryman]", "_ferryman"),
        ("fish", 'complete -C "ferryman statu"', "status\tShow jobs."),
    ],
)
async def test_one_command_sets_it_up_and_a_second_changes_nothing(
    ferryman, monkeypatch, home, name, asks, answer
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SHELL", f"/usr/bin/{name}")
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    (home / f".{name}rc").write_text("true")  # without a line end
    first = await ferryman("completion", "--install")
    files = {path: path.read_text() for path in home.rglob("*") if path.is_file()}
    second = await ferryman("completion", name, "--install")
    assert (first.code, second.code) == (0, 0)
    assert first.err.splitlines()[-1] == "it works in your next shell"
    assert {path: path.read_text() for path in home.rglob("*") if path.is_file()} == files
    assert answer in shell(name, home, "-ic", asks)


async def test_the_script_is_printed_or_the_shells_are_named(ferryman, monkeypatch) -> None:
    monkeypatch.delenv("SHELL", raising=False)
    printed = await ferryman("completion", "zsh")
    assert (printed.code, printed.out, printed.err) == (0, SCRIPTS["zsh"], "")
    for words, why in ((("tcsh",), "'tcsh' is not known"), ((), "it is not known which shell")):
        done = await ferryman("completion", *words)
        assert (done.code, done.out) == (2, "")
        assert f"{why}" in done.err
        assert "there are bash, zsh, fish" in done.err
        assert done.err.splitlines()[1] == "for bash: ferryman completion bash --install"
