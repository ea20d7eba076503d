"""The pages of tokens and of the audit trail."""

from __future__ import annotations

import re

import pytest

from server.domain.tokens import read
from tests.contract.test_login_pages import ADMIN, ANN, serving

SHOWN = re.compile(r"ferryman_[0-9a-z]{10}_[0-9A-Za-z]{38}")


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


async def test_a_token_is_made_and_shown_once(world):
    browser = await world.browser(ADMIN)
    shown = await browser.send(
        "/tokens", "/tokens", name="lab", role="portal", users="lab-*, x", expires_in="90d"
    )
    assert shown.status == 201
    assert shown.headers["Cache-Control"] == "no-store"
    (text,) = set(SHOWN.findall(shown.text))
    token_id, _ = read(text)
    (made,) = (await world.api("GET", f"/api/v1/tokens?id={token_id}"))["items"]
    assert (made["users"], made["created_by"]) == (["lab-*", "x"], "admin")
    assert (await world.api("GET", "/api/v1/whoami", text))["name"] == "lab"
    for path in ("/tokens", f"/tokens/{token_id}"):
        page = (await browser.ask(path)).text
        assert token_id in page
        assert text not in page
    portal = await world.browser(text)
    assert (await portal.ask("/jobs")).status == 200


@pytest.mark.parametrize(
    ("fields", "field", "says", "status"),
    [
        ({"name": "<b>x"}, "name", "should be 1 to 64 characters", 400),
        ({"name": ""}, "name", "Missing name field", 400),
        ({"name": "token-1"}, "name", "server&#39;s own", 400),
        ({"role": "link"}, "role", "role should be one of", 400),
        ({"role": "portal", "user_id": "x"}, "user_id", "only a token of the role user", 400),
        ({"users": "x"}, "users", "only a token of the role portal", 400),
        ({"users": "é" * 2_000}, "users", "pattern", 400),
        ({"expires_in": "soon<b>"}, "expires_in", "Invalid expires_in", 400),
        ({"expires_in": "0s"}, "expires_in", "longer than 0s", 400),
        ({"scopes": "operate"}, "scopes", "one or more of read, submit, manage", 400),
        ({"scopes": "everything"}, "scopes", "Invalid scopes", 400),
        ({"name": "eve", "role": "portal"}, "name", "that of the user eve", 409),
    ],
)
async def test_what_is_wrong_is_said_beside_the_field(world, fields, field, says, status):
    await world.api("POST", "/api/v1/tokens", json={"name": "eve", "role": "user"})
    browser = await world.browser(ADMIN)
    given = {"name": "mia", "role": "user"} | fields
    shown = await browser.send("/tokens", "/tokens", **given)
    assert shown.status == status
    beside = re.search(rf'id="{field}-problem"[^>]*>([^<]*)', shown.text)
    assert beside
    assert says.lower() in beside[1].lower()
    assert "<b>" not in shown.text
    if fields.get("name") != "":
        assert f'value="{given["name"].replace("<b>", "&lt;b&gt;")}"' in shown.text
    assert len((await world.api("GET", "/api/v1/tokens"))["items"]) == 1


async def test_a_token_is_rotated_and_revoked(world):
    made = await world.api("POST", "/api/v1/tokens", json={"name": "eve", "role": "user"})
    path = f"/tokens/{made['id']}"
    browser, eve = await world.browser(ADMIN), await world.browser(made["token"])
    shown = await browser.send(path, f"{path}/rotate", overlap="a while")
    assert (shown.status, 'value="a while"' in shown.text) == (400, True)
    shown = await browser.send(path, f"{path}/rotate", overlap="0s")
    assert shown.status == 200
    (text,) = set(SHOWN.findall(shown.text))
    assert text != made["token"]
    assert (await world.api("GET", "/api/v1/whoami", text))["name"] == "eve"
    assert (await eve.ask("/jobs")).status == 200
    shown = await browser.send(path, f"{path}/revoke")
    assert (shown.status, shown.location) == (303, f"{path}?done=revoked")
    page = (await browser.ask(shown.location)).text
    assert "revoked" in page
    assert "Revoke this token" not in page
    assert (await eve.ask("/jobs")).status == 303
    shown = await browser.ask(f"{path}/rotate", "POST", {"csrf": await browser.csrf("/tokens")})
    assert (shown.status, "token_ended" in shown.text) == (409, True)
    assert (await browser.ask("/tokens/0000000000")).status == 404


async def test_nothing_is_done_without_a_form_of_this_server(world):
    made = await world.api("POST", "/api/v1/tokens", json={"name": "eve", "role": "user"})
    browser = await world.browser(ADMIN)
    for end in ("", f"/{made['id']}/revoke", f"/{made['id']}/rotate"):
        shown = await browser.ask(f"/tokens{end}", "POST", {"name": "x", "role": "operator"})
        assert (shown.status, "form_expired" in shown.text) == (403, True)
    found = await world.api("GET", "/api/v1/tokens?ended=1")
    assert [(one["name"], one["state"]) for one in found["items"]] == [("eve", "live")]


async def test_the_list_has_what_was_asked_for_page_by_page(world):
    for number in range(60):
        await world.api("POST", "/api/v1/tokens", json={"name": f"u{number}", "role": "user"})
    lab = await world.api("POST", "/api/v1/tokens", json={"name": "lab", "role": "portal"})
    await world.api("DELETE", f"/api/v1/tokens/{lab['id']}")
    browser = await world.browser(ADMIN)
    page = (await browser.ask("/tokens")).text
    assert lab["id"] not in page
    assert page.count("<tr>") == 51
    (older,) = re.findall(r'href="(/tokens\?cursor=[^"]+)"', page)
    assert (await browser.ask(older)).text.count("<tr>") == 11
    page = (await browser.ask("/tokens?name=&role=portal&user=&ended=1")).text
    assert (lab["id"] in page, page.count("<tr>")) == (True, 2)
    page = (await browser.ask("/tokens?name=nobody<b>")).text
    assert "No token is like that" in page
    assert "nobody&lt;b&gt;" in page
    for wrong in ("role=x", "ended=x", "cursor=x"):
        assert (await browser.ask(f"/tokens?{wrong}")).status == 400


async def test_the_trail_says_who_did_what_by_a_page_at_once(world):
    browser = await world.browser(ADMIN)
    shown = await browser.send("/tokens", "/tokens", name="eve", role="user")
    token_id, _ = read(SHOWN.findall(shown.text)[0])
    page = (await browser.ask(f"/audit?target={token_id}")).text
    assert "POST /tokens" in page
    assert "admin" in page
    assert token_id in page
    await world.job()
    page = (await browser.ask("/audit?action=upload&principal=ann")).text
    assert page.count("<tr>") == 2
    page = (await browser.ask("/audit?principal=nobody<b>")).text
    assert "Nothing in the trail is like that" in page
    assert "nobody&lt;b&gt;" in page
    page = await browser.ask("/audit?since=once<b>")
    assert (page.status, 'id="problem"' in page.text) == (400, True)
    assert "once&lt;b&gt;" in page.text
    assert (await browser.ask("/audit?cursor=x")).status == 400


async def test_the_trail_is_shown_page_by_page(world):
    browser = await world.browser(ADMIN)
    csrf = await browser.csrf("/tokens")
    for number in range(55):
        await browser.ask(f"/tokens/{number}/revoke", "POST", {"csrf": csrf})
    page = (await browser.ask("/audit?action=revoke")).text
    assert page.count("<tr>") == 51
    (older,) = re.findall(r'href="(/audit\?cursor=[^"]+)"', page)
    assert "action=revoke" in older
    page = (await browser.ask(older.replace("&amp;", "&"))).text
    assert page.count("<tr>") == 6
    assert "The newest" in page


async def test_only_operators_with_the_scope_see_them(world):
    limited = await world.api(
        "POST", "/api/v1/tokens", json={"name": "op", "role": "operator", "scopes": ["operate"]}
    )
    for token in (ANN, "the-token-of-portal", "the-token-of-node", limited["token"]):
        browser = await world.browser(token)
        csrf = await browser.csrf("/account")
        for path in ("/tokens", "/audit", f"/tokens/{limited['id']}"):
            assert (await browser.ask(path)).status == 403
        for path in ("/tokens", f"/tokens/{limited['id']}/revoke"):
            shown = await browser.ask(path, "POST", {"csrf": csrf, "name": "x", "role": "operator"})
            assert shown.status == 403
    found = await world.api("GET", "/api/v1/tokens?ended=1")
    assert [one["state"] for one in found["items"]] == ["live"]
