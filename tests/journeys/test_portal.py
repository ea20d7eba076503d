"""The portal of ``examples/``, in a real browser, on another origin than the server."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from ferryman import Client, SyncClient
from tests.journeys.browser import PATIENCE_MS, tab
from tests.kit.dev_program import ROOT, environment, started

TOKEN = "the-token-of-the-operator"
PORTAL = ROOT / "examples" / "portal" / "portal.py"
RUN_SH = """\
echo "::progress value=1,total=2::half of it"
mkdir -p out
tr a-z A-Z < input.txt > "out/large é.txt"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a server and of a portal for it, on two sites."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    portal = f"http://localhost:{port}"
    folder = tmp_path_factory.mktemp("portal")
    given: dict[str, Any] = {"FERRYMAN_SERVER__TOKENS": TOKEN, "FERRYMAN_TOKEN": TOKEN}
    with started(folder, FERRYMAN_SERVER__ALLOWED_ORIGINS=portal, **given) as system:
        with SyncClient(system.url, token=TOKEN) as operator:
            token = operator.create_token("portal", "portal").token
        env = environment() | {"FERRYMAN_URL": system.url, "FERRYMAN_TOKEN": token}
        env |= {"PORT": str(port), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-P", str(PORTAL)]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "Running on" in process.stdout.readline()
                yield system.url, portal
            finally:
                process.terminate()


def files(folder: Path) -> list[Path]:
    (folder / "run.sh").write_text(RUN_SH)
    (folder / "input.txt").write_text("what a person brings\n" * 200_000)
    return [folder / "run.sh", folder / "input.txt"]


async def test_a_person_uploads_follows_and_downloads_without_a_token(running, tmp_path):
    """By a portal that is short."""
    assert len([line for line in PORTAL.read_text().splitlines() if line.strip()]) <= 60
    async with asyncio.timeout(120), tab() as (page, _):
        await page.goto(running[1])
        await page.evaluate(
            """window.seen = [];
            new MutationObserver(() => seen.push($("bar").value))
                .observe($("bar"), {attributes: true})"""
        )
        await page.set_input_files("#files", files(tmp_path))
        await page.evaluate("$('form').requestSubmit()")
        await page.locator("#results a:nth-of-type(2)").wait_for(state="attached")
        log = await page.evaluate("$('log').textContent")
        assert len(log.splitlines()) >= 2, log  # it runs, it completed
        progress = await page.evaluate("seen")
        assert progress == sorted(progress)
        assert progress[-1] == 1
        # One file of the result, by a signed link, on the server's own origin.
        link = "[...document.querySelectorAll('#results a')].find(a => a.text.includes('large'))"
        async with page.expect_download() as coming:
            await page.evaluate(f"({link}).click()")
        saved = await coming.value
        assert saved.suggested_filename == "large é.txt"
        assert (await saved.path()).read_text() == "WHAT A PERSON BRINGS\n" * 200_000
    async with Client(running[0], token=TOKEN) as operator:
        jobs = [job async for job in operator.jobs()]
    assert len(jobs[0].user_id) == 16  # the portal's name for this person


@pytest.mark.slow
async def test_a_plain_form_is_sent_on_to_a_page_that_follows_the_job(running, tmp_path):
    """No script of ours runs, and the form is one that hides where it comes from."""
    async with Client(running[0], token=TOKEN) as operator:
        ticket = await operator.create_ticket("ann", service="example")
    form = f"""<meta name="referrer" content="no-referrer">
        <form method="post" enctype="multipart/form-data" action="{ticket.upload_url}">
        <input id="files" type="file" name="file" multiple></form>"""
    async with asyncio.timeout(120), tab() as (page, errors):
        await page.goto(running[1])
        write = f"document.write({json.dumps(form)})"
        await page.evaluate(f"document.open(), {write}, document.close()")
        await page.set_input_files("#files", files(tmp_path))
        await page.evaluate("document.querySelector('form').requestSubmit()")
        await expect(page).to_have_title(re.compile("^Job .*Completed"), timeout=PATIENCE_MS)
        address = await page.evaluate("location.href")
        assert address.startswith(f"{running[0]}/jobs/")
        display = "getComputedStyle(document.querySelector('dl')).display"
        assert await page.evaluate(display) == "grid"
        blocked = [line for line in errors if "Content Security Policy" in line]
        assert blocked == []
        assert address.partition("?")[2].startswith("link=")
