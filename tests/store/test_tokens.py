"""What every store must keep of API tokens."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from server.domain.permits import MAX_LINK_S
from server.domain.tokens import TokenRecord, after
from server.stages.tokens import Tokens
from server.store import tokens as rows
from server.store.tokens import TokenFilter
from shared.principals import Role, Scope
from shared.sqlite.database import Database
from tests.kit.clock import SimClock
from tests.kit.store import Calls, core


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


async def test_a_token_is_kept_as_it_is(tokens: Calls) -> None:
    made = (
        token("a", expires_at=99),
        token("b", role=Role.PORTAL, name="p", user_id=None, users=("x-*", "y")),
        token("c", scopes=frozenset({Scope.READ, Scope.SUBMIT}), former_digest="f", former_until=5),
    )
    for one in made:
        await tokens.insert(one, anybody)
        assert await tokens.get(one.id) == one
    assert await tokens.get("d") is None


async def test_what_is_refused_changes_nothing(tokens: Calls) -> None:
    def refuse(others: Any) -> Any:
        raise ValueError(others)

    await tokens.insert(token("a"), anybody)
    await tokens.insert(token("b", name="bob"), anybody)
    with pytest.raises(ValueError, match="digest of a"):
        await tokens.insert(token("c"), refuse)
    with pytest.raises(ValueError, match="digest of b"):
        await tokens.change("b", refuse)
    assert await tokens.all_tokens() == [token("a"), token("b", name="bob")]


async def test_a_use_is_kept_and_a_later_one_is_not_overwritten(tokens: Calls) -> None:
    await tokens.insert(token("a"), anybody)
    await tokens.used({"a": (20, "10.0.0.2"), "gone": (20, "x")})
    await tokens.used({"a": (15, "10.0.0.1")})
    found = await tokens.get("a")
    assert (found.last_used_at, found.last_used_from) == (20, "10.0.0.2")
    # What is changed by somebody who knows of no use does not undo it.
    await tokens.change("a", lambda one: replace(one, last_used_at=None))
    assert (await tokens.get("a")).last_used_at == 20


async def test_pages_have_every_token_once_the_newest_first(tokens: Calls) -> None:
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
async def test_a_page_has_what_was_asked_for(tokens, which, expected):
    for one in (
        token("a"),
        token("b", revoked_at=20),
        token("c", expires_at=50),
        token("p", name="p", role=Role.PORTAL, user_id=None),
    ):
        await tokens.insert(one, anybody)
    assert {one.id for one in await tokens.page(which, 9, None)} == expected


def in_use(database: Database) -> tuple[SimClock, Tokens]:
    clock = SimClock()
    return clock, Tokens(core(database=database, clock=clock))


async def test_the_tokens_of_a_user_end_while_others_change(database: Database) -> None:
    _, tokens = in_use(database)
    users = token("", name="a")
    new = token("", name="o", role=Role.OPERATOR, user_id=None)
    (ann, _), (gone, _) = await tokens.create(users), await tokens.create(new)
    _, _, (made, _) = await asyncio.gather(
        tokens.end_of_user("ann", "somebody"), tokens.revoke(gone.id, "x"), tokens.create(new)
    )
    assert [tokens.owner(one.id) is not None for one in (ann, gone, made)] == [False, False, True]
    known = [tokens.record(one.id) for one in (ann, gone, made)]
    assert known == [await database.read(rows.get, one.id) for one in (ann, gone, made)]
    assert known[0] is not None
    assert (known[0].name, known[0].user_id, known[0].digest) == ("somebody", "somebody", "")


async def test_one_that_ended_is_forgotten_once_all_that_was_made_with_it_has_ended(database):
    clock, tokens = in_use(database)
    kept = [
        (await tokens.create(token("", expires_at=after(clock.now(), lifetime_s))))[0].id
        for lifetime_s in (60.0, None, None)
    ]
    await tokens.revoke(kept[1], "x")
    await clock.advance(MAX_LINK_S)
    assert await tokens.run_once() == 0
    await clock.advance(2 * 86_400.0)
    assert await tokens.run_once() == 2
    assert [tokens.record(one) is None for one in kept] == [True, True, False]
    assert [one.id for one in await database.read(rows.all_tokens)] == kept[2:]


async def test_a_name_that_jobs_or_schedules_have_does_not_become_another_principals(tokens, jobs):
    await jobs.added("x", "x")
    await jobs.sql("UPDATE jobs SET submitted_by = CASE id WHEN 1 THEN 'ann' ELSE 'bob' END")
    for token_id, name in (("a", "ann"), ("b", "ann"), ("c", "bob"), ("d", "eve")):
        await tokens.insert(token(token_id, name=name, revoked_at=20), anybody)
    assert sorted(await tokens.remove_ended(21)) == ["a", "d"]
    await jobs.sql("UPDATE jobs SET submitted_by = 'bob'")
    assert await tokens.remove_ended(21) == ["b"]
