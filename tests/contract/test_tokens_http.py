"""API tokens over HTTP: made, listed, rotated, revoked, and used."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shared.clock import SECOND
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

OPERATOR = "the-operator's-own-token"
TOKENS = "/api/v1/tokens"


class Caller:
    """A server with one token in its settings, which the caller sends if it says no other."""

    def __init__(self, client: ServerClient) -> None:
        self.server, self._http, self._url = client.server, client.session, client.url

    async def ask(
        self, method: str, path: str, body: Any = None, token: str | None = OPERATOR, **query: str
    ) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self._http.request(
            method, f"{self._url}{path}", json=body, params=query, headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def create(self, name: str = "ann", role: str = "user", **fields: Any) -> dict[str, Any]:
        status, made = await self.ask("POST", TOKENS, {"name": name, "role": role, **fields})
        assert status == 201, made
        return dict(made)


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[Caller]:
    settings = {"tokens": [OPERATOR], **settings}
    async with driving(tmp_path, FakeOrchestrator(), **settings) as client:
        yield Caller(client)


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(module_folder: Path) -> AsyncIterator[Caller]:
    """One for all tests that get nothing from it."""
    async with serving(module_folder) as found:
        yield found


async def test_a_new_token_is_good_at_once_and_a_revoked_one_no_more(caller: Caller) -> None:
    made = await caller.create("ann-laptop", user_id="ann")
    assert made["token"].startswith(f"ferryman_{made['id']}_")
    assert (made["state"], made["created_by"], made["message"]) == ("live", "token-1", "")
    status, me = await caller.ask("GET", "/api/v1/whoami", token=made["token"])
    assert status == 200
    assert me == {
        "name": "ann-laptop",
        "role": "user",
        "user_id": "ann",
        "users": [],
        "acts_as": None,
        "scopes": ["read", "submit", "manage"],
        "token_id": made["id"],
        "expires_at": None,
        "token_needed": True,
    }
    status, revoked = await caller.ask("DELETE", f"{TOKENS}/{made['id']}")
    assert (status, revoked["state"], "token" in revoked) == (200, "revoked", False)
    status, refused = await caller.ask("GET", "/api/v1/jobs", token=made["token"])
    assert (status, refused["code"]) == (401, "not_allowed")
    assert f"token {made['id']} was revoked on 20" in refused["detail"]


async def test_tokens_outlive_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as caller:
        made = await caller.create()
        revoked = await caller.create()
        await caller.ask("DELETE", f"{TOKENS}/{revoked['id']}")
        await caller.ask("GET", "/api/v1/whoami", token=made["token"])
    async with serving(tmp_path) as caller:
        assert (await caller.ask("GET", "/api/v1/whoami", token=made["token"]))[0] == 200
        assert (await caller.ask("GET", "/api/v1/whoami", token=revoked["token"]))[0] == 401
        (shown,) = (await caller.ask("GET", TOKENS, id=made["id"]))[1]["items"]
        assert (shown["last_used_from"], shown["last_used_at"] is None) == ("127.0.0.1", False)


async def test_no_text_of_a_token_is_shown_or_stored_but_once(
    caller: Caller, tmp_path: Path
) -> None:
    made = await caller.create()
    _, rotated = await caller.ask("POST", f"{TOKENS}/{made['id']}/rotate")
    secrets = [text.split("_")[2] for text in (made["token"], rotated["token"])]
    _, one = await caller.ask("GET", f"{TOKENS}/{made['id']}")
    _, listed = await caller.ask("GET", TOKENS, ended="1")
    assert made["id"] in str(listed)
    assert "digest" not in str(one)
    stored = b"".join(
        file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()
    )
    assert made["id"].encode() in stored
    for secret in secrets:
        assert secret not in f"{one}{listed}"
        assert secret.encode() not in stored


async def test_a_token_may_do_what_its_scopes_say(caller: Caller) -> None:
    made = await caller.create("ann", scopes=["submit"])
    _, me = await caller.ask("GET", "/api/v1/whoami", token=made["token"])
    assert me["scopes"] == ["submit"]
    status, refused = await caller.ask("GET", "/api/v1/jobs", token=made["token"])
    assert (status, refused["code"]) == (403, "not_allowed")
    assert refused["detail"] == "ann may not do this: its token lacks the scope read"


async def test_only_operators_with_the_scope_admin_make_tokens(caller: Caller) -> None:
    admin = await caller.create("boss", "operator")
    for name, role, scopes in (
        ("ann", "user", None),
        ("p", "portal", None),
        ("watch", "operator", ["read", "operate"]),
    ):
        made = await caller.create(name, role, **({"scopes": scopes} if scopes else {}))
        for method, path in (
            ("POST", TOKENS),
            ("GET", TOKENS),
            ("DELETE", f"{TOKENS}/{admin['id']}"),
            ("POST", f"{TOKENS}/{admin['id']}/rotate"),
        ):
            assert (await caller.ask(method, path, token=made["token"]))[0] == 403
    assert (await caller.ask("GET", TOKENS, token=admin["token"]))[0] == 200


async def test_a_rotation_keeps_the_id_and_changes_the_secret(caller: Caller) -> None:
    made = await caller.create()
    rotate = f"{TOKENS}/{made['id']}/rotate"
    status, second = await caller.ask("POST", rotate, {"overlap": "1h", "expires_in": "2d"})
    assert (status, second["id"]) == (200, made["id"])
    assert second["former_until"] is not None
    assert second["expires_at"] is not None
    for text in (made["token"], second["token"]):
        assert (await caller.ask("GET", "/api/v1/whoami", token=text))[0] == 200
    _, third = await caller.ask("POST", rotate)
    assert third["former_until"] is None
    assert third["expires_at"] == second["expires_at"]
    status, refused = await caller.ask("GET", "/api/v1/whoami", token=second["token"])
    assert (status, "was rotated" in refused["detail"]) == (401, True)
    assert (await caller.ask("GET", "/api/v1/whoami", token=third["token"]))[0] == 200


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "code", "words"),
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
    shared: Caller, body: dict[str, Any], code: str, words: str
) -> None:
    status, refused = await shared.ask("POST", TOKENS, body)
    assert (status, refused["code"]) == (400, code), refused
    assert words in refused["detail"]
    assert (await shared.ask("GET", TOKENS, ended="1"))[1]["items"] == []


async def test_what_is_not_there_or_not_possible_is_said(caller: Caller) -> None:
    made = await caller.create("portal", "portal")
    status, refused = await caller.ask("POST", TOKENS, {"name": "portal", "role": "user"})
    assert (status, refused["code"]) == (409, "name_taken")
    for method, path in (("DELETE", ""), ("POST", "/rotate")):
        status, refused = await caller.ask(method, f"{TOKENS}/nothing{path}")
        assert (status, refused["code"]) == (404, "token_not_found")
    await caller.ask("DELETE", f"{TOKENS}/{made['id']}")
    status, refused = await caller.ask("POST", f"{TOKENS}/{made['id']}/rotate")
    assert (status, refused["code"]) == (409, "token_ended")
    for query in ({"role": "boss"}, {"cursor": "x"}, {"limit": "0"}):
        assert (await caller.ask("GET", TOKENS, **query))[0] == 400


async def test_the_list_has_pages_and_says_which_tokens_ended(caller: Caller) -> None:
    made = [(await caller.create(f"user-{n}"))["id"] for n in range(5)]
    await caller.ask("DELETE", f"{TOKENS}/{made[2]}")
    seen: list[str] = []
    query = {"limit": "2"}
    while True:
        _, page = await caller.ask("GET", TOKENS, **query)
        seen += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == [made[4], made[3], made[1], made[0]]
    _, page = await caller.ask("GET", TOKENS, ended="1", name="user-2")
    assert [one["state"] for one in page["items"]] == ["revoked"]


async def test_an_expired_token_says_when(caller: Caller) -> None:
    made = await caller.create(expires_in="1h")
    record = caller.server.context.tokens.record(made["id"])
    assert record is not None
    assert record.expires_at == record.created_at + 3_600 * SECOND
    assert made["expires_at"][:19] > made["created_at"][:19]


# -- whether a token is needed


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("header", "why"),
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
    shared: Caller, header: str | None, why: str
) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with shared._http.get(f"{shared._url}/api/v1/jobs", headers=headers) as answer:
        assert answer.status == 401
        assert why in (await answer.json())["detail"]


async def test_without_tokens_a_caller_of_this_machine_is_an_operator_unless_it_says_who_it_is(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, tokens=None) as caller:
        _, me = await caller.ask("GET", "/api/v1/whoami", token=None)
        assert (me["name"], me["role"], me["token_needed"]) == ("local", "operator", False)
        status, made = await caller.ask(
            "POST", TOKENS, {"name": "p", "role": "portal"}, token="whatever-is-in-a-variable"
        )
        assert (status, 'set [server] auth = "token"' in made["message"]) == (201, True)
        _, me = await caller.ask("GET", "/api/v1/whoami", token=made["token"])
        assert (me["name"], me["role"]) == ("p", "portal")
        await caller.ask("DELETE", f"{TOKENS}/{made['id']}", token=None)
        assert (await caller.ask("GET", "/api/v1/whoami", token=made["token"]))[0] == 401


async def test_a_server_can_ask_for_tokens_on_loopback_too(tmp_path: Path) -> None:
    async with serving(tmp_path, tokens=None) as caller:
        made = await caller.create("boss", "operator")
    async with serving(tmp_path, tokens=None, auth="token") as caller:
        assert (await caller.ask("GET", "/api/v1/whoami", token=None))[0] == 401
        assert (await caller.ask("GET", TOKENS, token=made["token"]))[0] == 200
