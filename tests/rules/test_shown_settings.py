"""What ``--print-config`` and ``ferryman check`` say of settings."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client_agent.__main__ import cli as agent
from server.__main__ import program as server
from server.maintenance.doctor import warnings
from server.settings import load
from shared.settings.effective import differences
from tests.kit.each import each

SECRET = "a-long-random-text"
TEXT = f"""
[server]
tokens = ["{SECRET}"]
max_upload = "1GB"
max_files = 6
port = 6
sender_interval = "0.1234s"
[services.a]
env = {{ KEY = "{SECRET}" }}
[agents.n]
url = "http://user:{SECRET}@n:9000"
token = "{SECRET}"
[users."a.b@c"]
rate_limit = "5/s"
[agent]
tokens = ["{SECRET}"]
slots = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "ferryman.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    return path


def printed(program: Any, *words: str) -> str:
    done = CliRunner().invoke(program, words)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def test_each_value_has_its_source_and_the_whole_can_be_read_again(file, monkeypatch):
    monkeypatch.setenv("FERRYMAN_SERVER__MAX_FILES", "9")
    monkeypatch.setenv("FERRYMAN_SERVER__PORT", "8")
    monkeypatch.setenv("FERRYMAN_SERVICES__a__MAX_RUNS", "3")
    text = printed(server, "--config", str(file), "--port", "7", "--print-config")
    lines = text.splitlines()
    assert "max_files = 9  # variable FERRYMAN_SERVER__MAX_FILES" in lines
    assert "max_runs = 3  # variable FERRYMAN_SERVICES__a__MAX_RUNS" in lines
    assert f"max_upload = 1000000000  # {file}" in lines
    assert lines[:3] == ["[server]", 'host = "127.0.0.1"  # default', "port = 7  # flag --port"]
    assert 'auth = "token"  # default' in lines
    assert "# tls_cert is not set  # default" in lines
    tables = tomllib.loads(text)
    assert tables["users"]["a.b@c"]["rate_limit"] == "5/s"
    again = file.with_name("again.toml")
    again.write_text(text.replace("***", SECRET))
    before, after = (
        load.read(path, {"server": {"port": 7}}, {}).model_copy(update={"agents": {}})
        for path in (file, again)
    )
    changed = [(one.key, one.new) for one in differences(before, after)]
    assert changed == [("server.auth", "token")], "it followed from the tokens"
    file.write_text("[server]\n")
    assert 'auth = "none"  # default' in printed(server, "--config", str(file), "--print-config")


def test_an_agent_prints_its_own_and_neither_prints_a_secret(file: Path) -> None:
    text = printed(agent, "--config", str(file), "--slots", "2", "--print-config")
    assert "slots = 2  # flag --slots" in text
    assert tomllib.loads(text).keys() == {"agent"}
    for program in (server, agent):
        for more in ([], ["--json"]):
            text = printed(program, "--config", str(file), "--print-config", *more)
            assert (SECRET in text, "***" in text) == (False, True)


OPEN = "tokens = { file = 'open' }"
ONE_ELSE = "[services.s]\n[agents.a]\nurl = 'http://a'\nservices = ['s']\n[services.t]"


@each(
    "text, words",
    [
        ("[services.s]\n", ""),
        ("[services.s]\nruns_per_user = 11", "one user can take all"),
        (ONE_ELSE, "its jobs would wait"),
        ("[services.s]\nretries = 1\nqueue_timeout = '1m'", "less than the delay of a retry"),
        ("[services.s]\nheartbeat_timeout = '2h'", "does nothing"),
        (f"[server]\n{OPEN}\n", "everybody on this machine can read it"),
        ("[services.s.env]\nKEY = { file = 'open' }\n", "(services.s.env): "),
        ("[agents]\n", "no job can run"),
    ],
)
def test_what_is_probably_not_meant_is_said(file: Path, text: str, words: str) -> None:
    file.with_name("open").write_text(SECRET)
    file.with_name("open").chmod(0o644)
    file.write_text(text)
    said = warnings(load.read(file, {}, {}), file)
    assert words in "\n".join(said)
    assert bool(said) is bool(words)
