"""What ``ferryman dev`` and ``ferryman dashboard`` open, and what with."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

import pytest

from ferryman.dev_welcome import a_token, behind_proxy, welcome
from ferryman.open_page import has_browser, open_page
from server.settings import load

TABLE = '[server]\ntokens = ["the-first-token-of-all", "another"]\n'


@pytest.mark.parametrize(
    ("text", "environ", "found"),
    [
        ("", {}, None),
        ("[server]\nport = 1\n", {}, None),
        (TABLE, {}, "the-first-token-of-all"),
        ('[server]\ntokens = "a, b"\n', {}, "a"),
        (TABLE, {"FERRYMAN_SERVER__TOKENS": "x , y"}, "x"),
        (TABLE, {"FERRYMAN_SERVER__TOKENS_FILE": "tokens"}, "the-first-token-of-all"),
        ('[server]\ntokens_file = "tokens"\n', {}, "of-a-file"),
        ("", {"FERRYMAN_SERVER__TOKENS_FILE": "tokens"}, "of-a-file"),
        ('[server]\ntokens_file = "missing"\n', {}, None),
        ("[server]\ntokens_file = 7\n", {}, None),
        ("not = [toml", {}, None),
        ("server = 7\n", {}, None),
        ("[server]\ntokens = 7\n", {}, None),
        ("", {"FERRYMAN_SERVER__TOKENS": '["unclosed'}, None),
    ],
)
def test_a_token_of_the_settings_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    environ: dict[str, str],
    found: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens").write_text("of-a-file\nsecond\n")
    (tmp_path / "ferryman.toml").write_text(text)
    assert a_token(tmp_path / "ferryman.toml", environ) == found
    if not text:
        assert a_token(None, environ) == found


@pytest.mark.parametrize(
    "text",
    [
        "one-of-16-letters-or-more",
        '["one-of-16-letters-or-more"]',
        ' [ "one-of-16-letters-or-more", "another-one-of-16-letters" ] ',
        '["with,comma-of-16-letters"]',
        ",  one-of-16-letters-or-more , another-one-of-16-letters",
        "",
        "[]",
    ],
)
def test_a_variable_with_tokens_is_read_as_the_server_reads_it(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("FERRYMAN_SERVER__TOKENS", text)
    tokens = load.read(None, {}, os.environ).server.all_tokens()
    assert a_token(None, os.environ) == next(iter(tokens), None)


def test_below_a_path_the_dashboard_is_not_said_to_be_at_the_servers_own_port(
    tmp_path: Path,
) -> None:
    url, file = "http://127.0.0.1:1", tmp_path / "ferryman.toml"
    file.write_text('[server]\npublic_url = "/ferry"\n')
    below = {"FERRYMAN_SERVER__PUBLIC_URL": "/ferry"}
    for config, environ in ((file, {}), (None, below)):
        for address, path in (("/", "/ferry/"), ("/ferry/login?code=x", "/ferry/login?code=x")):
            found = behind_proxy(url + address, url, config, environ)
            assert found == f"at the address of your proxy, {path}"
    assert behind_proxy("https://jobs.example.org/ferry/login?code=x", url, file, {}) == ""
    assert behind_proxy(f"{url}/login?code=x", url, None, {}) == ""


def test_nothing_is_opened_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def show(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not open_page("http://a/")
    monkeypatch.setenv("DISPLAY", ":0")
    assert open_page("http://b/")
    assert opened == ["http://b/"]
    monkeypatch.setattr("sys.platform", "darwin")
    assert has_browser({})


def test_the_first_commands_show_a_token_where_the_server_asks_for_one() -> None:
    for asks in (False, True):
        lines = welcome("http://x", "example", Path("/data"), "http://x/", asks=asks)
        calls = [line for line in lines if "curl" in line]
        assert [("Bearer $FERRYMAN_TOKEN" in line) for line in calls] == [asks, asks]
