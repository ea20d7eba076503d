"""Logging in and out with a browser, by token or link, and what its session is good for."""

import base64
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import FormData

from server.api.routes import ROUTES as API
from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, People, browsing
from tests.kit.server_http import driving
from tests.kit.warm import Place
from tests.server import access
from tests.server.access import OPERATOR, people

__all__ = ["OPERATOR", "people"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN, ANN, BOB, SENDER, LAB = [
    f"the-token-of-{name}" for name in ("admin", "ann", "bob", "sender", "lab")
]
PRINCIPALS: Final = access.PRINCIPALS | {LAB: Principal("lab", Role.PORTAL, users=("lab-*",))}
SERVER = '[server]\ntrusted_proxies = ["127.0.0.1"]'
WEEK_S: Final = 604_800


async def may_see(browser: Browser) -> bool:
    page = await browser.ask("/jobs")
    assert page.status in (200, 303)
    return page.status == 200


async def token_of(place: Place, **fields: Any) -> dict[str, Any]:
    asked = {"name": place.warm.new("eve"), "role": "user", **fields}
    return dict(await place.api("POST", "/tokens", asked))


async def test_a_sessions_cookie_is_of_no_use_to_scripts_and_others(people: People) -> None:
    browser = await people.stranger()
    (cookie,) = [one for one in (await browser.log_in(ANN)).set_cookies if "_session=" in one]
    name, _, rest = cookie.partition("=")
    value, *rules = rest.split("; ")
    assert re.fullmatch(r"ferryman_[0-9a-f]{8}_session", name)
    assert re.fullmatch(r"[0-9A-Za-z_-]+\.[0-9A-Za-z_-]{43}", value)
    assert {"HttpOnly", "SameSite=Lax", "Path=/", f"Max-Age={WEEK_S}"} <= set(rules)
    assert "Secure" not in rules
    # It tells nothing of a token of the settings.
    shown = base64.urlsafe_b64decode(value.partition(".")[0] + "==")
    assert not re.search(rb"[0-9a-f]{64}", shown)
    assert ANN.encode() not in shown
    # However it is altered: tests/rules/test_callers.py.
    for other, good in ((f"{value}x", False), ("é", False), ("", False), (value, True)):
        browser.set_cookie("session", other)
        assert await may_see(browser) is good, other


@each(
    "token, status, says",
    [
        ("the-token-of-an", 401, "This token is not good: it is not known here."),
        ("the-token-of-scraper", 401, "This token is not good: it is for metrics only."),
        ("ferryman_x", 401, "it is not whole: a token has"),
        ("", 400, "A token is needed"),
        ("  ", 400, "A token is needed"),
        ("\x00é\u202e" * 400, 401, "it is not known here"),
    ],
)
async def test_a_wrong_token_is_refused_with_the_reason_beside_the_field(
    people: People, token: str, status: int, says: str
) -> None:
    browser = await people.stranger()
    page = await browser.send("/login", "/login", token=token, next="/jobs?user=<b>")
    assert (page.status, "_session=" in str(page.set_cookies)) == (status, False)
    assert says in page.errors["token"]
    fields = page.main.fields()
    assert fields["token"] == ""
    assert fields.get("next", "/jobs?user=<b>") == "/jobs?user=<b>"
    assert not await may_see(browser)


async def test_whoever_logs_in_is_led_where_they_wanted_on_the_server(people: People) -> None:
    browser, wanted = await people.stranger(), "/jobs?state=Failed"
    page = await browser.ask(wanted)
    assert (page.status, page.location) == (303, "/login?next=%2Fjobs%3Fstate%3DFailed")
    page = await browser.see(page.location)
    assert page.main.fields()["next"] == wanted
    assert page.main.one("input", name="token")["type"] == "password"
    assert (await browser.log_in(f" {ANN} ", wanted)).location == wanted
    assert "Log out" in (await browser.see("/jobs")).tree.buttons()
    for there in (
        *("//evil.example", "/\\evil.example", "/x\\..\\y", "https://evil.example/"),
        *("javascript:alert(1)", "evil.example", "/\t/evil.example", "/jobs\r\nSet-Cookie: a=b"),
        *("/" + "a" * 3_000, "/login?next=/login", "/logout", ""),
    ):
        browser = await people.stranger()
        page = await browser.log_in(ANN, there)
        assert (page.status, page.location) == (303, "/"), there
        plain = there[:50].replace("\r\n", "")
        assert "evil" not in (await browser.ask(f"/login?next={plain}")).source


async def test_each_login_needs_its_own_form_and_makes_a_session(people: People) -> None:
    """So that nobody is logged in as somebody else without knowing it."""
    browser, other = await people.stranger(), await people.stranger()
    for csrf in ("", "0" * 64, await other.csrf("/login")):
        page = await browser.ask("/login", "POST", {"token": ANN, "csrf": csrf})
        assert (page.status, page.code) == (403, "form_expired")
    csrf = await browser.csrf("/login")
    form = FormData({"token": ANN}, default_to_multipart=True)
    assert (await browser.ask(f"/login?csrf={csrf}", "POST", form)).status == 415
    assert browser.cookie("session") == ""
    assert (await browser.log_in(ANN)).status == 303
    first, form_of_ann = browser.cookie("session"), await browser.csrf("/account")
    assert (await browser.log_in(BOB)).status == 303
    assert browser.cookie("session") not in (first, "")
    assert "bob" in (await browser.see("/account")).text
    assert (await browser.ask("/logout", "POST", {"csrf": form_of_ann})).status == 403


async def test_whoever_logs_out_is_logged_out_wherever_the_token_was_used(people: People) -> None:
    browser, other, bob = [await people.logged_in(one) for one in (ANN, ANN, BOB)]
    text = browser.cookie("session")
    await people.place.upload(user_id="ann")
    async with other.events("/api/v1/events?after=0") as stream:
        seen = b""
        while b"job.queued" not in seen:
            seen += await stream.content.readany()
        page = await browser.send("/jobs", "/logout")
        later = await people.place.upload(user_id="ann")
        rest = (await stream.content.read()).decode()
        assert not re.search(rf'"job_id": ?{later}\b', rest), "the stream ends with the session"
    assert (page.status, page.location, browser.cookie("session")) == (303, "/login?done=out", "")
    page = await browser.see(page.location)
    assert "You have logged out." in page.text
    assert "Log out" not in page.tree.buttons()
    assert [await may_see(one) for one in (other, bob)] == [False, True]
    again = await people.logged_in(ANN)
    # A copy of an old cookie is worth nothing, and ends nothing.
    old = await people.stranger()
    await old.ask("/login")
    old.set_cookie("session", text)
    await old.send("/login", "/logout")
    assert [await may_see(one) for one in (old, again)] == [False, True]


async def test_a_session_ends_with_its_time_or_its_token(people: People) -> None:
    place = people.place
    eve, mia = await token_of(place), await token_of(place, expires_in=60)
    tokens = (eve["token"], mia["token"], ANN)
    of_eve, of_mia, of_ann = [await people.logged_in(one) for one in tokens]
    await of_eve.log_in("wrong")
    trail = await place.api("GET", "/audit", principal=eve["name"], action="login")
    assert [one["status"] for one in trail["items"]] == [401, 303]
    assert eve["token"] not in json.dumps(trail)
    # Another secret is no other token.
    await place.api("POST", f"/tokens/{eve['id']}/rotate", {})
    assert await may_see(of_eve)
    await place.api("DELETE", f"/tokens/{eve['id']}")
    assert [await may_see(one) for one in (of_eve, of_mia)] == [False, True]
    place.warm.clock.forward(60)
    assert [await may_see(one) for one in (of_mia, of_ann)] == [False, True]
    place.warm.clock.forward(WEEK_S - 120)
    assert await may_see(of_ann)
    place.warm.clock.forward(120)
    page = await of_ann.ask("/jobs/7")
    assert page.location == "/login?next=%2Fjobs%2F7"
    of_ann.set_cookie("session", "x" * 43)  # as if the browser's clock were late
    page = await of_ann.see(page.location)
    assert "Your session has ended: log in again" in page.text
    assert page.main.fields()["next"] == "/jobs/7"
    page = await of_ann.send("/login", "/tokens")
    assert (page.status, "Please log in" in page.text) == (401, True)
    assert page.main.links("/login")
    part = {"HX_Request": "true", "HX_Current_URL": f"{place.url}/jobs?state=Failed"}
    page = await of_ann.ask("/jobs", **part)
    assert (page.status, page.source) == (401, "")
    assert page.headers["HX-Redirect"] == "/login?next=%2Fjobs%3Fstate%3DFailed"


async def test_wrong_tokens_are_limited_for_each_address(people: People) -> None:
    browser = await people.stranger()
    csrf = await browser.csrf("/login")

    async def tried(token: str, address: str) -> Any:
        fields = {"csrf": csrf, "token": token}
        return await browser.ask("/login", "POST", fields, X_Forwarded_For=address)

    for number in range(10):
        assert (await tried("wrong", f"2001:db8::{number}")).status == 401
    page = await tried(ANN, "2001:db8::99")
    # The right one is not even looked at: who tries learns nothing.
    assert (page.status, int(page.headers["Retry-After"]) > 0) == (429, True)
    assert "too many wrong tokens" in page.text.lower()
    assert (await tried("wrong", "2001:db8:0:1::1")).status == 401
    for _ in range(20):
        assert (await tried(ANN, "10.0.0.9")).status == 303
        browser.set_cookie("session", "")
        csrf = await browser.csrf("/login")


async def test_a_session_alone_changes_nothing_by_the_api(people: People) -> None:
    """Another page of the same site can make the browser send the cookie, with any body."""
    people.place.does(None)
    job = await people.place.upload(user_id="ann")
    browser = await people.logged_in(ADMIN)
    csrf = await browser.csrf("/account")
    methods = {(one.method, one.path) for one in API if one.method != "GET"}
    assert len(methods) > 20
    for method, template in sorted(methods):
        path = re.sub(r"{\w+}", str(job), template)
        shown: dict[str, Any] = {"fields": {"csrf": csrf}, "X_CSRF_Token": csrf}
        page = await browser.ask(f"{path}?csrf={csrf}", method, Accept="*/*", **shown)
        assert page.status == 401, (method, path)
    assert not (await people.place.api("GET", f"/jobs/{job}"))["ended"]


async def test_a_session_reads_what_its_token_reads_and_counts_beside_no_other(
    people: People,
) -> None:
    place = people.place
    mine, other = await place.upload(user_id="ann"), await place.upload(user_id="bob")
    link = (await place.api("POST", f"/jobs/{other}/links", {}))["link"]
    ann, bob, robot = [await people.logged_in(one) for one in (ANN, BOB, SENDER)]
    bobs, wrong = [{"Authorization": f"Bearer {one}"} for one in (BOB, "wrong")]
    for browser, path, headers, status in (
        *((ann, f"/{one}jobs/{mine}", {}, 200) for one in ("", "api/v1/")),
        *((bob, f"/{one}jobs/{mine}", {}, 404) for one in ("", "api/v1/")),
        *((robot, f"/{one}jobs/{mine}", {}, 403) for one in ("", "api/v1/")),
        (ann, f"/api/v1/jobs/{mine}/events", {}, 200),
        (ann, "/api/v1/agents", {"Accept": "*/*"}, 403),
        (ann, f"/api/v1/jobs/{mine}", bobs, 404),
        (ann, f"/api/v1/jobs/{other}", bobs, 200),
        (ann, "/api/v1/jobs", wrong | {"Accept": "*/*"}, 401),
        (ann, f"/jobs/{other}?link={link}", {}, 200),
        (ann, f"/jobs/{mine}?link={link}", {}, 403),
        (ann, f"/jobs/{mine}?link=x{link}", {}, 403),
    ):
        assert (await browser.ask(path, **headers)).status == status, path


async def test_the_account_says_who_one_is_and_what_one_may_do(people: People) -> None:
    await people.place.upload(user_id="ann")
    for token, says, says_not in (
        (ANN, ("ann-laptop", "user", "manage", "Uploads now", people.place.service), ("operate",)),
        (ADMIN, ("admin", "operator", "operate"), ("Uploads now",)),
        (LAB, ("portal", "lab-*", "submit"), ("operate",)),
        ("the-token-of-node", ("node-1", "agent"), ("manage", "Uploaded")),
        (SENDER, ("ann-sender", "submit"), ("manage", "Uploaded")),
    ):
        text = (await (await people.logged_in(token)).see("/account")).text
        assert [one for one in says if one not in text] == []
        assert [one for one in says_not if one in text] == []


async def login_link(people: People, token: str = ANN) -> str:
    """Path and query of one."""
    maker = await people.stranger()
    maker.token = token
    found = await maker.json("/api/v1/login-links", "POST")
    assert found["expires_at"]
    assert found["url"].startswith(f"{people.place.url}/login/once?code=")
    return str(found["url"]).removeprefix(people.place.url)


def code_of(path: str) -> str:
    return path.partition("code=")[2]


async def test_a_link_logs_a_browser_in_once(people: People) -> None:
    path = await login_link(people, ADMIN)
    browser, other = await people.logged_in(BOB), await people.stranger()
    for _ in range(3):  # whoever only looks does not use it up
        page = await browser.see(path)
        assert "Log in as admin" in page.main.buttons()
        assert "logged in as bob" in page.text
    page = await browser.ask("/login/once", "POST", {"code": code_of(path)})
    assert page.status == 403  # nobody is logged in by a form of another site
    page = await browser.send(path, "/login/once", code=code_of(path))
    assert (page.status, page.location) == (303, "/")
    assert "operator" in (await browser.see("/account")).text
    page = await other.send("/login", "/login/once", code=code_of(path))
    assert (page.status, "was used before" in page.text) == (403, True)
    page = await other.ask(path)
    assert (page.status, page.code) == (403, "login_link_used")
    assert not await may_see(other)


async def test_a_link_that_is_not_good_logs_nobody_in(people: People) -> None:
    place, browser = people.place, await people.stranger()
    job = await place.upload(user_id="ann")
    signed = (await place.api("POST", f"/jobs/{job}/links", {}))["link"]
    made = await token_of(place)
    path, late, ended = [await login_link(people, one) for one in (ANN, ANN, made["token"])]
    code = code_of(path)
    await place.api("DELETE", f"/tokens/{made['id']}")
    wrong = dict.fromkeys(("", "x", code[:-1], f"x{code}", signed, "é"), "login_link_invalid")
    place.warm.clock.forward(60)
    wrong |= {code_of(late): "login_link_expired", code_of(ended): ""}
    for one, says in wrong.items():
        for page in (
            await browser.ask(f"/login/once?code={one}"),
            await browser.send("/login", "/login/once", code=one),
        ):
            assert (page.status, browser.cookie("session")) == (403, "")
            assert says in page.text
    # Nor is one good as a link to a job, and a session or a link makes none.
    assert (await browser.ask(f"/jobs/{job}?link={code}")).status == 403
    session = await people.logged_in(ANN)
    for query, status in (("", 401), (f"?link={signed}", 403)):
        page = await session.ask(f"/api/v1/login-links{query}", "POST", Accept="*/*")
        assert page.status == status


async def test_sessions_outlive_a_restart_while_their_token_is_good(tmp_path: Path) -> None:
    ended = "a-token-that-logs-out"
    readers, cookies = PRINCIPALS | {ended: Principal("eve", Role.USER, "eve")}, list[str]()
    async with driving(tmp_path, FakeOrchestrator(), principals=readers) as caller:
        for token in (ANN, BOB, ended):
            async with browsing(caller.url) as browser:
                await browser.log_in(token)
                cookies.append(browser.cookie("session"))
                if token == ended:
                    await browser.send("/account", "/logout")
    del readers[BOB]
    async with (
        driving(tmp_path, FakeOrchestrator(), principals=readers) as caller,
        browsing(caller.url) as browser,
    ):
        await browser.log_in(ADMIN)
        for cookie, good in zip(cookies, (True, False, False), strict=True):
            browser.set_cookie("session", cookie)
            assert await may_see(browser) is good
