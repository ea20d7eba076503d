"""Swagger's page, used by hand in a real browser: what it offers works as it opens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.chromium import Tab, chromium
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.path_proxy import PREFIX, proxied
from tests.kit.server_http import RUN, driving

pytestmark = pytest.mark.slow
TOKEN = "the-token-of-the-operator"
UPLOAD = "#operations-reference-upload_upload"
JOBS = "#operations-jobs-jobs_page"
EXAMPLE = "[services.example]\n"
STATUS = ".live-responses-table .response-col_status"


@contextlib.asynccontextmanager
async def page(folder: Path, base: str) -> AsyncIterator[Tab]:
    """Swagger's page, and no complaint of the browser about it."""
    async with asyncio.timeout(90), chromium(folder / "profile") as tab:
        await tab.goto(f"{base}/swagger")
        yield tab
        complaints = [line for line in tab.console if '"error"' in line and "favicon" not in line]
        assert complaints == []


async def click(tab: Tab, selector: str) -> None:
    """Once it is there."""
    element = f"document.querySelector({json.dumps(selector)})"
    await tab.until(element)
    await tab.run(f"{element}.click()")


async def authorize(tab: Tab) -> None:
    """Give the page the token, as a person does."""
    await click(tab, ".auth-wrapper .authorize")
    await click(tab, "#auth-bearer-value")
    await tab.run("document.querySelector('#auth-bearer-value').focus()")
    await tab.call("Input.insertText", text=TOKEN)
    await tab.run("document.querySelector('#auth-bearer-value').closest('form').requestSubmit()")
    await click(tab, ".close-modal")


async def open_operation(tab: Tab, operation: str) -> None:
    await click(tab, f"{operation} .opblock-summary-control")
    await click(tab, f"{operation} .try-out__btn")


async def execute(tab: Tab, operation: str) -> str:
    """The status of the answer, as the page shows it, and its body."""
    await click(tab, f"{operation} .execute")
    await tab.until(f"document.querySelector('{operation} {STATUS}')")
    return str(
        await tab.run(f"document.querySelector('{operation} .live-responses-table').innerText")
    )


async def upload(tab: Tab, field: str, file: Path) -> str:
    """With nothing but one file chosen: everything else as the page has it."""
    await open_operation(tab, UPLOAD)
    chooser = f"{UPLOAD} [data-property-name={field}] input[type=file]"
    await tab.until(f"document.querySelector('{chooser}')")
    await tab.choose_files(chooser, file)
    return await execute(tab, UPLOAD)


@pytest.mark.parametrize("field", ["file", "bundle"])
async def test_an_upload_without_tokens(tmp_path: Path, field: str) -> None:
    run = tmp_path / "run.sh"
    run.write_bytes(RUN)
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as content:
        content.write(run, run.name)
    async with (
        driving(tmp_path, FakeOrchestrator(), extra=EXAMPLE) as caller,
        page(tmp_path, caller.url) as tab,
    ):
        said = await upload(tab, field, run if field == "file" else bundle)
        assert "201" in said, said
        job = json.loads((await caller.get("/api/v1/jobs/1"))[2])
    assert (job["user_id"], job["service"], job["tags"]) == ("1", "example", [])


async def test_a_list_with_a_token(tmp_path: Path) -> None:
    async with (
        driving(tmp_path, FakeOrchestrator(), tokens=[TOKEN]) as caller,
        page(tmp_path, caller.url) as tab,
    ):
        await authorize(tab)
        await open_operation(tab, JOBS)
        said = await execute(tab, JOBS)
        assert '"items": []' in said, said
        assert said.split()[2] == "200", said


async def test_an_upload_and_a_list_with_a_token_behind_a_path(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_bytes(RUN)
    async with (
        driving(
            tmp_path, FakeOrchestrator(), extra=EXAMPLE, public_url=PREFIX, tokens=[TOKEN]
        ) as caller,
        proxied(caller) as base,
        page(tmp_path, base) as tab,
    ):
        await authorize(tab)
        said = await upload(tab, "file", run)
        assert "201" in said, said
        assert f"{PREFIX}/api/v1/jobs/1" in said, said
        await open_operation(tab, JOBS)
        said = await execute(tab, JOBS)
        assert '"id": 1' in said, said
