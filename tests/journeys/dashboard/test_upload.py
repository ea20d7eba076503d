"""Uploads from the page, in a browser, to a real server with a real agent."""

import json
import re
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.journeys.browser import Visitor, violations
from tests.journeys.dashboard.cut_proxy import cuttable

RUN = "#!/bin/sh\nls > names.txt\n"
LARGE = 24 << 20
DROP = """([files]) => {
  const transfer = new DataTransfer();
  for (const [name, text] of files) transfer.items.add(new File([text], name));
  const zone = document.getElementById("drop");
  const options = {dataTransfer: transfer, bubbles: true, cancelable: true};
  for (const kind of ["dragover", "drop"]) zone.dispatchEvent(new DragEvent(kind, options));
}"""


@pytest.fixture
def user() -> str:
    """One for each test: the system is one for all of them."""
    return f"u-{uuid.uuid4().hex[:8]}"


def jobs_of(url: str, user: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/jobs?user={user}") as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())["items"]
        return found


def job_of(page: Page) -> int:
    """Whose page was opened."""
    page.wait_for_url(re.compile(r"/jobs/\d+"))
    return int(page.url.rpartition("/")[2])


def completed(page: Page) -> bool:
    """Whether the job whose page was opened completes."""
    base = page.url.rpartition("/jobs/")[0]
    with urllib.request.urlopen(f"{base}/download/{job_of(page)}?wait=20") as answer:
        return bool(answer.headers["Content-Type"] == "application/zip")


def opened(person: Visitor, user: str) -> Page:
    page = person.open("/new")
    page.get_by_label("User").fill(user)
    return page


def send(page: Page) -> None:
    page.get_by_role("button", name="Upload and queue").click()


def large(folder: Path) -> list[Path]:
    (folder / "run.sh").write_text(RUN)
    with (folder / "large.bin").open("wb") as out:
        out.truncate(LARGE)
    return [folder / "run.sh", folder / "large.bin"]


def test_dropped_files_become_a_job(system, visit, user):
    page = opened(visit(system.url), user)
    page.evaluate(DROP, [[["data.txt", "12345"]]])
    expect(page.locator("#warning")).to_contain_text("There is no run.sh")
    page.evaluate(DROP, [[["run.sh", RUN], ["odd <b>name</b>.txt", ""]]])
    expect(page.locator("#total")).to_contain_text("3 files")
    expect(page.locator("#warning")).to_be_hidden()
    page.get_by_role("button", name="Remove odd <b>name</b>.txt").click()
    expect(page.locator("#total")).to_contain_text("2 files")
    page.get_by_label("Time limit").fill("5h")
    page.get_by_label("Tags", exact=True).fill("dropped")
    expect(page.locator("#c-timeout")).to_contain_text("service example allows 1h")
    send(page)
    job_id = job_of(page)
    (job,) = jobs_of(system.url, user)
    assert (job["id"], job["tags"]) == (job_id, ["dropped"])
    assert "allows 1h" in job["warnings"][0]


@pytest.mark.slow
def test_a_folder_is_sent_without_what_nobody_means_to_send(system, visit, user, tmp_path):
    folder = tmp_path / "project"
    for name, text in {
        "run.sh": RUN,
        "data/x.csv": "1,2",
        ".git/config": "",
        "job-7.zip": "",
        "old/ferryman.json": '{"format": 1, "job": 1, "attempt": 1}',
        "old/stdout.log": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    page = opened(visit(system.url), user)
    page.get_by_label("A folder").set_input_files(folder)
    expect(page.locator("#total")).to_contain_text("2 files")
    expect(page.locator("#left-out")).to_contain_text("Left out, 4 files:")
    assert page.locator(".file-name").all_text_contents() == ["run.sh", "data/x.csv"]
    send(page)
    job_of(page)
    assert completed(page)


@pytest.mark.slow
def test_a_run_sh_is_written_in_the_page_with_the_keyboard_alone(system, visit, user):
    page = opened(visit(system.url), user)
    page.locator("#written > summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Begin with an example").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.type("echo written > here.txt\n")
    page.get_by_role("button", name="Upload and queue").focus()
    page.keyboard.press("Enter")
    job_of(page)
    assert completed(page)


def test_what_the_server_refuses_stands_beside_its_field(system, visit, user):
    page = opened(visit(system.url, may_complain=True), user)
    page.evaluate(DROP, [[["run.sh", RUN]]])
    page.get_by_label("Memory").fill("lots")
    send(page)
    expect(page.locator("#e-memory")).to_contain_text("is not a size")
    expect(page.get_by_label("Memory")).to_be_focused()
    page.get_by_label("Memory").fill("")
    page.get_by_label("Memory").blur()
    expect(page.locator("#e-memory")).to_be_hidden()
    page.locator("summary", has_text="When it starts").click()
    page.get_by_label("After jobs").fill("999999")
    send(page)  # only the whole upload shows that there is no such job
    expect(page.locator("#e-after")).to_contain_text("999999")
    expect(page.get_by_label("After jobs")).to_be_focused()
    expect(page.locator("#total")).to_contain_text("1 file")
    assert violations(page) == []
    page.get_by_label("After jobs").fill("")
    send(page)
    job_of(page)
    assert len(jobs_of(system.url, user)) == 1


def test_a_cancelled_upload_makes_no_job_and_a_broken_one_no_second(system, visit, user, tmp_path):
    with cuttable(system.url) as way:
        page = opened(visit(way.url, may_complain=True), user)
        page.locator("#f-file").set_input_files(large(tmp_path))
        expect(page.locator("#total")).to_contain_text("2 files")
        way.most = 4 << 20
        send(page)
        assert way.stopped.wait(20)
        page.get_by_role("button", name="Cancel the upload").click()
        expect(page.locator("#problem")).to_contain_text("was cancelled")
        expect(page.locator("#total")).to_contain_text("2 files")
        assert jobs_of(system.url, user) == []
        way.stopped.clear()
        send(page)
        assert way.stopped.wait(20)
        expect(page.locator("#sending-rate")).to_contain_text("MiB of")
        assert violations(page) == []
        way.most, way.down = None, True
        way.cut()
        expect(page.locator("#sending-said")).to_contain_text("The server cannot be reached")
        way.down = False
        page.get_by_role("button", name="Try now").click()
        job_of(page)
    assert len(jobs_of(system.url, user)) == 1


@pytest.mark.slow
def test_a_job_is_run_again_with_changes(system, visit, user):
    page = opened(visit(system.url), user)
    page.evaluate(DROP, [[["run.sh", "cat data.txt"], ["data.txt", "1"]]])
    send(page)
    first = job_of(page)
    page.goto(f"{system.url}/new?from={first}")
    assert page.locator("#f-script").input_value() == "cat data.txt"
    page.locator("#f-script").fill("cat data.txt data.txt")
    send(page)
    page.wait_for_url(re.compile(rf"/jobs/(?!{first}\b)\d+"))
    assert completed(page)
