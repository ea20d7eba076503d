"""Pages in a real browser: what all have in common, logging in, operators' pages, charts, a path
before them, and what an open page does when its live parts fail.
"""

import asyncio
import re
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import expect

from ferryman import SyncClient
from shared.clock import RealClock
from tests.journeys.dashboard.conftest import TOKEN, submit
from tests.kit.dev_program import DevProgram, started
from tests.kit.path_proxy import PREFIX, proxied
from tests.server.past_week import write_past_week


def test_the_keyboard_alone_reaches_the_content(system, visit):
    page = visit(system.url).open("/jobs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


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
    page.get_by_role("button", name="Log out").first.click()
    page.get_by_text("You have logged out").wait_for()
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


def test_an_agent_is_drained_and_resumed(system, visit):
    person = visit(system.url)
    page, status = person.open("/agents/local"), person.open("/status")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_label("Drain: why").fill("new disk")
    page.get_by_role("button", name="Drain").click()
    page.get_by_text("Agent local: it gets no new jobs now.").wait_for()
    status.get_by_text("It works, but something should be looked at.").wait_for()  # by itself
    status.get_by_text("new disk").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Local: it is used again.").wait_for()
    status.get_by_text("Everything is all right").wait_for()


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
    with SyncClient(system.url, user="ada") as client:  # once it runs its page changes no more
        next(event for event in client.events(job_id) if event.status == "Running")
    address = path.format(id=job_id)
    page = visit(system.url, may_complain=True).open(address)
    title, heading = page.title(), page.locator("h1").inner_text()
    everything = re.compile(rf".*(/live.*|{re.escape(address)}(\?.*)?)$")
    answer: dict[str, Any] = {"status": 502, "body": PROXY, "content_type": "text/html"}
    page.route(everything, lambda asked: asked.fulfill(**answer))
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


_DRAWN = "#charts[data-drawn]"


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
    """A server with the statistics of a week."""
    folder = tmp_path_factory.mktemp("past")
    path = folder / "data" / "server" / "ferryman.sqlite"
    path.parent.mkdir(parents=True)
    with ThreadPoolExecutor() as pool:  # playwright has the loop of this thread
        pool.submit(lambda: asyncio.run(write_past_week(path, RealClock().now()))).result()
    with started(folder) as running:
        yield running


def test_the_pointer_shows_the_numbers_of_the_table(past, visit):
    page = visit(past.url).open("/charts?period=week")
    page.wait_for_selector(_DRAWN)
    legend = page.locator("#chart-ended .u-legend .u-value")
    # Of the latest time, until there is a pointer.
    newest = page.locator("#chart-ended .table tbody tr").first.locator("td")
    assert legend.nth(0).text_content() == "latest"
    assert legend.all_text_contents()[1:] == newest.all_text_contents()
    page.locator("#chart-ended .u-over").hover(position={"x": 1, "y": 40})
    oldest = page.locator("#chart-ended .table tbody tr").last
    assert legend.nth(0).text_content() == oldest.locator("th").text_content()
    assert legend.all_text_contents()[1:] == oldest.locator("td").all_text_contents()
    other = page.locator("#chart-jobs .u-legend .u-value").first
    assert other.text_content() == legend.nth(0).text_content()


@pytest.mark.slow
def test_charts_follow_the_theme_and_the_time(past, visit):
    person = visit(past.url)
    page = person.open("/charts?period=week")
    page.wait_for_selector(_DRAWN)
    draw = "document.querySelector('#chart-jobs canvas').toDataURL()"
    light = page.evaluate(draw)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"before => {draw} !== before", arg=light)
    person.context.clock.install()
    page = person.open("/charts")
    page.wait_for_selector(_DRAWN)
    page.get_by_text("Numbers").first.click()
    page.evaluate("document.querySelector('#chart-jobs .table tbody tr').remove()")
    page.evaluate("document.querySelector('#chart-jobs canvas').dataset.old = ''")
    before = page.locator("#chart-jobs .table tbody tr").count()
    page.clock.fast_forward(61_000)
    page.wait_for_selector("#chart-jobs canvas:not([data-old])")
    assert page.locator("#chart-jobs .table tbody tr").count() > before
    # A table that was open stays open, and the others closed.
    assert page.locator("#chart-jobs .table").is_visible()
    assert not page.locator("#chart-ended .table").is_visible()


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
    given: dict[str, Any] = {"FERRYMAN_SERVER__PUBLIC_URL": PREFIX}
    given |= {"FERRYMAN_SERVER__TOKENS": TOKEN}
    with started(tmp_path, **given) as system, proxied(system.url) as base:
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
