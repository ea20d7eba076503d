"""Sessions on a running server, and on two servers of one database."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.domain.jobs import UsedTicket
from server.domain.sessions import LoginUsed, NoSuchSession, browser_name, digest_of
from server.stages.sessions import Sessions
from server.stages.tokens import USES_EVERY_S, NewToken, Tokens
from server.store.migrations import MIGRATIONS
from server.store.sessions import SqlSessions
from server.store.tokens import SqlTokens
from shared.principals import Principal, Role
from shared.sqlite.database import Database
from tests.support.sim_clock import SimClock

PEER = "10.0.0.7"
ADMIN = Principal("token-1", Role.OPERATOR)
DAY_S = 86_400.0


class World:
    """Two servers of one database."""

    def __init__(self, database: Database, clock: SimClock) -> None:
        self.database, self.clock = database, clock
        self.tokens = self.more_tokens()
        self.one, self.other = self.more(), self.more()

    def more_tokens(self) -> Tokens:
        return Tokens(SqlTokens(self.database), self.clock, _random)

    def more(self, **configured: Principal) -> Sessions:
        known = configured or {digest_of("admin"): ADMIN}
        records = SqlSessions(self.database)
        return Sessions(records, self.tokens, lambda: known, self.clock, _random, DAY_S)

    async def ann(self, lifetime_s: float | None = None) -> Principal:
        new = NewToken("ann", Role.USER, "ann", (), None, lifetime_s)
        record, _ = await self.tokens.create(new, "admin")
        return record.principal


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = SimClock()
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield World(database, clock)
    await database.close()


async def test_a_session_is_its_principals_until_it_expires(world: World) -> None:
    ann = await world.ann()
    text = await world.one.log_in(ann, "Firefox", PEER)
    assert world.one.principal_of(text, PEER) == ann
    assert world.one.principal_of(text + "x", PEER) is None
    await world.clock.advance(DAY_S - 1)
    assert world.one.principal_of(text, PEER) == ann
    await world.clock.advance(1)
    assert world.one.principal_of(text, PEER) is None
    assert world.one.of(ann) == []


async def test_a_session_ends_with_its_token(world: World) -> None:
    ann = await world.ann(lifetime_s=60)
    text = await world.one.log_in(ann, "Firefox", PEER)
    await world.clock.advance(59)
    assert world.one.principal_of(text, PEER) == ann
    await world.clock.advance(1)
    assert world.one.principal_of(text, PEER) is None
    ben = await world.ann()
    text = await world.one.log_in(ben, "Firefox", PEER)
    await world.tokens.revoke(ben.token_id or "", "admin")
    assert world.one.principal_of(text, PEER) is None
    admin = await world.one.log_in(ADMIN, "Firefox", PEER)
    assert world.one.principal_of(admin, PEER) == ADMIN
    fewer = world.more(other=ADMIN)
    await fewer.run_once()
    assert fewer.principal_of(admin, PEER) is None


async def test_another_server_learns_of_logins_and_of_ends(world: World) -> None:
    ann = await world.ann()
    text = await world.one.log_in(ann, "Firefox", PEER)
    assert await world.other.run_once() == 1
    assert world.other.principal_of(text, PEER) == ann
    await world.one.log_out(text)
    assert world.one.principal_of(text, PEER) is None
    await world.other.run_once()
    assert world.other.principal_of(text, PEER) is None
    await world.one.log_out("unknown")


async def test_a_login_that_was_used_does_not_log_in_again(world: World) -> None:
    ann, once = await world.ann(), UsedTicket("x", world.clock.now() + 60)
    await world.one.log_in(ann, "Firefox", PEER, once)
    with pytest.raises(LoginUsed):
        await world.other.log_in(ann, "Firefox", PEER, once)


async def test_uses_are_kept_now_and_then_and_shown_at_once(world: World) -> None:
    ann = await world.ann()
    text = await world.one.log_in(ann, "Firefox", PEER)
    await world.clock.advance(USES_EVERY_S)
    world.one.principal_of(text, "10.0.0.8")
    (shown,) = world.one.of(ann)
    assert (shown.last_used_at, shown.last_used_from) == (world.clock.now(), "10.0.0.8")
    await world.one.run_once()
    (kept,) = await SqlSessions(world.database).changed(0)
    assert (kept.last_used_at, kept.last_used_from) == (world.clock.now(), "10.0.0.8")
    # Its token was used, too.
    record = await world.tokens.find(ann.token_id or "")
    assert record.last_used_from == "10.0.0.8"


async def test_rows_go_once_they_are_worth_nothing(world: World) -> None:
    ann = await world.ann()
    ended, stays = [await world.one.log_in(ann, "x", PEER) for _ in range(2)]
    await world.one.log_out(ended)
    eve = await world.ann()
    await world.one.log_in(eve, "x", PEER)
    await world.tokens.revoke(eve.token_id or "", "admin")
    await world.clock.advance(USES_EVERY_S)
    await world.one.run_once()
    # The one that was ended stays: another server may not have learnt of it.
    assert len(await SqlSessions(world.database).changed(0)) == 2
    assert world.one.principal_of(stays, PEER) == ann
    await world.clock.advance(DAY_S)
    await world.one.run_once()
    assert await SqlSessions(world.database).changed(0) == []
    assert world.one.principal_of(stays, PEER) is None


async def test_only_ones_own_sessions_can_be_ended(world: World) -> None:
    ann = await world.ann()
    mine, text = [await world.one.log_in(ann, "x", PEER) for _ in range(2)]
    admins = await world.one.log_in(ADMIN, "x", PEER)
    (admin,) = world.one.of(ADMIN)
    with pytest.raises(NoSuchSession):
        await world.one.end(ann, admin.id)
    assert await world.one.end_others(ann, mine) == 1
    assert world.one.principal_of(text, PEER) is None
    assert world.one.principal_of(mine, PEER) == ann
    assert world.one.principal_of(admins, PEER) == ADMIN
    await world.one.end(ann, world.one.id_of(mine) or "")
    with pytest.raises(NoSuchSession):
        await world.one.end(ann, world.one.id_of(mine) or "")


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/150.0.0.0 Safari/537.36 Edg/150.0.1",
            "Edge 150, Windows",
        ),
        (
            "Mozilla/5.0 (Linux; Android 16) AppleWebKit/537.36 Chrome/150.0.0.0 Mobile "
            "Safari/537.36",
            "Chrome 150, Android",
        ),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 "
            "Version/26.1 Safari/605.1.15",
            "Safari 26, macOS",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 "
            "Mobile/15E148 Safari/604.1",
            "Safari 18, iPhone",
        ),
        ("curl/8.14.1", "curl/8.14.1"),
        ("", "unknown browser"),
        ("\u202e<b>" + "x" * 500, "?<b>" + "x" * 56),
    ],
)
def test_a_browser_is_named_so_that_its_owner_knows_it(sent: str, shown: str) -> None:
    assert browser_name(sent) == shown
