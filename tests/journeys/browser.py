"""A real Chromium (Debian's), driven by playwright, and what is asked of every page in it."""

import base64
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page as Tab
from playwright.async_api import async_playwright
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.kit.installed import program

_FLAGS: Final = ["--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"]
_HOW: Final[dict[str, Any]] = {"args": _FLAGS, "chromium_sandbox": False}
AXE: Final = Path(__file__).with_name("axe") / "axe-4.14.1.min.js"
WIDTHS: Final = (390, 1024, 1600)
PATIENCE_MS: Final = 60_000
"""Beside others, a page has taken 20 s."""


@contextmanager
def browser() -> Iterator[Browser]:
    """One for all tests of a process: each opens contexts of its own in it.

    Skipped where there is none, but not in CI, where the set-up installs it.
    """
    path = program("chromium")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # playwright's own, at its end
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=path, **_HOW)
            try:
                yield chromium
            finally:
                chromium.close()


class Visitor:
    """A person with a browser of their own: cookies, window, theme.

    Attributes:
        problems: what pages wrote to the console as errors: scripts that broke, and whatever the
            content security policy refused. Looked at in the end.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url = context, url.rstrip("/")
        self.problems: list[str] = []
        context.set_default_timeout(PATIENCE_MS)
        context.on("console", self._console)
        context.on("weberror", lambda error: self.problems.append(str(error.error)))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def log_in(self, token: str) -> Page:
        """The start page, after a login with the form."""
        page = self.open("/login")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(lambda url: "/login" not in url)
        return page

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.goto(self.url + path)
        return page


@contextmanager
def visitor(
    chromium: Browser,
    url: str,
    *,
    width: int = 1024,
    height: int = 768,
    dark: bool = False,
    scripts: bool = True,
    token: str | None = None,
    may_complain: bool = False,
) -> Iterator[Visitor]:
    """A person who visits.

    Args:
        token: sent with every request, in place of a login.
        may_complain: errors on the console are expected.
    """
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
        reduced_motion="reduce",
        extra_http_headers={} if token is None else {"Authorization": f"Bearer {token}"},
        locale="en-GB",
        timezone_id="UTC",
    )
    person = Visitor(context, url)
    try:
        yield person
        assert may_complain or person.problems == []
    finally:
        context.close()


@asynccontextmanager
async def tab() -> AsyncIterator[tuple[Tab, list[str]]]:
    """A browser's tab beside what is async, and the errors on its console so far."""
    errors: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            errors.append(f"{message.text} {message.location}")

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program("chromium"), **_HOW)
        try:
            page = await chromium.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("console", note)
            yield page, errors
        finally:
            await chromium.close()


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page for people who do not see or use a mouse."""
    # Not by a script element: the page's own policy would refuse that, as it should.
    page.evaluate(AXE.read_text())
    asked = "axe.run(document, {resultTypes: ['violations']}).then(found => found)"
    found: dict[str, Any] = page.evaluate(asked)
    return [
        f"{one['id']}: {one['help']}: {node['target']} {node['html'][:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def picture(page: Page) -> bytes:
    """What the window shows, as WebP: a third of a PNG."""
    session = page.context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": 80})
    session.detach()
    return base64.b64decode(taken["data"])


def too_wide(page: Page) -> bool:
    top = "document.documentElement"
    return bool(page.evaluate(f"{top}.scrollWidth > {top}.clientWidth"))
