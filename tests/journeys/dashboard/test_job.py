"""The page of a job in a real browser, with a real agent."""

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ferryman import SyncClient
from tests.journeys.browser import PATIENCE_MS
from tests.journeys.dashboard.conftest import submit
from tests.kit.dev_program import launch, pid_of, ready

expect.set_options(timeout=PATIENCE_MS)
LONG = "echo '::progress value=1,total=9::under way'; sleep 300"


def test_a_job_runs_to_its_end_while_its_page_is_open(system, visit):
    job_id = submit(system, "sleep 1; echo '::progress value=1,total=2::half'; sleep 299 || true")
    page = visit(system.url).open(f"/jobs/{job_id}")
    page.evaluate("window.same = true")
    page.get_by_text("Exact times").click()
    expect(page.locator("#job-head [role=status]")).to_have_text("half")
    expect(page.get_by_role("row", name=re.compile("^Running"))).to_be_visible()  # still open
    expect(page.get_by_role("progressbar", name="Progress")).to_have_attribute("value", "1.0")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    os.kill(pid_of(system, "299"), signal.SIGTERM)
    expect(page.locator("h1 .state")).to_have_text("Completed")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.get_by_role("button", name="Delete")).to_be_visible()
    expect(page.get_by_text("Exit code", exact=True)).to_be_visible()
    assert page.title() == f"Job {job_id}: Completed · Ferryman"
    assert page.evaluate("window.same"), "it was not loaded again"
    page.get_by_role("button", name="Run again with changes").press("Space")
    page.wait_for_url(f"**/new?from={job_id}")
    page.go_back()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download all").click()
    assert Path(download.value.path()).read_bytes()[:2] == b"PK"


@pytest.mark.slow
def test_what_happens_before_the_page_listens_is_shown(system, visit):
    job_id = submit(system, LONG)
    person = visit(system.url)

    def cancelled_first(route):
        with SyncClient(system.url, user="ada") as client:
            client.cancel(job_id)
        route.continue_()

    person.context.route("**/live/*", cancelled_first)
    page = person.open(f"/jobs/{job_id}")
    expect(page.locator("h1 .state")).to_have_text("Cancelled")


def test_a_running_job_is_cancelled_from_its_page_by_who_says_yes(system, visit):
    job_id = submit(system, LONG)
    page = visit(system.url).open(f"/jobs/{job_id}")
    expect(page.locator("h1 .state")).to_have_text("Running")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("is being cancelled")).to_have_count(0)
    with SyncClient(system.url, user="ada") as client:
        assert client.status(job_id).cancel_requested_at is None
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1 .state")).to_have_text("Cancelled")
    assert "/jobs/" in page.url
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/jobs?done=deleted")
    expect(page.locator(".notice")).to_be_focused()  # that is where who uses the keyboard goes on


@pytest.mark.slow
def test_an_array_is_a_grid_that_fills_while_it_is_open(system, visit):
    job_id = submit(system, "sleep 0.2; test $FERRYMAN_ARRAY_INDEX != 3", array="1-6")
    page = visit(system.url).open(f"/jobs/{job_id}/children")
    expect(page.locator(".grid a")).to_have_count(6)
    expect(page.locator(".grid a[data-state=Completed]")).to_have_count(5)
    expect(page.locator(".grid a[data-state=Failed]")).to_have_count(1)


@pytest.mark.slow
def test_a_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(tmp_path, visit):
    flags = ("--agent-port", "0", "--data-dir", str(tmp_path / "data"), "--port")
    system = ready(launch(tmp_path, *flags, "0"))
    try:
        job_id = submit(system, "sleep 300")
        page = visit(system.url, may_complain=True).open(f"/jobs/{job_id}")
        expect(page.locator("h1 .state")).to_have_text("Running")
        system.stop()
        expect(page.locator("#connection")).to_contain_text("cannot be reached")
        port = system.url.rpartition(":")[2]
        system = ready(launch(tmp_path, *flags, port))
        expect(page.locator("#connection")).to_contain_text("Connected again")
        with SyncClient(system.url, user="ada") as client:
            client.cancel(job_id)
        expect(page.locator("h1 .state")).to_have_text("Cancelled")
    finally:
        if system.process.poll() is None:
            system.stop()
