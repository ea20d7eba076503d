"""The pictures in the documentation show the pages as they are now."""

from __future__ import annotations

import re

from server.web.routes import ROUTES
from tests.support.browser import WIDTHS
from tests.support.looks import MADE_FROM, NOT_PAGES, PAGES, PICTURES, ROOT, looks

SHOWN = re.compile(r"!\[([^\]]*)\]\(((?:docs/)?pictures/[^)]+)\)")


def test_every_page_has_a_picture_of_each_width_and_theme():
    wanted = {
        f"{name}-{width}-{theme}.webp"
        for name in PAGES
        for width in WIDTHS
        for theme in ("light", "dark")
    }
    assert {path.name for path in PICTURES.iterdir()} == wanted | {MADE_FROM}


def test_the_pictures_were_made_from_the_pages_as_they_are():
    assert (PICTURES / MADE_FROM).read_text().strip() == looks(), "run: make pictures"


def test_pictures_in_the_text_are_there_and_say_what_they_show():
    found = 0
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for words, path in SHOWN.findall(page.read_text()):
            assert (page.parent / path).is_file(), (page.name, path)
            assert len(words) >= 10, (page.name, path)
            found += 1
    assert found >= 10


def test_every_page_has_a_picture():
    shown = {path.partition("?")[0] for path in PAGES.values()}
    for route in ROUTES:
        if route.method != "GET" or route.path in NOT_PAGES:
            continue
        parts = route.path.split("/")
        assert any(_fits(parts, path.split("/")) for path in shown), route.path


def _fits(pattern: list[str], path: list[str]) -> bool:
    if pattern and pattern[-1] == "{path}":
        pattern, path = pattern[:-1], path[: len(pattern) - 1]
    return len(pattern) == len(path) and all(
        one == other or (one.startswith("{") and other != "")
        for one, other in zip(pattern, path, strict=True)
    )
