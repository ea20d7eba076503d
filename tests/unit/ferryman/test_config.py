"""``ferryman check`` asks the programs themselves; what ``ferryman config reload`` says."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman.cli import doctor
from ferryman.cli.admin import _changed
from ferryman.models.operators import SettingChange
from tests.kit import forked_programs

BOTH = """
[server]
port = 5001
[services.x]
[agent]
slots = 3
"""
BAD = """
[server]
prot = 1
[services.x]
timeout = "soon"
[agent]
slotss = 3
"""


@pytest.fixture(autouse=True)
def forked(monkeypatch) -> None:
    """The programs are asked in forks of this process: starting each afresh costs a second."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        module, *words = command[3:]
        return forked_programs.run(module, words, dict(os.environ))

    fake = SimpleNamespace(
        run=run, DEVNULL=subprocess.DEVNULL, CompletedProcess=subprocess.CompletedProcess
    )
    monkeypatch.setattr(doctor, "subprocess", fake)


async def test_a_file_of_both_programs_is_read_by_both(ferryman, tmp_path) -> None:
    (tmp_path / "both.toml").write_text(BOTH)
    said = await ferryman("check", "both.toml")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == ["server: fine", "agent: fine"]


async def test_every_mistake_is_named_with_file_and_key(ferryman, tmp_path) -> None:
    (tmp_path / "bad.toml").write_text(BAD)
    said = await ferryman("check", "bad.toml")
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines() == [
        "server: bad.toml: server.prot: no such setting; did you mean port?",
        "server: bad.toml: services.x.timeout: 'soon' is not a duration such as 90s, 1h30m or 10d",
        "agent: bad.toml: agent.slotss: no such setting; did you mean slots?",
    ]


async def test_only_the_program_that_has_tables_is_asked(ferryman, tmp_path) -> None:
    (tmp_path / "agent.toml").write_text("[agent]\nslots = 3\n")
    said = await ferryman("check", "agent.toml", "--json")
    (agent,) = json.loads(said.out)["programs"]
    assert (said.code, agent["program"], agent["ok"]) == (0, "agent", True)


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "no.toml: No such file or directory"), ("[agent\n", "no.toml: not valid TOML")],
)
async def test_a_file_that_cannot_be_read_is_named(ferryman, tmp_path, content, text) -> None:
    if content is not None:
        (tmp_path / "no.toml").write_text(content)
    said = await ferryman("check", "no.toml")
    assert (said.code, said.out) == (2, "")
    assert text in said.err


async def test_what_is_probably_not_meant_is_a_warning(ferryman, tmp_path) -> None:
    (tmp_path / "s.toml").write_text("[services.s]\nruns_per_user = 11\n")
    said = await ferryman("check", "s.toml")
    assert (said.code, said.out) == (0, "server: fine\n")
    assert "server: warning: services.s: runs_per_user is 11" in said.err


async def test_an_address_for_others_without_a_token_is_named_before_the_start(
    ferryman, tmp_path
) -> None:
    for program, code, text in (
        ("server", 0, "server: warning: server: no tokens: it starts only where"),
        ("agent", 2, "agent: refusing to listen on 0.0.0.0 without a token"),
    ):
        (tmp_path / "open.toml").write_text(f'[{program}]\nhost = "0.0.0.0"\n')
        said = await ferryman("check", "open.toml")
        assert (said.code, text in said.err) == (code, True), said


@pytest.mark.parametrize(
    ("key", "old", "new", "line"),
    [
        ("services.more", None, "added", "services.more: added"),
        ("agents.a", "taken out (http://a)", None, "agents.a: taken out (http://a)"),
        ("server.tls_cert", "a.pem", None, "server.tls_cert: a.pem -> not set"),
        ("services.s.max_runs", "1", "7", "services.s.max_runs: 1 -> 7"),
    ],
)
def test_a_change_is_said_in_a_line(key: str, old: str | None, new: str | None, line: str) -> None:
    assert _changed(SettingChange(key=key, old=old, new=new)) == line
