"""API tokens: made, listed, rotated, revoked, and used, over HTTP and by their pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.domain.tokens import SECRET_LENGTH, read, text_of
from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, Page, browsing
from tests.kit.server_http import ServerClient, driving
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "the-operators-own-token"
PRINCIPALS = {OPERATOR: Principal("admin", Role.OPERATOR)}
TOKENS = "/api/v1/tokens"
SHOWN = re.compile(r"ferryman_[0-9a-z]{10}_[0-9A-Za-z]{38}")


class Tokens:
    """What an operator does with them."""

    def __init__(self, caller: ServerClient, operator: str | None = OPERATOR) -> None:
        self.caller, self._operator = caller, operator

    async def ask(
        self, method: str, path: str, body: Any = None, token: str | None = "", **query: str
    ) -> tuple[int, Any]:
        """None: without a token."""
        token = self._operator if token == "" else token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.caller.session.request(
            method, f"{self.caller.url}{path}", json=body, params=query, headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def create(self, name: str = "ann", role: str = "user", **fields: Any) -> dict[str, Any]:
        status, made = await self.ask("POST", TOKENS, {"name": name, "role": role, **fields})
        assert status == 201, made
        return dict(made)

    async def why(self, text: str) -> str:
        """Why the token is refused; empty: it is not."""
        status, found = await self.ask("GET", "/api/v1/whoami", token=text)
        assert status in (200, 401)
        return "" if status == 200 else str(found["detail"])

    async def revoke(self, made: dict[str, Any]) -> dict[str, Any]:
        status, found = await self.ask("DELETE", f"{TOKENS}/{made['id']}")
        assert status == 200
        return dict(found)

    async def rotate(self, made: dict[str, Any], **body: Any) -> dict[str, Any]:
        status, found = await self.ask("POST", f"{TOKENS}/{made['id']}/rotate", body or None)
        assert status == 200, found
        return dict(found)

    async def listed(self, **query: str) -> list[dict[str, Any]]:
        return list((await self.ask("GET", TOKENS, **query))[1]["items"])


@pytest_asyncio.fixture(loop_scope="module")
async def tokens(place: Place) -> Tokens:
    return Tokens(place)


@pytest_asyncio.fixture(loop_scope="module")
async def admin(place: Place) -> AsyncIterator[Browser]:
    async with browsing(place.url, OPERATOR) as found:
        yield found


async def test_a_token_is_good_at_once_and_a_revoked_one_no_more(
    place: Place, tokens: Tokens
) -> None:
    name = place.user
    made, other = [await tokens.create(name, user_id="ann") for _ in range(2)]
    assert made["token"].startswith(f"ferryman_{made['id']}_")
    assert (made["state"], made["created_by"], made["message"]) == ("live", "admin", "")
    _, me = await tokens.ask("GET", "/api/v1/whoami", token=made["token"])
    assert me == {
        "name": name,
        "role": "user",
        "user_id": "ann",
        "users": [],
        "acts_as": None,
        "scopes": ["read", "submit", "manage"],
        "token_id": made["id"],
        "expires_at": None,
        "token_needed": True,
    }
    (shown,) = await tokens.listed(id=made["id"])
    assert (shown["last_used_from"], shown["last_used_at"] is None) == ("127.0.0.1", False)
    revoked = await tokens.revoke(made)
    assert (revoked["state"], "token" in revoked) == ("revoked", False)
    assert f"token {made['id']} was revoked on 20" in await tokens.why(made["token"])
    assert await tokens.why(other["token"]) == ""
    again = await tokens.revoke(made)
    assert {**again, "last_used_at": ""} == {**revoked, "last_used_at": ""}
    assert again["last_used_at"] == shown["last_used_at"], "a refused request is no use"


async def test_a_token_expires_and_a_rotation_gives_it_more_time(
    place: Place, tokens: Tokens
) -> None:
    made = await tokens.create(place.user, expires_in=60)
    later = await tokens.create(place.user, expires_in=60)
    later = await tokens.rotate(later, expires_in="1h")
    place.warm.clock.forward(59)
    assert await tokens.why(made["token"]) == ""
    place.warm.clock.forward(1)
    assert "has expired on 20" in await tokens.why(made["token"])
    assert await tokens.why(later["token"]) == ""
    status, refused = await tokens.ask("POST", f"{TOKENS}/{made['id']}/rotate")
    assert (status, refused["code"]) == (409, "token_ended")
    assert [one["state"] for one in await tokens.listed(id=made["id"])] == ["expired"]


async def test_a_rotation_keeps_the_id_and_changes_the_secret(place: Place, tokens: Tokens) -> None:
    made = await tokens.create(place.user)
    second = await tokens.rotate(made, overlap="1m", expires_in="2d")
    assert second["id"] == made["id"]
    assert None not in (second["former_until"], second["expires_at"])
    assert [await tokens.why(one["token"]) for one in (made, second)] == ["", ""]
    place.warm.clock.forward(60)
    assert "was rotated, it has another secret now" in await tokens.why(made["token"])
    assert await tokens.why(second["token"]) == ""
    third = await tokens.rotate(made)
    assert (third["former_until"], third["expires_at"]) == (None, second["expires_at"])
    assert "was rotated" in await tokens.why(second["token"])
    # Of the secrets before only the latest is known.
    assert "its secret is not that of" in await tokens.why(made["token"])
    fourth = await tokens.rotate(made, overlap="1h")
    await tokens.revoke(made)
    for one in (third, fourth):
        assert "was revoked" in await tokens.why(one["token"])
    # Who has no secret does not learn what became of it.
    guess = text_of(made["id"], "x" * SECRET_LENGTH)
    assert f"its secret is not that of token {made['id']}:" in await tokens.why(guess)


async def test_no_text_of_a_token_is_shown_or_stored_but_once(place: Place, tokens: Tokens) -> None:
    made = await tokens.create(place.user)
    rotated = await tokens.rotate(made)
    listed = await tokens.listed(ended="1")
    assert made["id"] in str(listed)
    assert "digest" not in str(listed)
    files = [file.read_bytes() for file in place.warm.data.rglob("*") if file.is_file()]
    stored = b"".join(files)
    assert made["id"].encode() in stored
    for text in (made["token"], rotated["token"]):
        secret = text.split("_")[2]
        assert secret not in str(listed)
        assert secret.encode() not in stored


@each(
    "body, code, words",
    [
        ({}, "missing_name", "Missing name"),
        ({"name": "ann"}, "missing_role", "Missing role"),
        ({"name": "a b", "role": "user"}, "invalid_name", "1 to 64 characters of"),
        ({"name": "token-7", "role": "user"}, "invalid_name", "is the server's own"),
        ({"name": "local", "role": "user"}, "invalid_name", "is the server's own"),
        ({"name": "ann", "role": "boss"}, "invalid_role", "user, portal, operator, agent"),
        ({"name": "ann", "role": "ticket"}, "invalid_role", "user, portal, operator, agent"),
        ({"name": "ann", "role": ["link"]}, "invalid_role", "valid string"),
        ({"name": "ann", "rol": "user"}, "unknown_field", "did you mean role?"),
        ({"name": "p", "role": "portal", "user_id": "x"}, "invalid_user_id", "only a token of the"),
        ({"name": "a", "role": "user", "user_id": "a b"}, "invalid_user_id", "1 to 64"),
        ({"name": "a", "role": "user", "users": ["x"]}, "invalid_users", "only a token of the"),
        ({"name": "p", "role": "portal", "users": ["x y"]}, "invalid_users", "such as lab-*"),
        ({"name": "a", "role": "user", "scopes": []}, "invalid_scopes", "read, submit, manage"),
        ({"name": "a", "role": "user", "scopes": ["admin"]}, "invalid_scopes", "read, submit"),
        ({"name": "a", "role": "user", "scopes": ["all"]}, "invalid_scopes", "'read', 'submit'"),
        ({"name": "a", "role": "user", "expires_in": "0s"}, "invalid_expires_in", "longer than 0s"),
        ({"name": "a", "role": "user", "expires_in": "x"}, "invalid_expires_in", "'x' is not a"),
        ({"name": "a", "role": "user", "expires_in": -1}, "invalid_expires_in", "longer than 0s"),
        ({"name": 7, "role": "user"}, "invalid_name", "valid string"),
    ],
)
async def test_a_wrong_token_is_refused_with_what_is_wrong(
    tokens: Tokens, body: dict[str, Any], code: str, words: str
) -> None:
    before = len(await tokens.listed(ended="1", limit="200"))
    status, refused = await tokens.ask("POST", TOKENS, body)
    assert (status, refused["code"]) == (400, code), refused
    assert words in refused["detail"]
    assert len(await tokens.listed(ended="1", limit="200")) == before


async def test_what_is_not_there_is_said(tokens: Tokens) -> None:
    for method, path in (("DELETE", ""), ("POST", "/rotate")):
        status, refused = await tokens.ask(method, f"{TOKENS}/nothing{path}")
        assert (status, refused["code"]) == (404, "token_not_found")
    for query in ({"role": "boss"}, {"cursor": "x"}, {"limit": "0"}):
        assert (await tokens.ask("GET", TOKENS, **query))[0] == 400


@each(
    "first, second, what, later",
    [
        ({"role": "portal"}, {"role": "user"}, "is that of the portal", 409),
        ({"role": "user"}, {"role": "user", "user_id": "bob"}, "is that of the user", 409),
        # The users of a portal may change once its tokens have ended.
        (
            {"role": "portal", "users": ["a"]},
            {"role": "portal", "users": ["b"]},
            "acts for a, by token",
            201,
        ),
    ],
)
async def test_a_name_is_one_principals_only(
    place: Place, tokens: Tokens, first: Any, second: Any, what: str, later: int
) -> None:
    name = place.warm.new("name")
    made = [await tokens.create(name, **first) for _ in range(2)]
    status, refused = await tokens.ask("POST", TOKENS, {"name": name, **second})
    assert (status, refused["code"]) == (409, "name_taken")
    assert what in refused["detail"]
    for one in made:
        await tokens.revoke(one)
    # What a principal submitted stays, so its name is nobody else's after a revocation either.
    assert (await tokens.ask("POST", TOKENS, {"name": name, **second}))[0] == later


async def test_the_list_has_pages_and_says_which_tokens_ended(place: Place, tokens: Tokens) -> None:
    names = [place.warm.new("t") for _ in range(5)]
    made = [(await tokens.create(name, user_id=place.user)) for name in names]
    await tokens.revoke(made[2])
    seen: list[str] = []
    query = {"limit": "2", "user": place.user}
    while True:
        _, page = await tokens.ask("GET", TOKENS, **query)
        seen += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == [made[at]["id"] for at in (4, 3, 1, 0)]
    assert [one["state"] for one in await tokens.listed(ended="1", name=names[2])] == ["revoked"]


@each(
    "header, why",
    [
        (None, "the token is missing"),
        ("Bearer not-a-token-of-anybody", "the token is wrong"),
        (f"Basic {OPERATOR}", "the scheme is not Bearer"),
        ("Bearer ferryman_0123456789_short", "it is not whole: a token has 58 characters"),
        ("Bearer ferryman_0123456789_" + "s" * 38, "it is mistyped (its checksum is wrong)"),
        ("Bearer ferryman_0123456789_" + "s" * 32 + "274pok", "no token has the id 0123456789"),
    ],
)
async def test_a_bad_token_is_refused_with_the_reason(
    place: Place, header: str | None, why: str
) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with (
        place.warm.session() as session,
        session.get(f"{place.url}/api/v1/jobs", headers=headers) as answer,
    ):
        assert (answer.status, (await answer.json())["code"]) == (401, "not_allowed")
        assert why in (await answer.json())["detail"]


# -- servers of their own: restarts, and settings


@asynccontextmanager
async def serving(
    folder: Path, operator: str | None = OPERATOR, **settings: Any
) -> AsyncIterator[Tokens]:
    async with driving(folder, FakeOrchestrator(), **settings) as client:
        yield Tokens(client, operator)


async def test_tokens_outlive_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path, tokens=[OPERATOR]) as tokens:
        made, revoked = await tokens.create(), await tokens.create()
        await tokens.revoke(revoked)
        assert await tokens.why(made["token"]) == ""
    async with serving(tmp_path, tokens=[OPERATOR]) as tokens:
        (shown,) = await tokens.listed(id=made["id"])
        assert (shown["last_used_from"], shown["last_used_at"] is None) == ("127.0.0.1", False)
        assert await tokens.why(made["token"]) == ""
        assert "was revoked" in await tokens.why(revoked["token"])


async def test_without_tokens_a_caller_of_this_machine_is_an_operator_unless_it_says_who_it_is(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, None) as tokens:
        _, me = await tokens.ask("GET", "/api/v1/whoami")
        assert (me["name"], me["role"], me["token_needed"]) == ("local", "operator", False)
        asked = {"name": "p", "role": "portal"}
        status, made = await tokens.ask("POST", TOKENS, asked, "whatever-is-in-a-variable")
        assert (status, 'set [server] auth = "token"' in made["message"]) == (201, True)
        _, me = await tokens.ask("GET", "/api/v1/whoami", token=made["token"])
        assert (me["name"], me["role"]) == ("p", "portal")
        await tokens.revoke(made)
        assert "was revoked" in await tokens.why(made["token"])
        boss = await tokens.create("boss", "operator")
    async with serving(tmp_path, None, auth="token") as tokens:
        assert (await tokens.ask("GET", "/api/v1/whoami"))[0] == 401
        assert (await tokens.ask("GET", TOKENS, token=boss["token"]))[0] == 200


# -- pages


async def test_a_token_is_made_and_shown_once_by_its_page(
    place: Place, tokens: Tokens, admin: Browser
) -> None:
    name = place.warm.new("lab")
    page = await admin.send(
        "/tokens", "/tokens", name=name, role="portal", users="lab-*, x", expires_in="90d"
    )
    assert (page.status, page.headers["Cache-Control"]) == (201, "no-store")
    (text,) = set(SHOWN.findall(page.source))
    token_id, _ = read(text)
    (made,) = await tokens.listed(id=token_id)
    assert (made["users"], made["created_by"]) == (["lab-*", "x"], "admin")
    assert await tokens.why(text) == ""
    for path in ("/tokens", f"/tokens/{token_id}"):
        shown = await admin.see(path)
        assert token_id in shown.text
        assert text not in shown.source
    trail = await admin.see(f"/audit?target={token_id}")
    assert [("POST /tokens" in str(row), name in str(row)) for row in trail.main.rows()] == [
        (True, False)
    ]


@each(
    "fields, field, says, status",
    [
        ({"name": "<b>x"}, "name", "should be 1 to 64 characters", 400),
        ({"name": ""}, "name", "Missing name field", 400),
        ({"name": "token-1"}, "name", "server's own", 400),
        ({"role": "link"}, "role", "Role should be one of", 400),
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
async def test_what_is_wrong_is_said_beside_the_field(
    tokens: Tokens, admin: Browser, fields: dict[str, str], field: str, says: str, status: int
) -> None:
    await tokens.create("eve")
    before = len(await tokens.listed(limit="200"))
    given = {"name": "mia", "role": "user"} | fields
    page = await admin.send("/tokens", "/tokens", **given)
    assert page.status == status
    made = page.tree.one("form", method="post", action="/tokens").fields()
    assert list(page.errors) == [field]
    assert says.lower() in page.errors[field].lower()
    assert made["name"] == given["name"]
    assert not page.main.all("b")
    assert len(await tokens.listed(limit="200")) == before


async def test_a_token_is_rotated_and_revoked_by_its_page(
    place: Place, tokens: Tokens, admin: Browser
) -> None:
    made = await tokens.create(place.user)
    path = f"/tokens/{made['id']}"
    page = await admin.send(path, f"{path}/rotate", overlap="a while")
    assert (page.status, page.main.fields()["overlap"]) == (400, "a while")
    page = await admin.send(path, f"{path}/rotate", overlap="0s")
    (text,) = set(SHOWN.findall(page.source))
    assert "was rotated" in await tokens.why(made["token"])
    assert await tokens.why(text) == ""
    page = await admin.send(path, f"{path}/revoke")
    assert (page.status, page.location) == (303, f"{path}?done=revoked")
    assert "revoked" in (await admin.see(page.location)).text
    assert (await admin.see(path)).actions == set()
    page = await admin.send("/tokens", f"{path}/rotate")
    assert (page.status, "token_ended" in page.text) == (409, True)
    assert (await admin.ask("/tokens/0000000000")).status == 404


async def test_lists_of_tokens_and_of_the_trail_come_page_by_page(
    place: Place, tokens: Tokens, admin: Browser
) -> None:
    user = place.user
    for _ in range(52):
        await tokens.create(place.warm.new("t"), user_id=user)
    await tokens.ask("DELETE", f"{TOKENS}/{(await tokens.listed(user=user))[0]['id']}")

    async def pages(path: str) -> list[Page]:
        found = [await admin.see(path)]
        while older := found[-1].main.links("cursor="):
            found.append(await admin.see(older[0]))
        return found

    assert [len(one.main.rows()) for one in await pages(f"/tokens?user={user}")] == [50, 1]
    assert len((await pages(f"/tokens?user={user}&ended=1&name=&role=user"))[1].main.rows()) == 2
    for path, says in (
        ("/tokens?name=nobody%3Cb%3E", "No token is like that"),
        ("/audit?principal=nobody%3Cb%3E", "Nothing in the trail is like that"),
    ):
        page = await admin.see(path)
        assert says in page.text
        assert "nobody<b>" in page.main.fields().values()
    for wrong in ("/tokens?role=x", "/tokens?ended=x", "/tokens?cursor=x", "/audit?cursor=x"):
        assert (await admin.ask(wrong)).status == 400
    page = await admin.ask("/audit?since=once%3Cb%3E")
    assert (page.status, page.main.fields()["since"]) == (400, "once<b>")
    assert "once<b>" in page.main.one(id="problem").text
    for number in range(55):
        await admin.ask(f"/tokens/{number}/revoke", "POST", {"csrf": ""})
    trail = await pages("/audit?action=revoke")
    assert [len(one.main.rows()) for one in trail[:1]] == [50]
    assert sum(len(one.main.rows()) for one in trail) >= 55
    assert "action=revoke" in trail[1].path
    assert "The newest" in trail[1].text
