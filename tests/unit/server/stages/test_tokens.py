"""API tokens on a running server: which are good, when, and what makes them so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from server.domain.tokens import SECRET_LENGTH, TokenRefusal, text_of
from server.stages.tokens import NewToken, Tokens
from server.store.migrations import MIGRATIONS
from server.store.tokens import SqlTokens, TokenFilter
from shared.principals import Principal, Role, Scope
from shared.sqlite.database import Database
from tests.kit.clock import SimClock

PEER = "10.0.0.7"


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def records(tmp_path: Path, clock: SimClock) -> AsyncIterator[SqlTokens]:
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield SqlTokens(database)
    await database.close()


def server(records: SqlTokens, clock: SimClock, start: int = 0) -> Tokens:
    numbers = count(start)
    return Tokens(records, clock, lambda _, length: str(next(numbers)).rjust(length, "0"))


@pytest.fixture
def tokens(records: SqlTokens, clock: SimClock) -> Tokens:
    return server(records, clock)


def new(name: str = "ann", role: Role = Role.USER, **fields: Any) -> NewToken:
    start: dict[str, Any] = {
        "user_id": name if role is Role.USER else None,
        "users": (),
        "scopes": None,
        "lifetime_s": None,
    }
    return NewToken(name, role, **(start | fields))


def why(tokens: Tokens, text: str) -> str:
    """Why the token is refused; empty: it is not."""
    principal = tokens.principal_of(text, PEER)
    assert principal is not None
    assert bool(principal.why) != principal.authenticated
    return principal.why


async def test_a_token_is_its_principals_at_once(tokens: Tokens) -> None:
    scopes = frozenset({Scope.READ})
    record, text = await tokens.create(
        new("portal", Role.PORTAL, users=("lab-*",), scopes=scopes), "admin"
    )
    expected = Principal("portal", Role.PORTAL, scopes=scopes, users=("lab-*",), token_id=record.id)
    assert tokens.principal_of(text, PEER) == expected
    assert (record.created_by, record.last_used_at) == ("admin", None)
    assert text not in repr(record)
    assert record.digest not in text
    assert tokens.principal_of("some-token-of-the-settings", PEER) is None


async def test_a_revoked_token_is_refused_at_once_and_for_good(tokens: Tokens) -> None:
    record, text = await tokens.create(new(), "admin")
    _, other = await tokens.create(new(), "admin")
    first = await tokens.revoke(record.id, "admin")
    assert why(tokens, text).startswith(f"token {record.id} was revoked on 20")
    assert not why(tokens, other)
    assert tokens.revoked(record.id)
    assert (await tokens.revoke(record.id, "admin")).revoked_at == first.revoked_at


async def test_a_token_expires(tokens: Tokens, clock: SimClock) -> None:
    _, text = await tokens.create(new(lifetime_s=60), "admin")
    await clock.advance(59.9)
    assert not why(tokens, text)
    await clock.advance(0.1)
    assert "has expired on 20" in why(tokens, text)


async def test_after_a_rotation_the_former_secret_is_good_for_the_overlap(
    tokens: Tokens, clock: SimClock
) -> None:
    record, first = await tokens.create(new(), "admin")
    rotated, second = await tokens.rotate(record.id, 60, None, "admin")
    assert rotated.id == record.id
    assert (why(tokens, first), why(tokens, second)) == ("", "")
    await clock.advance(60)
    assert "was rotated, it has another secret now" in why(tokens, first)
    assert not why(tokens, second)
    # Without an overlap at once; of the secrets before only the latest is known.
    _, third = await tokens.rotate(record.id, 0, None, "admin")
    assert "was rotated" in why(tokens, second)
    assert "its secret is not that of" in why(tokens, first)
    assert not why(tokens, third)


async def test_a_rotation_can_give_a_token_more_time(tokens: Tokens, clock: SimClock) -> None:
    record, _ = await tokens.create(new(lifetime_s=60), "admin")
    _, text = await tokens.rotate(record.id, 0, 120, "admin")
    await clock.advance(119)
    assert not why(tokens, text)
    await clock.advance(1)
    assert "has expired" in why(tokens, text)
    with pytest.raises(TokenRefusal, match="has expired: create another one"):
        await tokens.rotate(record.id, 0, 120, "admin")


async def test_a_revoked_token_has_no_former_secret(tokens: Tokens) -> None:
    record, first = await tokens.create(new(), "admin")
    _, second = await tokens.rotate(record.id, 3_600, None, "admin")
    await tokens.revoke(record.id, "admin")
    assert "was revoked" in why(tokens, first)
    assert "was revoked" in why(tokens, second)


async def test_who_has_no_secret_does_not_learn_what_became_of_a_token(tokens: Tokens) -> None:
    record, _ = await tokens.create(new(lifetime_s=60), "admin")
    await tokens.revoke(record.id, "admin")
    guess = text_of(record.id, "x" * SECRET_LENGTH)
    assert why(tokens, guess) == f"its secret is not that of token {record.id}"


async def test_a_token_that_no_row_has_is_unknown(tokens: Tokens) -> None:
    text = text_of("0123456789", "x" * SECRET_LENGTH)
    assert why(tokens, text) == "no token has the id 0123456789"
    assert why(tokens, text[:-1] + "_").startswith("it is mistyped")


async def test_another_server_takes_changes_up(
    tokens: Tokens, records: SqlTokens, clock: SimClock
) -> None:
    other = server(records, clock, 50)
    record, first = await tokens.create(new(), "admin")
    assert "no token has the id" in why(other, first)
    assert await other.run_once() == 1
    assert not why(other, first)
    _, second = await tokens.rotate(record.id, 0, None, "admin")
    await tokens.revoke(record.id, "admin")
    assert await other.run_once() == 1
    assert "was revoked" in why(other, second)
    assert await other.run_once() == 0


async def test_the_last_use_is_shown_at_once_and_written_each_minute(
    tokens: Tokens, records: SqlTokens, clock: SimClock
) -> None:
    record, text = await tokens.create(new(), "admin")
    assert not why(tokens, text)
    used_at = clock.now()
    (shown,) = await tokens.page(TokenFilter(), 9, None)
    assert (shown.last_used_at, shown.last_used_from) == (used_at, PEER)
    await clock.advance(59)
    await tokens.run_once()
    stored = await records.get(record.id)
    assert stored is not None
    assert stored.last_used_at is None
    await clock.advance(1)
    await tokens.run_once()
    stored = await records.get(record.id)
    assert stored is not None
    assert (stored.last_used_at, stored.last_used_from) == (used_at, PEER)
    assert (await tokens.find(record.id)).last_used_at == used_at


async def test_refused_requests_are_no_use(tokens: Tokens) -> None:
    record, text = await tokens.create(new(), "admin")
    await tokens.revoke(record.id, "admin")
    assert why(tokens, text)
    assert (await tokens.find(record.id)).last_used_at is None


# -- names


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (new("p", Role.PORTAL), new("p", Role.USER), "is that of the portal, by token"),
        (new("p"), new("p", user_id="bob"), "is that of the user p, by token"),
        (
            new("p", Role.PORTAL, users=("a",)),
            new("p", Role.PORTAL, users=("b",)),
            "p acts for a, by token",
        ),
    ],
)
async def test_a_name_is_one_principals_only(
    tokens: Tokens, first: NewToken, second: NewToken, what: str
) -> None:
    record, _ = await tokens.create(first, "admin")
    await tokens.create(first, "admin")
    with pytest.raises(TokenRefusal, match=what):
        await tokens.create(second, "admin")
    # What a principal submitted stays, so its name is nobody else's after a revocation either;
    # but the users of a portal may change.
    for one in await tokens.page(TokenFilter(name="p"), 9, None):
        await tokens.revoke(one.id, "admin")
    assert tokens.revoked(record.id)
    if first.role is second.role and first.user_id == second.user_id:
        await tokens.create(second, "admin")
    else:
        with pytest.raises(TokenRefusal, match=what):
            await tokens.create(second, "admin")


async def test_operators_are_counted_who_can_do_everything(tokens: Tokens, clock: SimClock) -> None:
    await tokens.create(new("admin", Role.OPERATOR, lifetime_s=60), "x")
    await tokens.create(new("watcher", Role.OPERATOR, scopes=frozenset({Scope.READ})), "x")
    await tokens.create(new("portal", Role.PORTAL), "x")
    assert tokens.operators == 1
    await clock.advance(60)
    assert tokens.operators == 0
