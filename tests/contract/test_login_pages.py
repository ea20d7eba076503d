"""Logging in and out with a browser, and what its session is good for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio
from aiohttp import FormData

from server.api.routes import ROUTES as API
from shared.clock import RealClock
from shared.principals import Principal, Role, Scope
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.form_browser import FormBrowser, browsing
from tests.kit.server_http import ServerClient, driving

ANN: Final = "the-token-of-ann"
BOB: Final = "the-token-of-bob"
ADMIN: Final = "the-token-of-admin"
PRINCIPALS: Final = {
    ANN: Principal("ann", Role.USER, "ann"),
    BOB: Principal("bob", Role.USER, "bob"),
    ADMIN: Principal("admin", Role.OPERATOR),
    "the-token-of-portal": Principal("portal", Role.PORTAL, users=("lab-*",)),
    "the-token-of-node": Principal("node-1", Role.AGENT),
    "a-token-for-metrics": Principal("metrics-1", Role.METRICS),
    "a-token-that-submits": Principal("robot", Role.USER, "ann", scopes=frozenset({Scope.SUBMIT})),
}


class World:
    def __init__(self, caller: ServerClient, stack: contextlib.AsyncExitStack) -> None:
        self.caller, self._stack, self.url = caller, stack, caller.url

    async def browser(self, token: str = "", **options: Any) -> FormBrowser:
        """A browser of its own; logged in, if there is a token."""
        one = await self._stack.enter_async_context(browsing(self.url, **options))
        if token:
            assert (await one.log_in(token)).status == 303
        return one

    async def api(self, method: str, path: str, token: str = ADMIN, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.caller.session.request(
            method, f"{self.url}{path}", headers=headers, **options
        ) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def job(self, token: str = ANN, user: str = "ann") -> int:
        form = FormData({"user_id": user, "service": "my_service"})
        form.add_field("file", b"echo hello\n", filename="run.sh")
        return int((await self.api("POST", "/upload", token, data=form))["id"])


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    settings = {"principals": PRINCIPALS} | settings
    async with contextlib.AsyncExitStack() as stack:
        caller = await stack.enter_async_context(driving(tmp_path, FakeOrchestrator(), **settings))
        yield World(caller, stack)


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(module_folder):
    """One for all tests that leave nothing in it but sessions."""
    async with serving(module_folder) as found:
        yield found


async def test_whoever_logs_in_is_led_to_what_they_wanted_and_stays_logged_in(world):
    browser = await world.browser()
    first = await browser.ask("/jobs?state=Failed")
    assert (first.status, first.location) == (303, "/login?next=%2Fjobs%3Fstate%3DFailed")
    page = await browser.ask(first.location)
    assert 'name="next" value="/jobs?state=Failed"' in page.text
    assert 'type="password"' in page.text
    there = await browser.send(
        first.location, "/login", token=f" {ANN} ", next="/jobs?state=Failed"
    )
    assert (there.status, there.location) == (303, "/jobs?state=Failed")
    page = await browser.ask("/jobs")
    assert page.status == 200
    assert "Log out" in page.text


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_cannot_use(world):
    browser = await world.browser()
    (cookie,) = [one for one in (await browser.log_in(ANN)).set_cookies if "_session=" in one]
    name, _, rest = cookie.partition("=")
    assert re.fullmatch(r"ferryman_[0-9a-f]{8}_session", name)
    assert re.match(r"[0-9A-Za-z_-]+\.[0-9A-Za-z_-]{43};", rest)
    assert "HttpOnly" in rest
    assert "SameSite=Lax" in rest
    assert "Path=/" in rest
    assert "Max-Age=604800" in rest
    assert "Secure" not in rest
    assert ANN not in rest


async def test_behind_https_the_cookies_are_sent_by_https_only(tmp_path):
    async with serving(tmp_path, public_url="https://jobs.example.org") as world:
        browser = await world.browser()
        shown = await browser.ask("/login")
        assert shown.set_cookies
        assert all("Secure" in one for one in shown.set_cookies)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("token", "status", "says"),
    [
        ("the-token-of-an", 401, "This token is not good: it is not known here."),
        ("a-token-for-metrics", 401, "This token is not good: it is for metrics only."),
        ("ferryman_x", 401, "it is not whole: a token has"),
        ("", 400, "A token is needed"),
        ("  ", 400, "A token is needed"),
        ("\x00é\u202e" * 400, 401, "it is not known here"),
    ],
)
async def test_a_wrong_token_is_refused_with_the_reason_beside_the_field(
    shared, token, status, says
):
    browser = await shared.browser()
    shown = await browser.send("/login", "/login", token=token, next="/jobs?user=<b>")
    assert (shown.status, "_session=" in str(shown.set_cookies)) == (status, False)
    assert 'aria-describedby="token-problem"' in shown.text
    assert says in shown.text
    assert (
        'name="next" value="/jobs?user=&lt;b&gt;"' in shown.text or 'name="next"' not in shown.text
    )
    assert token.strip() == "" or f'value="{token}"' not in shown.text
    assert (await browser.ask("/jobs")).status == 303


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "there",
    [
        "//evil.example",
        "/\\evil.example",
        "/x\\..\\y",
        "https://evil.example/",
        "javascript:alert(1)",
        "evil.example",
        "/\t/evil.example",
        "/jobs\r\nSet-Cookie: a=b",
        "/" + "a" * 3_000,
        "/login?next=/login",
        "/logout",
        "",
    ],
)
async def test_after_the_login_nobody_is_led_away_from_the_server(shared, there):
    browser = await shared.browser()
    shown = await browser.log_in(ANN, there)
    assert (shown.status, shown.location) == (303, "/")
    shown = await browser.ask(f"/login?next={there[:50].replace(chr(13), '').replace(chr(10), '')}")
    assert "evil" not in shown.text


async def test_a_login_needs_a_form_of_this_server(world):
    """So that nobody is logged in as somebody else without knowing it."""
    browser, other = await world.browser(), await world.browser()
    for csrf in ("", "0" * 64, await other.csrf("/login")):
        shown = await browser.ask("/login", "POST", {"token": ANN, "csrf": csrf})
        assert (shown.status, "form_expired" in shown.text) == (403, True)
    assert browser.cookie("session") == ""


async def test_each_login_is_another_session_with_forms_of_its_own(world):
    browser = await world.browser(ANN)
    first, form = browser.cookie("session"), await browser.csrf("/account")
    assert (await browser.log_in(BOB)).status == 303
    assert browser.cookie("session") not in (first, "")
    assert "bob" in (await browser.ask("/account")).text
    shown = await browser.ask("/logout", "POST", {"csrf": form})
    assert shown.status == 403


async def test_a_session_that_somebody_else_chose_is_worth_nothing(world):
    browser = await world.browser(ANN)
    await browser.send("/account", "/logout")
    browser = await world.browser(ANN)
    good = browser.cookie("session")
    for chosen in ("x" * 43, "", "é", "a" * 3_000, f"{good}x", f"x{good}"):
        browser.set_cookie("session", chosen)
        assert (await browser.ask("/jobs")).status == 303
    assert (await browser.log_in(ANN)).status == 303
    assert browser.cookie("session") != chosen


async def test_whoever_logs_out_is_logged_out_wherever_the_token_was_used(world):
    browser, other, bob = [await world.browser(one) for one in (ANN, ANN, BOB)]
    third = await world.browser(ANN)
    text = browser.cookie("session")
    shown = await browser.send("/jobs", "/logout")
    assert (shown.status, shown.location) == (303, "/login?done=out")
    assert browser.cookie("session") == ""
    page = await browser.ask(shown.location)
    assert "You have logged out." in page.text
    assert "Log out" not in page.text
    assert [(await one.ask("/jobs")).status for one in (third, bob)] == [303, 200]
    other.set_cookie("session", text)
    assert (await other.ask("/jobs")).status == 303


async def test_a_stream_ends_with_its_session(world):
    await world.job()
    browser, other = await world.browser(ANN), await world.browser(ANN)
    async with browser.events("/api/v1/events?after=0") as stream:
        while b"job.queued" not in await stream.content.readany():
            pass
        await other.send("/account", "/logout")
        later = await world.job()
        assert not re.search(rf'"job_id": ?{later}\b', (await stream.content.read()).decode())


async def test_an_ended_session_is_said_on_the_login_page_which_leads_back(tmp_path):
    async with serving(tmp_path, session_expires_after=0.3) as world:
        browser = await world.browser(ANN)
        while (shown := await browser.ask("/jobs/7")).status == 404:
            await RealClock().sleep(0.05)
        assert shown.location == "/login?next=%2Fjobs%2F7"
        browser.set_cookie("session", "x" * 43)  # as if the browser's clock were late
        page = await browser.ask(shown.location)
        assert "Your session has ended: log in again" in page.text
        assert 'value="/jobs/7"' in page.text


async def test_only_the_page_that_uploads_takes_parts(world):
    browser = await world.browser()
    csrf = await browser.csrf("/login")
    form = FormData({"token": ANN}, default_to_multipart=True)
    shown = await browser.ask(f"/login?csrf={csrf}", "POST", form)
    assert shown.status == 415
    assert not browser.cookie("session")


async def test_wrong_tokens_are_limited_for_each_address(tmp_path):
    async with serving(tmp_path, trusted_proxies=["127.0.0.1"]) as world:
        browser = await world.browser()
        csrf = await browser.csrf("/login")

        async def tried(token: str, address: str) -> int:
            fields = {"csrf": csrf, "token": token}
            return (await browser.ask("/login", "POST", fields, X_Forwarded_For=address)).status

        bad = "2001:db8::{}"
        for number in range(10):
            assert await tried("wrong", bad.format(number)) == 401
        shown = await browser.ask(
            "/login", "POST", {"csrf": csrf, "token": ANN}, X_Forwarded_For=bad.format(99)
        )
        # The right one is not even looked at: who tries learns nothing.
        assert (shown.status, int(shown.headers["Retry-After"]) > 0) == (429, True)
        assert "too many wrong tokens" in shown.text.lower()
        assert await tried("wrong", "2001:db8:0:1::1") == 401
        for _ in range(20):
            assert await tried(ANN, "10.0.0.9") == 303
            browser.set_cookie("session", "")
            csrf = await browser.csrf("/login")


async def test_a_session_reads_whatever_its_token_reads(world):
    job = await world.job()
    ann, bob = await world.browser(ANN), await world.browser(BOB)
    for path in (f"/api/v1/jobs/{job}", f"/jobs/{job}", f"/api/v1/jobs/{job}/events"):
        assert (await ann.ask(path)).status == 200
        assert (await ann.ask(path, "HEAD")).status == 200
        assert (await bob.ask(path)).status == 404
    assert (await ann.ask("/api/v1/agents", Accept="*/*")).status == 403
    robot = await world.browser("a-token-that-submits")
    assert (await robot.ask("/jobs")).status == 403


async def test_a_session_alone_changes_nothing_by_the_api(world):
    """Another page of the same site can make the browser send the cookie, with any body."""
    job = await world.job()
    browser = await world.browser(ADMIN)
    csrf = await browser.csrf("/account")
    methods = {(one.method, one.path) for one in API if one.method != "GET"}
    assert len(methods) > 20
    for method, template in sorted(methods):
        path = re.sub(r"{\w+}", str(job), template)
        shown = await browser.ask(
            f"{path}?csrf={csrf}", method, {"csrf": csrf}, Accept="*/*", X_CSRF_Token=csrf
        )
        assert shown.status == 401, (method, path, shown.text)
    assert (await world.api("GET", f"/api/v1/jobs/{job}"))["status"] != "Cancelled"


async def test_a_token_or_link_counts_and_the_session_beside_it_does_not(world):
    mine, other = await world.job(), await world.job(BOB, "bob")
    link = (await world.api("POST", f"/api/v1/jobs/{other}/links", BOB, json={}))["link"]
    browser = await world.browser(ANN)
    shown = {"Authorization": f"Bearer {BOB}"}
    assert (await browser.ask(f"/api/v1/jobs/{mine}", **shown)).status == 404
    assert (await browser.ask(f"/api/v1/jobs/{other}", **shown)).status == 200
    assert (
        await browser.ask("/api/v1/jobs", Authorization="Bearer wrong", Accept="*/*")
    ).status == 401
    assert (await browser.ask(f"/jobs/{other}?link={link}")).status == 200
    assert (await browser.ask(f"/jobs/{mine}?link={link}")).status == 403
    assert (await browser.ask(f"/jobs/{mine}?link=x{link}")).status == 403


async def test_a_session_ends_with_its_token(world):
    made = {
        name: await world.api("POST", "/api/v1/tokens", json={"name": name, "role": "user", **more})
        for name, more in (("eve", {}), ("mia", {"expires_in": 3}))
    }
    eve, mia = [await world.browser(one["token"]) for one in made.values()]
    path = f"/api/v1/tokens/{made['eve']['id']}"
    assert (await eve.ask("/jobs")).status == 200
    # Another secret is no other token.
    await world.api("POST", f"{path}/rotate", json={})
    assert (await eve.ask("/jobs")).status == 200
    await world.api("DELETE", path)
    assert (await eve.ask("/jobs")).status == 303
    while (await mia.ask("/jobs")).status == 200:
        await RealClock().sleep(0.1)
    assert (await world.api("GET", f"/api/v1/tokens?id={made['mia']['id']}"))["items"][0][
        "state"
    ] == "expired"


async def test_sessions_outlive_a_restart_unless_their_token_left_the_settings(tmp_path):
    async with serving(tmp_path) as world:
        ann, bob = await world.browser(ANN), await world.browser(BOB)
        cookies = ann.cookie("session"), bob.cookie("session")
    fewer = {token: one for token, one in PRINCIPALS.items() if token != BOB}
    async with serving(tmp_path, principals=fewer) as world:
        found = []
        for text in cookies:
            browser = await world.browser(ADMIN)
            browser.set_cookie("session", text)
            found.append((await browser.ask("/jobs")).status)
        assert found == [200, 303]


async def test_on_a_server_without_tokens_nobody_needs_to_log_in(tmp_path):
    async with serving(tmp_path, principals=None) as world:
        browser = await world.browser()
        shown = await browser.ask("/login?next=/jobs?state=Failed")
        assert (shown.status, shown.location) == (303, "/jobs?state=Failed")
        assert (await browser.ask("/account")).location == "/"
        page = await browser.ask("/jobs")
        assert "No login needed here" in page.text


# -- the account


async def test_the_account_says_who_one_is_and_what_one_may_do(world):
    await world.job()
    for token, says, says_not in (
        (ANN, ("ann", "user", "manage", "Uploads now", "my_service"), ("operate",)),
        (ADMIN, ("admin", "operator", "operate"), ("Uploads now",)),
        ("the-token-of-portal", ("portal", "lab-*", "submit"), ("operate",)),
        ("the-token-of-node", ("node-1", "agent"), ("manage", "Uploaded")),
        ("a-token-that-submits", ("robot", "submit"), ("manage", "Uploaded")),
    ):
        browser = await world.browser(token)
        shown = await browser.ask("/account")
        assert shown.status == 200
        main = shown.text.partition("<main")[2]
        assert [one for one in says if one not in main] == []
        assert [one for one in says_not if one in main] == []


async def test_the_audit_trail_says_who_logged_in(world):
    browser = await world.browser(ANN)
    await browser.log_in("wrong")
    await browser.send("/account", "/logout")
    items = (await world.api("GET", "/api/v1/audit?action=log"))["items"]
    found = [(one["action"], one["principal"], one["status"]) for one in items]
    assert found == [
        ("POST /logout", "ann", 303),
        ("POST /login", "ann", 401),
        ("POST /login", "ann", 303),
    ]
    assert ANN not in str(items)


async def test_a_form_or_a_part_of_a_page_of_an_ended_session_leads_to_the_login(world):
    browser = await world.browser()
    await browser.ask("/login")
    browser.set_cookie("session", "x" * 43)
    shown = await browser.send("/login", "/tokens")
    assert (shown.status, "Please log in" in shown.text) == (401, True)
    assert 'href="/login"' in shown.text
    part = {"HX_Request": "true", "HX_Current_URL": f"{world.url}/jobs?state=Failed"}
    shown = await browser.ask("/jobs", **part)
    assert (shown.status, shown.text) == (401, "")
    assert shown.headers["HX-Redirect"] == "/login?next=%2Fjobs%3Fstate%3DFailed"
