"""Logging in and out with a real browser, and the pages of tokens and of the trail."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ferryman import SyncClient
from tests.kit.dev_program import DevProgram, started

TOKEN = "the-token-of-the-operator"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
    """A system that asks for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    with started(folder, FERRYMAN_SERVER__TOKENS=TOKEN) as running:
        yield running


def test_a_login_leads_back_and_a_logout_ends_it(guarded, visit):
    person = visit(guarded.url, may_complain=True)  # the browser reports the 401
    page = person.open("/jobs?state=Failed")
    assert page.url == f"{guarded.url}/login?next=%2Fjobs%3Fstate%3DFailed"
    assert page.evaluate("document.activeElement.id") == "token"
    page.keyboard.type("wrong-token")
    page.keyboard.press("Enter")
    page.get_by_text("This token is not good").wait_for()
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{guarded.url}/jobs?state=Failed")
    other = visit(guarded.url, may_complain=True)
    other.log_in(TOKEN)
    page.get_by_role("button", name="Log out").first.click()
    page.get_by_text("You have logged out").wait_for()
    assert other.open("/jobs").url.startswith(f"{guarded.url}/login")
    page.go_back()
    page.wait_for_url(re.compile("/login"))  # nothing is kept to be looked at again


@pytest.mark.slow
def test_an_upload_whose_session_has_ended_goes_on_after_a_login(guarded, visit):
    person = visit(guarded.url, may_complain=True)  # the browser reports the 401
    person.log_in(TOKEN)
    page = person.open("/new")
    page.get_by_label("User").fill("ann")
    files = {"name": "run.sh", "mimeType": "text/plain", "buffer": b"true"}
    page.locator("#f-file").set_input_files(files)
    ending = visit(guarded.url)
    ending.log_in(TOKEN)
    other = ending.open("/account")
    other.get_by_role("button", name="Log out").first.click()
    other.get_by_text("You have logged out").wait_for()
    page.get_by_label("Tags", exact=True).fill("late")
    page.keyboard.press("Tab")
    problem = page.locator("#problem")
    problem.get_by_text("Your session has ended.").wait_for()
    page.get_by_role("button", name="Upload and queue").click()
    with person.context.expect_page() as opened:
        problem.get_by_role("link", name="Log in").click()
    opened.value.get_by_label("Token").fill(TOKEN)
    opened.value.keyboard.press("Enter")
    opened.value.wait_for_url(f"{guarded.url}/new")
    page.get_by_role("button", name="Upload and queue").click()
    page.wait_for_url(re.compile(r"/jobs/\d+"))
    with SyncClient(guarded.url, token=TOKEN) as client:
        assert client.status(int(page.url.rpartition("/")[2])).tags == ["late"]


@pytest.mark.slow
def test_ferryman_dev_prints_a_link_that_logs_in(tmp_path, visit):
    with started(tmp_path, FERRYMAN_SERVER__TOKENS=TOKEN) as running:
        assert running.process.stdout is not None
        lines = [running.process.stdout.readline() for _ in range(2)]
        found = re.search(r"dashboard: (\S+)", lines[1])
        assert found
        person = visit(running.url)
        page = person.open(found[1].removeprefix(running.url))
        page.get_by_role("button", name="Log in as token-1").click()
        page.wait_for_url(f"{running.url}/jobs")
        page.close()
