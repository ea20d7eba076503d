"""Every page at three widths in both themes: it fits, everybody can use it, and its picture.

``make pictures`` keeps the pictures in ``docs/pictures``; otherwise they go to a temporary folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.domain.access import Area
from server.web.routes import ROUTES
from tests.support.browser import WIDTHS, Visitor, too_wide, violations
from tests.support.research_group import ResearchGroup, research_group

pytestmark = pytest.mark.slow
PICTURES = os.environ.get("PICTURES")
"""Folder to keep them in."""
HEIGHTS = {390: 844, 1024: 768, 1600: 1000}

PAGES = {
    "login": "/login",
    "upload": "/new",
    "jobs": "/jobs",
    "jobs-none": "/jobs?tag=nobody-has-it",
    "job-queued": "/jobs/{queued}",
    "job-running": "/jobs/{running}",
    "job-completed": "/jobs/{contacts}",
    "job-failed": "/jobs/{failed}",
    "job-array": "/jobs/{array}",
    "children": "/jobs/{array}/children",
    "attempts": "/jobs/{retried}/attempts",
    "events": "/jobs/{retried}/events",
    "log": "/jobs/{running}/log",
    "files": "/jobs/{contacts}/files",
    "files-running": "/jobs/{running}/files",
    "file-table": "/jobs/{contacts}/files/contacts.csv",
    "file-picture": "/jobs/{picture}/files/mandelbrot.png",
    "file-text": "/jobs/{contacts}/files/helices.pdb",
    "schedules": "/schedules",
    "status": "/status",
    "charts": "/charts",
    "agents": "/agents",
    "agent": "/agents/local",
    "services": "/services",
    "service": "/services/docking",
    "users": "/users",
    "user": "/users/ana",
    "dead-letters": "/dead-letters",
    "webhooks": "/webhooks",
    "tokens": "/tokens",
    "audit": "/audit",
    "account": "/account",
    "not-found": "/jobs/123456",
}
"""What a picture is called -> the page."""
NOBODY = frozenset({"login"})
"""Shown to who is not logged in."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResearchGroup]:
    with research_group(tmp_path_factory.mktemp("group")) as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(PICTURES) if PICTURES else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_everybody_can_use_it(group, visit, pictures, width, dark):
    theme = "dark" if dark else "light"
    screen = {"width": width, "height": HEIGHTS[width], "dark": dark}
    operator = visit(group.system.url, token=group.tokens["operator"], **screen, may_complain=True)
    nobody = visit(group.system.url, **screen)
    wrong: dict[str, list[str]] = {}
    for name, path in PAGES.items():
        person: Visitor = nobody if name in NOBODY else operator
        page = person.open(path.format(**group.jobs))
        page.wait_for_load_state("networkidle") if name == "charts" else None
        found = violations(page) + ["too wide"] * too_wide(page)
        page.screenshot(path=pictures / f"{name}-{width}-{theme}.png", full_page=width > 390)
        if found:
            wrong[name] = found
        page.close()
    assert wrong == {}
    # The browser itself reports answers such as the 404 that was asked for.
    assert [one for one in operator.problems if "Failed to load resource" not in one] == []


def test_every_page_has_a_picture():
    shown = {path.partition("?")[0] for path in PAGES.values()}
    for route in ROUTES:
        if route.method != "GET" or route.path.startswith(("/assets/", "/live")):
            continue
        if route.area is Area.OPEN and route.path != "/login":
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
