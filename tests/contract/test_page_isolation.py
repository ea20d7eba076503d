"""Every page, of the table of pages, opened by whoever may not: other users, and nobody.

A page that is new is opened, too. One whose path has something that this test cannot fill in makes
it fail, until it can.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from server.domain.access import Area, may_use, scope_of
from server.web.routes import ROUTES
from server.web.site import PageRoute
from shared.principals import Principal
from tests.contract.test_isolation import (
    ADMIN,
    ANN,
    ATTACKS,
    BOB,
    EVERYBODY,
    MARK,
    Owned,
    World,
    owned_by_ann,
    said,
)
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer
from tests.kit.server_http import driving
from tests.kit.webhook_receiver import receiving

PAGE: Final = {"Accept": "text/html,application/xhtml+xml"}
FORM: Final = {"Content_Type": "application/x-www-form-urlencoded"}
OF_EVERYBODY: Final = ("/assets/", "/login", "/logout")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8",)}
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), principals=EVERYBODY, **settings) as client,
    ):
        yield World(client, receiver)


def paths(route: PageRoute, owned: Owned) -> Iterator[str]:
    more = {
        "user": ["ann"],
        "version": ["0"],
        "number": ["1"],
    }
    yield from Owned({**more, **owned.values}, owned.jobs).paths(route.path)


def fields(owned: Owned) -> str:
    """What the forms of pages have, all at once."""
    ids = [("ids", job) for job in owned.jobs] + [("id", job) for job in owned.jobs]
    words = {
        "action": "cancel",
        "user": "ann",
        "user_id": "ann",
        "service": "my_service",
        "name": "stolen",
        "role": "operator",
        "tags": "stolen",
        "what": "job",
        "message": "stolen",
        "sure": "1",
        "confirmed": "1",
    }
    return urlencode([*words.items(), *ids])


async def opened(
    world: World, route: PageRoute, who: Principal, path: str, owned: Owned, **acting: str
) -> Answer:
    if route.method == "GET":
        return await world.ask(who, "GET", path, **PAGE, **acting)
    return await world.ask(who, route.method, path, fields(owned), **PAGE, **FORM, **acting)


@pytest.mark.parametrize("whose", ATTACKS)
async def test_nobody_sees_or_changes_by_a_page_what_is_not_theirs(
    world: World, whose: str
) -> None:
    maker, attackers = ATTACKS[whose]
    owned = await owned_by_ann(world, maker)
    hidden = re.compile(rf"/jobs/({'|'.join(map(str, owned.jobs))})\b(?!/)")
    before = await world.state(owned)
    for route in ROUTES:
        if route.path.startswith(OF_EVERYBODY) or route.path == "/live":
            continue  # a stream without an end
        for path in paths(route, owned):
            for who, user in attackers:
                acting = {"Ferryman_Act_As": user} if user else {}
                answer = await opened(world, route, who, path, owned, **acting)
                case = (who.name, user, route.method, path, answer.status)
                assert answer.status < 500, case
                if MARK not in path:
                    assert MARK not in said(answer), case
                if "{id}" in route.path:
                    assert answer.status in (403, 404), case
                    assert (answer.status == 404) == may(who, route), case
                elif answer.status < 400 and route.method == "GET":
                    assert not hidden.search(said(answer)), case
    assert await world.state(owned) == before


def may(who: Principal, route: PageRoute) -> bool:
    """Whether its role and scopes are good for the page, whatever it is about."""
    scope = route.needs or scope_of(route.area, route.method)
    return may_use(who, route.area) and (scope is None or who.may(scope))


async def test_pages_of_operators_are_for_operators(world: World) -> None:
    owned = await owned_by_ann(world, ANN)
    before = await world.state(owned)
    of_operators = [one for one in ROUTES if not may(BOB, one) and one.area is not Area.OPEN]
    assert {one.path for one in of_operators} >= {"/tokens", "/audit", "/agents"}
    for route in of_operators:
        for path in paths(route, owned):
            answer = await opened(world, route, BOB, path, owned)
            assert answer.status == 403, (route.method, path)
            assert "is for the roles" in said(answer), (route.method, path)
    assert await world.state(owned) == before


async def test_whoever_is_not_logged_in_is_sent_to_the_login(world: World) -> None:
    owned = await owned_by_ann(world, ANN)
    before = await world.state(owned)
    nobody = Principal("nobody", None)
    for route in ROUTES:
        if route.path.startswith(OF_EVERYBODY):
            continue
        assert route.area is not Area.OPEN, f"{route.path}: say in this test that anybody may"
        for path in paths(route, owned):
            answer = await opened(world, route, nobody, path, owned, Authorization="")
            wanted = 303 if route.method == "GET" else 401
            assert answer.status == wanted, (route.method, path)
            if wanted == 303:
                assert answer.headers["location"].startswith("/login?next="), path
            assert MARK not in said(answer) or MARK in path
    assert await world.state(owned) == before


async def status(world: World, route: PageRoute, who: Principal, path: str, owned: Owned) -> int:
    """Of what comes; a stream has no end, and is one of those that come."""
    try:
        return (await asyncio.wait_for(opened(world, route, who, path, owned), 3)).status
    except TimeoutError:
        return 200


async def test_the_owner_and_operators_get_what_others_do_not(world: World) -> None:
    """So that the requests above are such that whoever may gets something by them."""
    owned = await owned_by_ann(world, ANN)
    for route in ROUTES:
        if route.method != "GET" or route.path.startswith((*OF_EVERYBODY, "/live")):
            continue
        who = ADMIN if not may(ANN, route) else ANN
        got = [await status(world, route, who, path, owned) for path in paths(route, owned)]
        # Some need parameters, or another kind of file.
        assert set(got) - {401, 403, 404}, (route.path, got)
