"""What ``ferryman dev`` and ``ferryman dashboard`` open, and what with."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from ferryman.dev import has_browser, open_page, welcome


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
