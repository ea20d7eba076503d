"""Every page at three widths in both themes: it fits, and everybody can use it.

``make pictures`` renews those that the documentation shows.
"""

import gzip
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest

from tests.journeys.browser import WIDTHS, Visitor, picture, too_wide, violations
from tests.journeys.dashboard.research_group import ResearchGroup, research_group
from tests.kit.dev_program import ROOT
from tests.kit.pages import unopened

SHOWN = ROOT / "docs" / "pictures"
RENEW = bool(os.environ.get("PICTURES"))
HEIGHTS = {390: 844, 1024: 768, 1600: 1000}
PAGES: Final = {
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
    "tokens": "/tokens",
    "token": "/tokens/{token}",
    "audit": "/audit",
    "account": "/account",
    "not-found": "/jobs/123456",
}
"""What a picture of it is called -> the page."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResearchGroup]:
    with research_group(tmp_path_factory.mktemp("group")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_everybody_can_use_it(group, visit, width, dark):
    theme = "dark" if dark else "light"
    screen = {"width": width, "height": HEIGHTS[width], "dark": dark}
    operator = visit(group.system.url, token=group.tokens["operator"], **screen, may_complain=True)
    nobody = visit(group.system.url, **screen)
    wrong: dict[str, list[str]] = {}
    for name, path in PAGES.items():
        person: Visitor = nobody if name == "login" else operator
        page = person.open(path.format(**group.names))
        page.wait_for_load_state("networkidle") if name == "charts" else None
        found = violations(page) + ["too wide"] * too_wide(page)
        shown = SHOWN / f"{name}-{width}-{theme}.webp"
        if RENEW and shown.exists():
            shown.write_bytes(picture(page))
        if found:
            wrong[name] = found
        page.close()
    assert wrong == {}
    # The browser itself reports answers such as the 404 that was asked for.
    assert [one for one in operator.problems if "Failed to load resource" not in one] == []


@pytest.mark.slow
def test_no_page_weighs_more_than_100_kilobytes(group):
    assets: dict[str, int] = {}
    heavy = {}

    def get(address: str) -> bytes:
        headers = {"Accept": "text/html,application/xhtml+xml", "Accept-Encoding": "gzip"}
        headers["Authorization"] = f"Bearer {group.tokens['operator']}"
        request = urllib.request.Request(group.system.url + address, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.read()

    for name, path in PAGES.items():
        body = get(path.format(**group.names))
        text = gzip.decompress(body).decode() if body[:2] == b"\x1f\x8b" else body.decode()
        used = set(re.findall(r'(?:src|href)="(/assets/[^"]+)"', text))
        assets |= {one: len(get(one)) for one in used - assets.keys()}
        weight = len(body) + sum(assets[one] for one in used)
        if weight >= 100_000 or not used:
            heavy[name] = weight
    assert heavy == {}


def test_every_page_is_looked_at() -> None:
    assert unopened(PAGES.values()) == []
