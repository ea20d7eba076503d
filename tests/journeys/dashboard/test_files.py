"""The files of a job in a real browser: nothing that a job has written is run."""

from contextlib import suppress

import pytest
from playwright.sync_api import Dialog, Error, Page

from ferryman import SyncClient
from tests.journeys.browser import Visitor
from tests.journeys.dashboard.conftest import TOKEN, submit
from tests.kit.dev_program import DevProgram

DO = "fetch('/pwned');new Image().src='/pwned';alert(document.cookie);top.location='/pwned'"
SCRIPT = f"<script>{DO}</script>"
MORE = (
    f'<img src=x onerror="{DO}"><body onload="{DO}"><iframe src="javascript:{DO}"></iframe>'
    '<meta http-equiv="refresh" content="0;url=/pwned"><link rel="stylesheet" href="/pwned">'
)
PAGE = f"<!doctype html><title>evil</title><h1>Report</h1>{SCRIPT}{MORE}"
SVG = (
    f'<svg xmlns="http://www.w3.org/2000/svg" onload="{DO}" viewBox="0 0 9 9"><script>{DO}</script>'
    "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml'><img src='/pwned'/></body>"
    "</foreignObject><image href='/pwned'/><circle r='9'/></svg>"
)
XSL = (
    '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">'
    f'<xsl:template match="/"><html><body>{SCRIPT}</body></html></xsl:template></xsl:stylesheet>'
)
PDF = (
    "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R/OpenAction<</S/JavaScript/JS(app.alert\\(1\\))"
    ">>>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj 3 0 obj<</Type/Page/Parent 2 0 R"
    "/MediaBox[0 0 9 9]>>endobj\ntrailer<</Root 1 0 R>>\n"
)
UTF7 = "+ADw-script+AD4-alert(1)+ADw-/script+AD4-"
ODD = "<img src=x onerror=alert(1)>.txt"
ATTACKS = {
    "page.html": PAGE.encode(),
    "page.htm": PAGE.encode(),
    "page.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml">{SCRIPT}</html>'.encode(),
    "page.shtml": PAGE.encode(),
    "drawing.svg": SVG.encode(),
    "data.xml": f'<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="look.xsl"?>'
    f"<a><script xmlns='http://www.w3.org/1999/xhtml'>{DO}</script></a>".encode(),
    "look.xsl": XSL.encode(),
    "paper.pdf": PDF.encode(),
    "looks-like-a-page.txt": PAGE.encode(),
    "looks-like-a-page": PAGE.encode(),
    "no-image.png": PAGE.encode(),
    "no-image.gif": b"GIF89a" + PAGE.encode(),
    "cells.csv": f'name,value\n"{PAGE.replace(chr(34), chr(34) * 2)}",1\n'.encode(),
    "values.json": PAGE.encode(),
    "code.js": DO.encode(),
    "look.css": b"@import '/pwned';",
    "utf7.html": f'<meta charset="utf-7">{UTF7}'.encode(),
    "utf7.txt": UTF7.encode(),
    "utf16.txt": PAGE.encode("utf-16"),
    "utf16.html": PAGE.encode("utf-16"),
    "mail.mht": b"MIME-Version: 1.0\nContent-Type: text/html\n\n" + PAGE.encode(),
    "bytes.bin": bytes(range(256)),
    ODD: b"hello\n",
}


@pytest.fixture(scope="module")
def job(guarded: DevProgram) -> int:
    """It has left files that attack."""
    with SyncClient(guarded.url, user="ada", token=TOKEN) as client:
        accepted = client.submit({"run.sh": b"true\n", **ATTACKS}, service="example")
        return client.wait(accepted.id).id


def watched(person: Visitor) -> tuple[Page, list[str]]:
    """A page of somebody who is logged in, and what runs in it that should not."""
    page, ran = person.log_in(TOKEN), list[str]()

    def dismiss(dialog: Dialog) -> None:
        ran.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    # Of the server; what the browser refuses to ask for has no answer.
    person.context.on("response", lambda one: ran.append(one.url) if "pwned" in one.url else None)
    return page, ran


@pytest.mark.slow
def test_opened_by_its_address_no_file_runs_anything(guarded, job, visit):
    page, ran = watched(visit(guarded.url, may_complain=True))
    for name in ATTACKS.keys() - {ODD}:
        for query in ("", "?inline=1"):
            url = f"{guarded.url}/api/v1/jobs/{job}/files/{name}{query}"
            with suppress(Error):  # it begins to be saved, which ends the visit
                page.goto(url)
            assert ran == [], url
            assert "pwned" not in page.url


def test_no_preview_runs_anything(guarded, job, visit):
    person, found = visit(guarded.url, may_complain=True), list[str]()
    page, ran = watched(person)
    page.goto(f"{guarded.url}/jobs/{job}/files")
    names = page.locator("#files tbody th a").evaluate_all("all => all.map(one => one.href)")
    assert len(names) == len(ATTACKS) + 4  # run.sh, the logs, ferryman.json
    for url in names:
        page.goto(url)
        views = page.locator("#file .tabs a").evaluate_all("all => all.map(one => one.href)")
        for view in views[1:]:
            assert person.problems == [], url
            page.goto(view)
            if "view=rendered" in view:  # what the frame was kept from
                page.wait_for_load_state("networkidle")
                found += person.problems
                person.problems.clear()
            if view.endswith("/page.html?view=rendered"):
                page.frame_locator("iframe").get_by_role("heading", name="Report").wait_for()
        assert ran == [], url
        assert page.url.startswith(f"{guarded.url}/jobs/{job}/files/")
    said = " ".join(found)
    assert "Blocked script execution" in said
    assert "Refused to execute the redirect" in said
    assert "Loading the stylesheet" in said


@pytest.mark.slow
def test_the_files_of_a_running_job_come_into_the_list(system, visit):
    script = "echo one > first.txt; sleep 2; mkdir out; echo two > out/second.txt; sleep 99\n"
    job = submit(system, script)
    page = visit(system.url).open(f"/jobs/{job}/files")
    page.get_by_role("link", name="first.txt", exact=True).wait_for()
    page.get_by_text("as of now").wait_for()
    page.get_by_role("link", name="out/").click()
    page.get_by_role("link", name="second.txt", exact=True).click()
    page.get_by_text("two").wait_for()
    page.go_back()
    page.get_by_text("as of now").wait_for()
    with SyncClient(system.url, user="ada") as client:
        client.cancel(job)
    page.get_by_text("1 file in this folder").wait_for()
    page.get_by_role("button", name="All as a ZIP").wait_for()
