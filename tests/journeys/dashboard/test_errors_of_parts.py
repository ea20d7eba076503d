"""What an open page does when the requests of its live parts fail."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from ferryman import SyncClient
from tests.journeys.dashboard.test_job import submit

PROXY = "<html><head><title>502 Bad Gateway</title></head><body><h1>502</h1></body></html>"


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/{id}/log",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("/agents", "/jobs/{id}")),
    ],
)
def test_a_page_stays_as_it_is_while_a_proxy_answers_for_the_server(system, visit, path):
    job_id = submit(system, "sleep 60")
    address = path.format(id=job_id)
    page = visit(system.url, may_complain=True).open(address)
    title, heading = page.title(), page.locator("h1").inner_text()
    everything = re.compile(rf".*(/live.*|{re.escape(address)}(\?.*)?)$")
    page.route(
        everything, lambda asked: asked.fulfill(status=502, body=PROXY, content_type="text/html")
    )
    # As a lost connection does: what listens has to begin again.
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")
    expect(page.locator("#connection")).to_contain_text("an error (502)")
    assert (page.title(), page.locator("h1").inner_text()) == (title, heading)
    page.unroute(everything)
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live'))")
    expect(page.locator("#connection")).to_contain_text("Connected again")
    with SyncClient(system.url, user="ada") as client:
        client.cancel(job_id)


@pytest.mark.slow
def test_a_page_of_what_is_gone_says_so(system, visit):
    person = visit(system.url, may_complain=True)
    gone = person.open("/services/none").content()
    page = person.open("/services/example")
    page.route("**/services/example", lambda asked: asked.fulfill(status=404, body=gone))
    expect(page.get_by_role("heading", name="There is nothing here")).to_be_visible()
