"""The log of a job in a browser, while it runs and afterwards."""

import re

import pytest

from ferryman import SyncClient
from tests.journeys.dashboard.conftest import submit
from tests.kit.dev_program import DevProgram

_RUNS = "seq -f 'warm-up %g' 2000; for i in $(seq 100); do echo tick $i; sleep 0.1; done; exit 3"
_ENDS = r"""
seq -f 'step %g' 3000
printf '\033[1;31mred\033[0m \033[44mground\033[0m <script>alert(1)</script>\n::warning::hot\n'
echo 'A Needle'
seq -f 'more %g' 3000
echo 'another needle'; echo 'trouble' >&2
"""
_FOCUSED = "document.activeElement.parentElement.id"
_NUMBERS = "[...document.querySelectorAll('.row')].map(row => row.id)"


@pytest.fixture(scope="module")
def log(system: DevProgram) -> str:
    """Path of the log of a job that has ended."""
    job_id = submit(system, _ENDS)
    with SyncClient(system.url, user="ada") as client:
        client.wait(job_id)
    return f"/jobs/{job_id}/log"


def test_a_log_is_followed_until_its_end(system, visit):
    page = visit(system.url).open(f"/jobs/{submit(system, _RUNS)}/log")
    page.get_by_text(re.compile(r"^tick \d+$")).last.wait_for()
    follow, jump = page.get_by_label("Follow"), page.get_by_role("button", name="Jump to the end")
    assert follow.is_checked()
    page.locator("#log").hover()
    page.mouse.wheel(0, -2000)
    jump.wait_for()
    assert not follow.is_checked()
    jump.click()
    assert follow.is_checked()
    page.get_by_text("End of the log. Attempt 1: Failed, exit code 3").wait_for()
    numbers = page.evaluate(_NUMBERS)
    assert numbers == [f"L{n}" for n in range(2101 - len(numbers), 2101)]
    assert page.locator(".row").last.inner_text().split() == ["2100", "tick", "100"]
    assert page.locator(".row").last.is_visible()


@pytest.mark.slow
def test_a_search_leads_from_line_to_line_and_a_link_to_one(system, visit, log):
    person = visit(system.url)
    page = person.open(log)
    page.get_by_placeholder("Search the log").fill("needle")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="2 lines with “needle”").wait_for()
    assert page.locator(".row.chosen").get_attribute("id") == "L3003"
    page.locator("#log").focus()
    page.keyboard.press("n")
    page.locator("#L6004.chosen").wait_for()
    page.goto(system.url + log)
    page.get_by_role("link", name="6000", exact=True).click()
    page.get_by_role("link", name="6002", exact=True).click(modifiers=["Shift"])
    address = page.url
    assert address.endswith("line=6000#L6000-L6002")
    other = person.open(address.removeprefix(system.url))
    assert other.locator(".row.chosen").count() == 3
    other = person.open(f"{log}#L20")  # far from the end, which is what the page shows
    other.wait_for_url(re.compile(r"line=20#L20$"))
    assert other.locator(".row.chosen .t").inner_text() == "step 20"


@pytest.mark.slow
def test_the_keyboard_alone_marks_lines_and_copies_a_link(system, visit, log):
    person = visit(system.url)
    person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = person.open(log)
    for line in (20, 25):  # from the server, and in the page
        page.get_by_label("Line", exact=True).fill(str(line))
        page.keyboard.press("Enter")
        page.locator(f"#L{line}.chosen").wait_for()
        assert page.evaluate(_FOCUSED) == f"L{line}"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    assert page.evaluate(_FOCUSED) == "L26"
    page.get_by_role("button", name="Copy link").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("&line=24#L24-L26")
    other = person.open(copied.removeprefix(system.url))
    assert other.locator(".row.chosen").count() == 3
    page.get_by_label("Line", exact=True).fill("7000")
    page.keyboard.press("Enter")
    page.get_by_text("There is no line 7,000.").wait_for()
