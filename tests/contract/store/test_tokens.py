"""What every store must keep of API tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from server.domain.tokens import TokenRecord
from server.stages.tokens import NewToken, Tokens
from server.store.tokens import SqlTokens, TokenFilter
from shared.principals import Role, Scope
from shared.sqlite.database import Database
from tests.kit.clock import SimClock


@pytest.fixture
def tokens(database: Database) -> SqlTokens:
    return SqlTokens(database)


def token(token_id: str, **fields: Any) -> TokenRecord:
    start: dict[str, Any] = {
        "digest": f"digest of {token_id}",
        "name": "ann",
        "role": Role.USER,
        "user_id": "ann",
        "users": (),
        "scopes": None,
        "created_at": 10,
        "created_by": "token-1",
    }
    return TokenRecord(token_id, **(start | fields))


def anybody(_: Sequence[TokenRecord]) -> None:
    """Accepts all names."""


async def test_a_token_is_kept_as_it_is(tokens: SqlTokens) -> None:
    made = (
        token("a", expires_at=99),
        token("b", role=Role.PORTAL, name="p", user_id=None, users=("x-*", "y")),
        token("c", scopes=frozenset({Scope.READ, Scope.SUBMIT}), former_digest="f", former_until=5),
    )
    for number, one in enumerate(made, 1):
        await tokens.insert(one, anybody)
        assert await tokens.get(one.id) == replace(one, version=number)
    assert await tokens.get("d") is None


async def test_each_change_gets_the_next_version(tokens: SqlTokens) -> None:
    for name in "abc":
        await tokens.insert(token(name), anybody)
    changed = await tokens.change("a", lambda one: replace(one, revoked_at=7))
    assert changed == replace(token("a"), revoked_at=7, version=4)
    assert [one.id for one in await tokens.changed(2)] == ["c", "a"]
    assert await tokens.changed(4) == []
    assert await tokens.change("d", lambda one: one) is None


async def test_what_is_refused_changes_nothing(tokens: SqlTokens) -> None:
    def refuse(others: Any) -> Any:
        raise ValueError(others)

    await tokens.insert(token("a"), anybody)
    await tokens.insert(token("b", name="bob"), anybody)
    with pytest.raises(ValueError, match="digest of a"):
        await tokens.insert(token("c"), refuse)
    with pytest.raises(ValueError, match="digest of b"):
        await tokens.change("b", refuse)
    assert [one.id for one in await tokens.changed(0)] == ["a", "b"]


async def test_a_use_is_kept_and_a_later_one_is_not_overwritten(tokens: SqlTokens) -> None:
    await tokens.insert(token("a"), anybody)
    await tokens.used({"a": (20, "10.0.0.2"), "gone": (20, "x")})
    await tokens.used({"a": (15, "10.0.0.1")})
    found = await tokens.get("a")
    assert found is not None
    assert (found.last_used_at, found.last_used_from, found.version) == (20, "10.0.0.2", 1)
    # What is changed by somebody who knows of no use does not undo it.
    await tokens.change("a", lambda one: replace(one, last_used_at=None))
    found = await tokens.get("a")
    assert found is not None
    assert found.last_used_at == 20


async def test_pages_have_every_token_once_the_newest_first(tokens: SqlTokens) -> None:
    for name, at in zip("abcdef", (10, 30, 20, 20, 20, 40), strict=True):
        await tokens.insert(token(name, created_at=at), anybody)
    seen: list[str] = []
    before = None
    while page := await tokens.page(TokenFilter(), 2, before):
        seen += [one.id for one in page]
        before = page[-1].created_at, page[-1].id
    assert seen == ["f", "b", "c", "d", "e", "a"]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (TokenFilter(name="ann"), {"a", "b", "c"}),
        (TokenFilter(role=Role.PORTAL), {"p"}),
        (TokenFilter(user_id="ann"), {"a", "b", "c"}),
        (TokenFilter(live_at=50), {"a", "p"}),
        (TokenFilter(live_at=49, name="ann"), {"a", "c"}),
    ],
)
async def test_a_page_has_what_was_asked_for(
    tokens: SqlTokens, which: TokenFilter, expected: set[str]
) -> None:
    for one in (
        token("a"),
        token("b", revoked_at=20),
        token("c", expires_at=50),
        token("p", name="p", role=Role.PORTAL, user_id=None),
    ):
        await tokens.insert(one, anybody)
    assert {one.id for one in await tokens.page(which, 9, None)} == expected


async def test_another_server_takes_changes_up(tokens: SqlTokens) -> None:
    clock, numbers = SimClock(), count()

    def server() -> Tokens:
        return Tokens(tokens, clock, lambda _, length: str(next(numbers)).rjust(length, "0"))

    def why(one: Tokens, text: str) -> str:
        principal = one.principal_of(text, "10.0.0.7")
        assert principal is not None
        return principal.why

    here, there = server(), server()
    record, first = await here.create(NewToken("a", Role.OPERATOR, None, (), None, 60), "x")
    assert "no token has the id" in why(there, first)
    assert await there.run_once() == 1
    assert (why(there, first), there.operators) == ("", 1)
    _, second = await here.rotate(record.id, 0, None, "x")
    await here.revoke(record.id, "x")
    assert await there.run_once() == 1
    assert "was revoked" in why(there, second)
    assert (await there.run_once(), there.operators) == (0, 0)
