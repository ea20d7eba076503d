"""API tokens: made, listed, rotated, revoked, and used, over HTTP and by their pages."""

import re
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.domain.tokens import SECRET_LENGTH, read, text_of
from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, browsing
from tests.kit.server_http import ServerClient, driving
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "the-operators-own-token"
PRINCIPALS = {OPERATOR: Principal("admin", Role.OPERATOR)}
TOKENS = "/api/v1/tokens"
SHOWN = re.compile(r"ferryman_[0-9a-z]{10}_[0-9A-Za-z]{38}")


class Tokens:
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
            found = await answer.json()
            assert "token" not in found or answer.headers["Cache-Control"] == "no-store"
            return answer.status, found

    async def done(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """What is answered, which must be a yes."""
        status, found = await self.ask(method, f"{TOKENS}{path}", body, **query)
        assert status in (200, 201), found
        return found

    async def create(self, name: str = "ann", role: str = "user", **fields: Any) -> Any:
        return await self.done("POST", "", {"name": name, "role": role, **fields})

    async def revoke(self, made: Any) -> Any:
        return await self.done("DELETE", f"/{made['id']}")

    async def rotate(self, made: Any, **body: Any) -> Any:
        return await self.done("POST", f"/{made['id']}/rotate", body or None)

    async def listed(self, **query: str) -> list[Any]:
        return list((await self.done("GET", "", **query))["items"])

    async def why(self, text: str) -> str:
        """Why the token is refused; empty: it is not."""
        status, found = await self.ask("GET", "/api/v1/whoami", token=text)
        assert status in (200, 401)
        return "" if status == 200 else str(found["detail"])


@pytest_asyncio.fixture(loop_scope="module")
async def tokens(place: Place) -> Tokens:
    return Tokens(place)


async def test_a_token_is_good_until_it_is_revoked(place: Place, tokens: Tokens) -> None:
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


async def test_a_token_expires_unless_it_is_given_time(place: Place, tokens: Tokens) -> None:
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
    # Who has no secret does not learn what became of it, and none is shown or stored but once.
    guess = text_of(made["id"], "x" * SECRET_LENGTH)
    assert f"its secret is not that of token {made['id']}:" in await tokens.why(guess)
    files = [file.read_bytes() for file in place.warm.data.rglob("*") if file.is_file()]
    stored = b"".join([*files, str(await tokens.listed(ended="1")).encode()])
    assert made["id"].encode() in stored
    for one in (made, second, third, fourth):
        assert one["token"].split("_")[2].encode() not in stored


@each(
    "body, code, words",
    [
        ({}, "missing_name", "Missing name"),
        ({"name": "ann"}, "missing_role", "Missing role"),
        ({"name": "a b", "role": "user"}, "invalid_name", "1 to 64 characters of"),
        ({"name": "local", "role": "user"}, "invalid_name", "is the server's own"),
        ({"name": "ann", "role": "boss"}, "invalid_role", "user, portal, operator, agent"),
        ({"name": "ann", "role": ["link"]}, "invalid_role", "valid string"),
        ({"name": "ann", "rol": "user"}, "unknown_field", "did you mean role?"),
        ({"name": "p", "role": "portal", "user_id": "x"}, "invalid_user_id", "only a token of the"),
        ({"name": "a", "role": "user", "user_id": "a b"}, "invalid_user_id", "1 to 64"),
        ({"name": "a", "role": "user", "users": ["x"]}, "invalid_users", "only a token of the"),
        ({"name": "p", "role": "portal", "users": ["x y"]}, "invalid_users", "such as lab-*"),
        ({"name": "a", "role": "user", "scopes": []}, "invalid_scopes", "read, submit, manage"),
        ({"name": "a", "role": "user", "scopes": ["admin"]}, "invalid_scopes", "read, submit"),
        ({"name": "a", "role": "user", "expires_in": "0s"}, "invalid_expires_in", "longer than 0s"),
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


async def test_what_is_not_there_or_asked_for_wrongly_is_said(tokens: Tokens) -> None:
    for method, path in (("DELETE", ""), ("POST", "/rotate")):
        status, refused = await tokens.ask(method, f"{TOKENS}/nothing{path}")
        assert (status, refused["code"]) == (404, "token_not_found")
    for token, why in (
        ("not-a-token-of-anybody", "the token is wrong"),
        ("ferryman_0123456789_short", "it is not whole: a token has 58 characters"),
        ("ferryman_0123456789_" + "s" * 38, "it is mistyped (its checksum is wrong)"),
        ("ferryman_0123456789_" + "s" * 32 + "274pok", "no token has the id 0123456789"),
    ):
        assert why in await tokens.why(token), token
    for query in ("role=boss", "cursor=x", "limit=0"):
        assert (await tokens.ask("GET", f"{TOKENS}?{query}"))[0] == 400


OF_A, OF_B = [{"role": "portal", "users": [user]} for user in "ab"]


@each(
    "first, second, what, later",
    [
        ({"role": "portal"}, {"role": "user"}, "is that of the portal", 409),
        ({"role": "user"}, {"role": "user", "user_id": "bob"}, "is that of the user", 409),
        # The users of a portal may change once its tokens have ended.
        (OF_A, OF_B, "acts for a, by token", 201),
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


async def test_without_tokens_who_says_nothing_is_an_operator(tmp_path: Path) -> None:
    """Nobody needs to log in there; and what was made then outlives the server."""
    async with driving(tmp_path, FakeOrchestrator()) as caller, browsing(caller.url) as browser:
        page = await browser.ask("/login?next=/jobs?state=Failed")
        assert (page.status, page.location) == (303, "/jobs?state=Failed")
        assert (await browser.ask("/account")).location == "/"
        assert "No login needed here" in (await browser.see("/jobs")).tree.text
        link = await browser.json("/api/v1/login-links", "POST")
        assert (link["url"], link["expires_at"]) == (f"{caller.url}/", None)
        tokens = Tokens(caller, None)
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
    async with driving(tmp_path, FakeOrchestrator(), auth="token") as caller:
        tokens = Tokens(caller, boss["token"])
        assert (await tokens.ask("GET", "/api/v1/whoami", token=None))[0] == 401
        assert "was revoked" in await tokens.why(made["token"])
        (shown,) = await tokens.listed(id=made["id"], ended="1")
        assert (shown["last_used_from"], shown["last_used_at"] is None) == ("127.0.0.1", False)


async def test_a_token_is_made_rotated_and_revoked_by_its_page(
    place: Place, tokens: Tokens, admin: Browser
) -> None:
    """Its text is shown once."""
    name = place.warm.new("lab")
    fields = {"name": name, "role": "portal", "users": "lab-*, x", "expires_in": "90d"}
    page = await admin.send("/tokens", "/tokens", **fields)
    assert (page.status, page.headers["Cache-Control"]) == (201, "no-store")
    (text,) = set(SHOWN.findall(page.source))
    (made,) = await tokens.listed(id=read(text)[0])
    assert (made["users"], made["created_by"]) == (["lab-*", "x"], "admin")
    assert await tokens.why(text) == ""
    path = f"/tokens/{made['id']}"
    for there in ("/tokens", path):
        shown = await admin.see(there)
        assert (made["id"] in shown.text, text in shown.source) == (True, False)
    (row,) = (await admin.see(f"/audit?target={made['id']}")).main.rows()
    assert ("POST /tokens" in str(row), name in str(row)) == (True, False)
    page = await admin.send(path, f"{path}/rotate", overlap="a while")
    assert (page.status, page.main.fields()["overlap"]) == (400, "a while")
    page = await admin.send(path, f"{path}/rotate", overlap="0s")
    (second,) = set(SHOWN.findall(page.source))
    assert "was rotated" in await tokens.why(text)
    assert await tokens.why(second) == ""
    page = await admin.send(path, f"{path}/revoke")
    assert (page.status, page.location) == (303, f"{path}?done=revoked")
    page = await admin.see(page.location)
    assert ("revoked" in page.text, page.actions) == (True, set())
    page = await admin.send("/tokens", f"{path}/rotate")
    assert (page.status, "token_ended" in page.text) == (409, True)
    assert (await admin.ask("/tokens/0000000000")).status == 404


@each(
    "fields, field, says, status",
    [
        ({"name": "<b>x"}, "name", "should be 1 to 64 characters", 400),
        ({"role": "link"}, "role", "Role should be one of", 400),
        ({"users": "é" * 2_000}, "users", "pattern", 400),
        ({"expires_in": "soon<b>"}, "expires_in", "Invalid expires_in", 400),
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


async def test_lists_of_tokens_and_of_the_trail_come_page_by_page(
    place: Place, tokens: Tokens, admin: Browser
) -> None:
    user = place.user
    made = [await tokens.create(place.warm.new("t"), user_id=user) for _ in range(52)]
    await tokens.revoke(made[-1])
    for number in range(55):
        await admin.ask(f"/tokens/{number}/revoke", "POST", {"csrf": ""})

    async def rows(path: str) -> list[int]:
        """Of each page."""
        page = await admin.see(path)
        found = [len(page.main.rows())]
        while older := page.main.links("cursor="):
            page = await admin.see(older[0])
            found.append(len(page.main.rows()))
        return found

    assert await rows(f"/tokens?user={user}") == [50, 1]
    assert await rows(f"/tokens?user={user}&ended=1&name=&role=user") == [50, 2]
    assert (await rows("/audit?action=revoke"))[0] == 50
    for path, says in (
        ("/tokens?name=nobody%3Cb%3E", "No token is like that"),
        ("/audit?principal=nobody%3Cb%3E", "Nothing in the trail is like that"),
    ):
        page = await admin.see(path)
        assert (says in page.text, "nobody<b>" in page.main.fields().values()) == (True, True)
    for wrong in ("/tokens?role=x", "/tokens?ended=x", "/tokens?cursor=x", "/audit?cursor=x"):
        assert (await admin.ask(wrong)).status == 400
    page = await admin.ask("/audit?since=once%3Cb%3E")
    assert (page.status, page.main.fields()["since"]) == (400, "once<b>")
    assert "once<b>" in page.main.one(id="problem").text
