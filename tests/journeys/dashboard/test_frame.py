"""What all pages have in common."""

from __future__ import annotations

import pytest

from tests.kit.browser import WIDTHS, too_wide, violations

MAIN = ("/jobs", "/jobs/999", "/new", "/status", "/services", "/agents", "/users", "/charts")
"""All others are looked at by test_looks.py."""


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_fits_every_screen_and_everybody_can_use_it(system, visit, dark, width):
    person = visit(system.url, width=width, dark=dark)
    for path in MAIN if width == WIDTHS[0] else MAIN[:2]:
        page = person.open(path)
        assert not too_wide(page)
        assert violations(page) == []
    person.problems.clear()  # the browser reports the 404


def test_the_keyboard_alone_reaches_the_content(system, visit):
    page = visit(system.url).open("/jobs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
