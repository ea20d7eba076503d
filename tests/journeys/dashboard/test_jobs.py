"""The list of jobs in a real browser, with a real agent."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Page, expect

from tests.bench.store import fill
from tests.journeys.browser import PATIENCE_MS, too_wide, violations
from tests.journeys.dashboard.conftest import submit
from tests.kit.dev_program import DevProgram, started

expect.set_options(timeout=PATIENCE_MS)
MANY = 150
WAITS = """\
until [ -e go ] || [ "$((waited += 1))" -gt 20 ]; do
    echo "::progress value=$waited,total=20::step $waited"; sleep 0.1
done
"""
IN_VIEW = """() => [...document.querySelectorAll("tr[data-id]")].filter((row) => {
    const box = row.getBoundingClientRect();
    return box.top >= 100 && box.bottom <= innerHeight;
}).map((row) => Number(row.dataset.id))"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
    """A system that has had many jobs."""
    folder = tmp_path_factory.mktemp("filled")
    path = folder / "data" / "server" / "ferryman.sqlite"
    with ThreadPoolExecutor(1) as thread:  # playwright has a loop in this one
        thread.submit(lambda: asyncio.run(fill(path, MANY, "Completed"))).result()
    with started(folder) as running:
        yield running


def until(page: Page, condition: str) -> None:
    """Playwright's own waiting for a condition needs eval(), which the policy forbids."""
    wait = "new Promise((done) => setTimeout(done, 20))"
    page.evaluate(f"async () => {{ while (!({condition})) await {wait}; }}")


def test_rows_change_in_two_tabs_while_a_job_runs(system, visit):
    kept = submit(system, "true", name="kept")
    person = visit(system.url)
    page, other = person.open("/jobs"), person.open("/jobs?state=Completed")
    expect(page.locator(f"#job-{kept} .state")).to_have_text(re.compile("Completed"))
    page.bring_to_front()
    page.locator(f"#job-{kept} input").check()
    page.evaluate("window.same = true")
    job_id = submit(system, WAITS, name="<b>runs</b>", tags=["<i>tag</i>"])
    row = page.locator(f"#job-{job_id}")
    expect(row.locator(".state")).to_have_text(re.compile("Running"))
    expect(row.locator("progress")).to_be_visible()
    row.get_by_role("link", name=str(job_id)).focus()
    expect(row.locator(".state")).to_have_text(re.compile("Completed"))
    expect(row.locator("progress")).to_have_count(0)
    assert row.locator("b, i").count() == 0
    assert page.evaluate("document.activeElement.textContent") == str(job_id)
    expect(page.locator(f"#job-{kept} input")).to_be_checked()
    expect(page.locator("#selected")).to_have_text("1 chosen")
    assert page.evaluate("window.same")  # nobody loaded it again
    other.bring_to_front()
    expect(other.locator(f"#job-{job_id}")).to_be_visible()

    page.bring_to_front()
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("heading", name="Delete 1 job?")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Delete 1 job").click()
    expect(page.locator(".notice")).to_contain_text("1 job deleted")
    expect(page.locator(f"#job-{kept}")).to_have_count(0)
    other.bring_to_front()
    submit(system, "true")  # something happens
    expect(other.locator(f"#job-{kept}")).to_have_count(0)


@pytest.mark.slow
def test_the_list_follows_what_is_typed(system, visit):
    wanted, other = (submit(system, "true", name=name) for name in ("wanted one", "another"))
    person = visit(system.url)
    page = person.open("/jobs")
    expect(page.locator(f"#job-{other}")).to_be_visible()
    page.get_by_label("Search").press_sequentially("WANTED")
    expect(page.locator(f"#job-{other}")).to_have_count(0)
    expect(page.locator(f"#job-{wanted}")).to_be_visible()
    expect(page).to_have_url(f"{system.url}/jobs?text=WANTED")
    assert page.evaluate("document.activeElement.name") == "text"
    since = page.get_by_label("Uploaded since")
    since.fill("never")
    expect(page.locator("#problem")).to_contain_text("is not a time")
    expect(since).to_have_attribute("aria-invalid", "true")
    expect(since).to_have_accessible_description(re.compile("is not a time"))
    since.fill("1h")
    expect(page.locator(f"#job-{wanted}")).to_be_visible()
    expect(page.locator("#problem")).to_be_hidden()
    assert since.get_attribute("aria-invalid") is None
    person.problems.clear()  # the browser reports the 400


@pytest.mark.slow
def test_a_batch_is_one_row_that_follows_its_children(system, visit):
    # One ends at once, the others when a slow machine has shown that, too.
    script = "[ $FERRYMAN_ARRAY_INDEX = 0 ] || sleep 12"
    parent = submit(system, script, array="0-2", name="scan")
    page = visit(system.url, width=390).open("/jobs")
    row, child = page.locator(f"#job-{parent}"), page.locator(f"#job-{parent + 1}")
    for count in (1, 3):  # while it is looked at
        expect(row).to_contain_text(f"{count} completed")
    expect(row.locator(".state")).to_have_text(re.compile("Completed"))
    expect(child).to_have_count(0)
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Children, too").check()
    expect(child).to_be_visible()
    expect(page).to_have_url(f"{system.url}/jobs?children=true")
    assert violations(page) == []
    assert not too_wide(page)
    page.get_by_label("Children, too").uncheck()
    expect(child).to_have_count(0)
    row.get_by_role("link", name="3 children").click()
    expect(child).to_be_visible()
    expect(row).to_have_count(0)


@pytest.mark.slow
def test_new_jobs_are_announced_to_whoever_reads_further_down(filled, visit):
    page = visit(filled.url).open("/jobs")
    page.locator("tbody .tick input").first.check()
    page.mouse.wheel(0, 1_500)
    until(page, "scrollY > 1000")
    before = page.evaluate(IN_VIEW)
    job_id = submit(filled, "true")
    button = page.get_by_role("button", name="1 new job")
    expect(button).to_be_visible()
    assert page.evaluate(IN_VIEW) == before
    button.click()
    expect(page.locator(f"#job-{job_id}")).to_be_in_viewport()
    expect(button).to_be_hidden()
    rows = page.locator("tr[data-id]").evaluate_all("rows => rows.map((row) => +row.dataset.id)")
    assert rows == list(range(job_id, job_id - 50, -1))
    expect(page.locator("#selected")).to_have_text("1 chosen")
