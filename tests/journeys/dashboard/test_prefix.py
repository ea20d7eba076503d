"""The dashboard below a path, behind a proxy that takes the path away."""

from __future__ import annotations

import re
import zipfile

import pytest

from tests.kit.dev_program import started
from tests.kit.path_proxy import PREFIX, proxied

TOKEN = "an-operators-token"
NAMES = ("href", "src", "action", "hx-get", "data-live")
ADDRESSES = """names => [...document.querySelectorAll("*")]
  .flatMap(one => names.map(name => one.getAttribute(name))).filter(found => found)"""


def outside(page, base: str) -> list[str]:
    """Addresses in the page that lead elsewhere."""
    return [
        found
        for found in page.evaluate(ADDRESSES, NAMES)
        if not found.startswith((f"{PREFIX}/", f"{base}/", "#", "?"))
    ]


@pytest.mark.slow
def test_everything_stays_below_the_path(visit, tmp_path):
    with (
        started(
            tmp_path, FERRYMAN_SERVER__PUBLIC_URL=PREFIX, FERRYMAN_SERVER__TOKENS=TOKEN
        ) as system,
        proxied(system.url) as base,
    ):
        plain = visit(base, scripts=False)
        page = plain.log_in(TOKEN)
        assert page.url == f"{base}/jobs"
        page.get_by_role("link", name="Upload").first.click()
        assert page.url == f"{base}/new"
        page.get_by_label("User").fill("ada")
        (tmp_path / "run.sh").write_text("for i in 1 2 3; do echo tick $i; sleep 1; done")
        page.locator("#f-file").set_input_files(tmp_path / "run.sh")
        page.get_by_role("button", name="Upload and queue").click()
        page.wait_for_url(re.compile(r"/jobs/1\b"))
        assert outside(page, base) == []

        person = visit(base)
        asked: list[str] = []
        person.context.on("request", lambda request: asked.append(request.url))
        person.log_in(TOKEN)
        page = person.open("/jobs/1")
        page.evaluate("window.same = true")
        page.locator("#job-head").get_by_text("Completed").wait_for()
        assert page.evaluate("window.same")
        assert outside(page, base) == []
        page.get_by_role("link", name="Log", exact=True).first.click()
        page.get_by_text("tick 3", exact=True).wait_for()
        assert outside(page, base) == []
        page.goto(f"{base}/jobs/1")
        with page.expect_download() as begun:
            page.get_by_role("button", name="Download all").click()
        begun.value.save_as(tmp_path / "result.zip")
        assert zipfile.is_zipfile(tmp_path / "result.zip")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{base}/login**")
        assert outside(page, base) == []
        assert [one for one in asked if not one.startswith(f"{base}/")] == []
