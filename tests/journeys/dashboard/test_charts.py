"""Charts in a real browser: drawn from their tables, in both themes, and tables without scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.clock import RealClock
from tests.kit.dev_program import DevProgram, started
from tests.kit.past_week import write_past_week

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
def test_charts_follow_the_theme(past, visit):
    page = visit(past.url).open("/charts?period=week")
    page.wait_for_selector(_DRAWN)
    draw = "document.querySelector('#chart-jobs canvas').toDataURL()"
    light = page.evaluate(draw)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"before => {draw} !== before", arg=light)


@pytest.mark.slow
def test_a_page_that_stays_open_shows_the_next_minute(past, visit):
    person = visit(past.url)
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
