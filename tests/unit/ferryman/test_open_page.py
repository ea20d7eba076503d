"""What ``ferryman dev`` and ``ferryman dashboard`` open, and what with."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from ferryman.dev import a_token, welcome
from ferryman.open_page import has_browser, open_page

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
