"""What every store must keep of browsers' sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.domain.jobs import UsedTicket
from server.domain.sessions import SessionRecord
from server.store.sessions import SqlSessions
from shared.sqlite.database import Database


@pytest.fixture
def sessions(database: Database) -> SqlSessions:
    return SqlSessions(database)


def session(session_id: str, **fields: Any) -> SessionRecord:
    start: dict[str, Any] = {
        "digest": f"digest of {session_id}",
        "principal": "ann",
        "token_id": "t",
        "token_digest": None,
        "created_at": 10,
        "expires_at": 100,
        "browser": "Firefox",
    }
    return SessionRecord(session_id, **(start | fields))


async def test_a_session_is_kept_as_it_is(sessions: SqlSessions) -> None:
    made = (
        session("a"),
        session("b", token_id=None, token_digest="d", last_used_at=3, last_used_from="::1"),
    )
    for one in made:
        assert await sessions.insert(one, 9, None)
    expected = [replace(one, version=number) for number, one in enumerate(made, 1)]
    assert await sessions.changed(0) == expected
    assert await sessions.changed(1) == expected[1:]


async def test_the_oldest_of_a_principal_end_and_nobody_elses(sessions: SqlSessions) -> None:
    for number, name in enumerate("abcd"):
        await sessions.insert(session(name, created_at=10 + number), 9, None)
    await sessions.insert(session("of bob", principal="bob", created_at=1), 9, None)
    await sessions.insert(session("expired", created_at=1, expires_at=5), 9, None)
    await sessions.insert(session("e", created_at=20), 3, None)
    ended = {one.id: one.ended_at for one in await sessions.changed(0) if one.ended_at is not None}
    assert ended == {"a": 20, "b": 20}
    # Who follows the changes sees the new one and those that it ended.
    assert {one.id for one in await sessions.changed(6)} == {"a", "b", "e"}


async def test_what_is_good_once_makes_one_session(sessions: SqlSessions) -> None:
    once = UsedTicket("login", 50)
    assert await sessions.insert(session("a"), 1, once)
    assert not await sessions.insert(session("b"), 1, once)
    (found,) = await sessions.changed(0)
    assert (found.id, found.ended_at) == ("a", None)


async def test_a_session_ends_once(sessions: SqlSessions) -> None:
    for name in "abc":
        await sessions.insert(session(name), 9, None)
    assert await sessions.end(["a", "c", "gone"], 30) == 2
    assert await sessions.end(["a"], 40) == 0
    assert [(one.id, one.ended_at) for one in await sessions.changed(3)] == [("a", 30), ("c", 30)]


async def test_a_use_is_kept_and_a_later_one_is_not_overwritten(sessions: SqlSessions) -> None:
    await sessions.insert(session("a"), 9, None)
    await sessions.used({"a": (20, "10.0.0.2"), "gone": (20, "x")})
    await sessions.used({"a": (15, "10.0.0.1")})
    (found,) = await sessions.changed(0)
    assert (found.last_used_at, found.last_used_from, found.version) == (20, "10.0.0.2", 1)


async def test_what_is_removed_is_not_there(sessions: SqlSessions) -> None:
    for name in "ab":
        await sessions.insert(session(name), 9, None)
    await sessions.remove(["a", "gone"])
    assert [one.id for one in await sessions.changed(0)] == ["b"]
