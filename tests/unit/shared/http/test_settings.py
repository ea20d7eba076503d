"""Settings about who may call."""

from __future__ import annotations

import pytest

import client_agent.settings.agent
import server.settings.load
from shared.settings.base import SettingsError

GOOD = "x" * 16


@pytest.fixture(params=["server", "agent"])
def table(request):
    return request.param


@pytest.fixture
def loaded(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def load(text: str):
        file = tmp_path / "settings.toml"
        file.write_text(f"[{table}]\n{text}\n")
        if table == "server":
            return server.settings.load.read(file, {}, {}).server
        return client_agent.settings.agent.load(file, {}, {})

    return load


@pytest.mark.parametrize("token", ["", " ", "short", "x" * 15, "two words in one token", "ä" * 20])
def test_a_token_that_can_be_guessed_is_refused_at_start(loaded, token):
    with pytest.raises(SettingsError, match="tokens: number 2 has") as refusal:
        loaded(f"tokens = ['{GOOD}', '{token}']")
    assert not token.strip() or token not in str(refusal.value)


@pytest.mark.parametrize("content", ["", "\n \n\n"])
def test_a_file_without_tokens_is_refused_at_start(loaded, tmp_path, content):
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(SettingsError, match="there is no token in it"):
        loaded(f"tokens = {{ file = '{tmp_path}/tokens' }}")


def test_a_short_line_of_a_file_is_named_by_its_number(loaded, tmp_path):
    (tmp_path / "tokens").write_text(f"{GOOD}\n\nsecret\n")
    with pytest.raises(SettingsError, match="line 3 has 6 characters") as refusal:
        loaded(f"tokens = {{ file = '{tmp_path}/tokens' }}")
    assert "secret" not in str(refusal.value).replace("import secrets; print(secrets.", "")


def test_tokens_come_from_both_places(loaded, tmp_path):
    (tmp_path / "tokens").write_text(f"{'y' * 16}\r\n\n  {'z' * 16}\n")
    found = loaded(f"tokens = ['{GOOD}', {{ file = '{tmp_path}/tokens' }}]")
    assert found.all_tokens() == [GOOD, "y" * 16, "z" * 16]
    assert GOOD not in repr(found)


def test_a_variable_may_name_the_file(loaded, table, tmp_path, monkeypatch):
    (tmp_path / "tokens").write_text(f"{'y' * 16}\n")
    monkeypatch.setenv(f"FERRYMAN_{table.upper()}__TOKENS__FILE", f"{tmp_path}/tokens")
    assert loaded(f"tokens = ['{GOOD}']").all_tokens() == ["y" * 16]


@pytest.mark.parametrize("host", ["a b", "http://x", "x/y", "", "**.x"])
def test_a_host_that_is_none_is_refused(loaded, host):
    with pytest.raises(SettingsError, match="is not the name of a host"):
        loaded(f"allowed_hosts = ['{host}']")


@pytest.mark.parametrize(
    "origin", ["x.org", "https://x.org/path", "*", "null", "ftp://x", "https://"]
)
def test_an_origin_that_is_none_is_refused(loaded, table, origin):
    if table == "agent":
        return  # no page calls an agent
    with pytest.raises(SettingsError, match="is not an origin"):
        loaded(f"allowed_origins = ['{origin}']")


def test_the_token_for_an_agent_comes_from_its_file(tmp_path):
    (tmp_path / "token").write_text(f"{GOOD}\n")
    file = tmp_path / "settings.toml"
    file.write_text(f"[agents.a]\nurl = 'http://x'\ntoken = {{ file = '{tmp_path}/token' }}\n")
    found = server.settings.load.read(file, {}, {})
    assert found.agents["a"].secret() == GOOD
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SettingsError, match="there is nothing in it"):
        server.settings.load.read(file, {}, {})
    (tmp_path / "token").unlink()
    with pytest.raises(SettingsError, match=r"token: file \S+/token: No such file"):
        server.settings.load.read(file, {}, {})
