"""Sessions of browsers: which cookies are good, and when all of a token end."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.domain.jobs import UsedTicket
from server.domain.permits import Link, LoginUsed, Permits, Shows
from server.stages.sessions import Sessions
from server.stages.tokens import NewToken, Tokens
from server.store.migrations import MIGRATIONS
from server.store.tokens import SqlTokens
from shared.principals import Principal, Role
from shared.sqlite.database import Database
from tests.kit.clock import SimClock

PEER = "10.0.0.7"
ADMIN = Principal("token-1", Role.OPERATOR)
DAY_S = 86_400.0


class World:
    def __init__(self, database: Database, clock: SimClock) -> None:
        self.database, self.clock = database, clock
        self.tokens = Tokens(SqlTokens(database), clock, _random)
        self.permits = Permits(b"k" * 32, self.tokens.revoked)
        self.configured = {"d" * 64: ADMIN}
        self.sessions = self.restarted(self.permits)

    def restarted(self, permits: Permits) -> Sessions:
        return Sessions(
            self.database, permits, self.tokens, lambda: self.configured, self.clock, DAY_S
        )

    async def token_of(self, name: str, lifetime_s: float | None = None) -> Principal:
        new = NewToken(name, Role.USER, name, (), None, lifetime_s)
        record, _ = await self.tokens.create(new, "admin")
        return record.principal

    def owner(self, text: str) -> Principal | None:
        return self.sessions.principal_of(text, PEER)


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = SimClock()
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield World(database, clock)
    await database.close()


async def test_a_session_is_its_principals_until_it_expires(world: World) -> None:
    for who in (await world.token_of("ann"), ADMIN):
        text = await world.sessions.log_in(who, PEER)
        await world.clock.advance(DAY_S - 1)
        assert world.owner(text) == who
        await world.clock.advance(1)
        assert world.owner(text) is None


async def test_a_forged_or_altered_cookie_is_refused(world: World) -> None:
    ann = await world.token_of("ann")
    text = await world.sessions.log_in(ann, PEER)
    payload, _, signature = text.partition(".")
    content = base64.urlsafe_b64decode(payload + "==").replace(b'"expires_at":', b'"expires_at":9')
    longer = base64.urlsafe_b64encode(content).decode().rstrip("=")
    link = Link(issued_by="ann", job_id=1, shows=Shows.JOB, expires_at=2**62, token_id=ann.token_id)
    forged = Permits(b"x" * 32)
    other = await world.restarted(forged).log_in(ann, PEER)
    for wrong in (
        *("", ".", "x", text + "x", text[:-1], f"{payload}.", f".{signature}", payload, "\udc80"),
        *(f"{longer}.{signature}", other, world.permits.text(link)),
    ):
        assert world.owner(wrong) is None, wrong
    assert world.owner(text) == ann


async def test_a_cookie_tells_nothing_of_a_token_of_the_settings(world: World) -> None:
    text = await world.sessions.log_in(ADMIN, PEER)
    shown = base64.urlsafe_b64decode(text.partition(".")[0] + "==")
    assert b"d" * 64 not in shown


async def test_a_session_ends_with_its_token(world: World) -> None:
    mia = await world.token_of("mia", lifetime_s=60)
    eve = await world.token_of("eve")
    texts = [await world.sessions.log_in(one, PEER) for one in (mia, eve, ADMIN)]
    await world.clock.advance(60)
    assert [world.owner(one) for one in texts] == [None, eve, ADMIN]
    await world.tokens.revoke(eve.token_id or "", "admin")
    assert [world.owner(one) for one in texts] == [None, None, ADMIN]
    world.configured.clear()
    assert world.owner(texts[2]) is None


async def test_logging_out_ends_each_copy_of_each_cookie_of_the_token(world: World) -> None:
    ann, ben = await world.token_of("ann"), await world.token_of("ben")
    for who, other in ((ann, ben), (ADMIN, ann)):
        texts = [await world.sessions.log_in(who, PEER) for _ in range(2)]
        others = await world.sessions.log_in(other, PEER)
        await world.sessions.log_out("x", PEER)
        assert world.owner(texts[0]) == who
        await world.sessions.log_out(texts[0], PEER)
        assert [world.owner(one) for one in texts] == [None, None]
        again = await world.sessions.log_in(who, PEER)
        await world.sessions.log_out(texts[1], PEER)  # it is worth nothing, and ends nothing
        assert (world.owner(again), world.owner(others)) == (who, other)
        later = world.restarted(world.permits)
        await later.load()
        assert [later.principal_of(one, PEER) for one in (texts[0], again)] == [None, who]


async def test_a_login_that_was_used_does_not_log_in_again(world: World) -> None:
    ann, once = await world.token_of("ann"), UsedTicket("x", world.clock.now() + 60)
    await world.sessions.log_in(ann, PEER, once)
    with pytest.raises(LoginUsed):
        await world.sessions.log_in(ann, PEER, once)
