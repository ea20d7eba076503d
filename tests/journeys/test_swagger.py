"""Swagger's page, used by hand in a real browser: what it offers works as it opens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page

from tests.journeys.browser import tab
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.path_proxy import PREFIX, proxied
from tests.kit.raw_archives import zipped
from tests.kit.server_http import RUN, driving

pytestmark = pytest.mark.slow
TOKEN = "the-token-of-the-operator"
UPLOAD = "#operations-reference-upload_upload"
JOBS = "#operations-jobs-jobs_page"
EXAMPLE = "[services.example]\n"
STATUS = ".live-responses-table .response-col_status"


@contextlib.asynccontextmanager
async def page(base: str) -> AsyncIterator[Page]:
    """Swagger's page, and no complaint of the browser about it."""
    async with asyncio.timeout(90), tab() as (one, errors):
        await one.goto(f"{base}/swagger")
        yield one
        assert [line for line in errors if "favicon" not in line] == []


async def authorize(page: Page) -> None:
    """Give the page the token, as a person does."""
    await page.locator(".auth-wrapper .authorize").first.click()
    await page.locator("#auth-bearer-value").fill(TOKEN)
    await page.locator("#auth-bearer-value").press("Enter")
    await page.locator(".close-modal").click()


async def open_operation(page: Page, operation: str) -> None:
    await page.locator(f"{operation} .opblock-summary-control").click()
    await page.locator(f"{operation} .try-out__btn").click()


async def execute(page: Page, operation: str) -> str:
    """The status of the answer, as the page shows it, and its body."""
    await page.locator(f"{operation} .execute").click()
    await page.locator(f"{operation} {STATUS}").first.wait_for()
    return await page.locator(f"{operation} .live-responses-table").first.inner_text()


@pytest.mark.parametrize(("field", "tokens"), [("file", [TOKEN]), ("bundle", [])])
async def test_an_upload_and_a_list_behind_a_path(tmp_path, field, tokens):
    """With nothing but one file chosen: everything else as the page has it."""
    sent = tmp_path / ("run.sh" if field == "file" else "bundle.zip")
    sent.write_bytes(RUN if field == "file" else zipped({"run.sh": RUN}))
    how: dict[str, Any] = {"extra": EXAMPLE, "public_url": PREFIX, "tokens": tokens}
    async with (
        driving(tmp_path, FakeOrchestrator(), **how) as caller,
        contextlib.AsyncExitStack() as stack,
        page(stack.enter_context(proxied(caller.url))) as one,
    ):
        if tokens:
            await authorize(one)
        await open_operation(one, UPLOAD)
        chooser = one.locator(f"{UPLOAD} [data-property-name={field}] input[type=file]")
        await chooser.first.set_input_files(sent)
        said = await execute(one, UPLOAD)
        assert "201" in said, said
        assert f"{PREFIX}/api/v1/jobs/1" in said, said
        await open_operation(one, JOBS)
        said = await execute(one, JOBS)
        assert ('"id": 1' in said, said.split()[2]) == (True, "200"), said
        for filled in ('"user_id": "1"', '"service": "example"', '"tags": []'):
            assert filled in said, said
