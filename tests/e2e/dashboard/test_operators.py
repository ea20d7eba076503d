"""The pages for operators, in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Dialog

from tests.kit.browser import too_wide, violations

PAGES = (
    "/agents",
    "/agents/local",
    "/services",
    "/services/example",
    "/users",
    "/users/ada",
    "/status",
)


@pytest.mark.slow  # test_frame.py asks the same of some pages
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1600])
def test_each_page_fits_and_everybody_can_use_it(system, visit, dark, width):
    person = visit(system.url, width=width, dark=dark)
    for path in PAGES:
        page = person.open(path)
        assert not too_wide(page), path
        assert violations(page) == [], path
        page.close()


def test_an_agent_is_drained_and_resumed(system, visit):
    person = visit(system.url)
    page, status = person.open("/agents/local"), person.open("/status")
    asked: list[str] = []

    def accept(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.on("dialog", accept)
    page.get_by_label("Drain: why").fill("new disk")
    page.get_by_role("button", name="Drain").click()
    page.get_by_text("Agent local: it gets no new jobs now.").wait_for()
    assert "It gets no new jobs." in asked[0]
    status.get_by_text("It works, but something should be looked at.").wait_for()  # by itself
    status.get_by_text("new disk").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Local: it is used again.").wait_for()
    status.get_by_text("Everything is all right").wait_for()


def test_a_service_is_paused_without_scripts_and_its_jobs_say_so(system, visit):
    operator = visit(system.url, scripts=False)
    page = operator.open("/services/example")
    page.get_by_label("Pause: why").fill("the license server is away")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Its queued jobs wait: the license server is away.").wait_for()
    upload = operator.context.request.post(
        f"{system.url}/upload",
        multipart={
            "user_id": "ada",
            "service": "example",
            "file": {"name": "run.sh", "mimeType": "text/plain", "buffer": b"echo hello\n"},
        },
    )
    job = operator.open(f"/jobs/{upload.json()['id']}")
    job.get_by_text("the license server is away").first.wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Service example: its jobs are sent again.").wait_for()
