"""Links that log a browser in once: of the API, the SDK and the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, SyncClient
from shared.principals import Principal, Role
from tests.contract.test_login_pages import ADMIN, ANN, BOB, World, serving
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


async def link(world: World, token: str = ANN) -> str:
    """Path and query of one."""
    found = await world.api("POST", "/api/v1/login-links", token)
    assert found["expires_at"]
    assert found["url"].startswith(f"{world.url}/login/once?code=")
    return str(found["url"]).removeprefix(world.url)


def code_of(path: str) -> str:
    return path.partition("code=")[2]


async def test_a_link_logs_a_browser_in_once(world):
    path = await link(world)
    browser, other = await world.browser(), await world.browser()
    for _ in range(3):  # whoever only looks does not use it up
        shown = await browser.ask(path)
        assert (shown.status, "Log in as ann" in shown.text) == (200, True)
        assert (await browser.ask("/jobs")).status == 303
    shown = await browser.send(path, "/login/once", code=code_of(path))
    assert (shown.status, shown.location) == (303, "/")
    assert "ann" in (await browser.ask("/account")).text
    shown = await other.send("/login", "/login/once", code=code_of(path))
    assert (shown.status, "was used before" in shown.text) == (403, True)
    shown = await other.ask(path)
    assert (shown.status, "login_link_used" in shown.text) == (403, True)
    assert (await other.ask("/jobs")).status == 303


async def test_a_link_of_a_token_that_is_not_good_any_more_is_not_either(world):
    made = await world.api("POST", "/api/v1/tokens", json={"name": "eve", "role": "user"})
    path = await link(world, made["token"])
    await world.api("DELETE", f"/api/v1/tokens/{made['id']}")
    browser = await world.browser()
    assert (await browser.ask(path)).status == 403
    shown = await browser.send("/login", "/login/once", code=code_of(path))
    assert (shown.status, browser.cookie("session")) == (403, "")


async def test_a_link_that_was_changed_or_is_something_else_is_refused(world):
    browser = await world.browser()
    path = await link(world)
    job = await world.job()
    other = (await world.api("POST", f"/api/v1/jobs/{job}/links", ANN, json={}))["link"]
    for code in ("", "x", code_of(path)[:-1], "x" + code_of(path), other, "é"):
        for shown in (
            await browser.ask(f"/login/once?code={code}"),
            await browser.send("/login", "/login/once", code=code),
        ):
            assert (shown.status, "login_link_invalid" in shown.text) == (403, True)
    # Nor is it good as a link to a job.
    shown = await browser.ask(f"/jobs/{job}?link={code_of(path)}")
    assert shown.status == 403


async def test_a_link_is_good_for_a_minute(world):
    path = await link(world)
    clock, browser = world.caller.server.context.clock, await world.browser()
    now = clock.now()
    world.caller.server.context.clock.now = lambda: now + 60_000_000
    try:
        shown = await browser.ask(path)
        assert (shown.status, "login_link_expired" in shown.text) == (403, True)
    finally:
        del world.caller.server.context.clock.now


async def test_whoever_uses_a_link_becomes_its_maker_and_knows_it(world):
    browser = await world.browser(BOB)
    path = await link(world, ADMIN)
    page = (await browser.ask(path)).text
    assert "Log in as admin" in page
    assert re.search("logged in as <strong>bob</strong>", page)
    shown = await browser.ask("/login/once", "POST", {"code": code_of(path)})
    assert shown.status == 403  # nobody is logged in by a form of another site
    await browser.send(path, "/login/once", code=code_of(path))
    assert "operator" in (await browser.ask("/account")).text


async def test_a_session_makes_no_links_and_tickets_neither(world):
    job = await world.job()
    signed = (await world.api("POST", f"/api/v1/jobs/{job}/links", ANN, json={}))["link"]
    browser = await world.browser(ANN)
    for query, status in (("", 401), (f"?link={signed}", 403)):
        shown = await browser.ask(f"/api/v1/login-links{query}", "POST", Accept="*/*")
        assert shown.status == status


async def test_the_sdk_and_the_command_line_make_them(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        async with Client(caller.url, token=ANN) as client:
            assert "/login/once?code=" in (await client.login_link()).url
        options = ("--url", caller.url, "--token", ANN)
        code, out, err = await ferryman("dashboard", "--no-open", *options)
        assert (code, out.startswith(f"{caller.url}/login/once?code=")) == (0, True)
        assert err.startswith("it logs in once, until ")
        code, out, err = await ferryman("dashboard", "--json", *options)
        assert (code, err, set(json.loads(out))) == (0, "", {"url", "expires_at"})
    assert callable(SyncClient.login_link)


PRINCIPALS: dict[str, Any] = {ANN: Principal("ann", Role.USER, "ann")}


async def test_without_tokens_the_link_is_the_dashboards_address(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller, Client(caller.url) as client:
        made = await client.login_link()
        assert (made.url, made.expires_at) == (f"{caller.url}/", None)
