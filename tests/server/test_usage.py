"""``GET /api/v1/usage``: what a user has used, what is left, and who may see it."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman import Client, NotAllowed
from shared.principals import Principal, Role
from tests.kit.command_line import ferryman
from tests.kit.each import each
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATOR = "operator"
PRINCIPALS = {
    "seven": Principal("seven", Role.USER, "7"),
    "eight": Principal("eight", Role.USER, "8"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "agent": Principal("agent", Role.AGENT),
    OPERATOR: Principal("operator", Role.OPERATOR),
}
SERVER = """
[server]
stored_per_user = 1000000
upload_per_user_per_day = 5000

[users.7]
uploads_per_user = 3
queued_per_user = 9
stored_per_user = 2000000

[users.lab]
members = ["8"]
upload_per_user_per_day = 0
"""


async def asked(
    place: Place, query: str = "", token: str = OPERATOR, **more: str
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} | more
    return await place.ask("GET", f"/api/v1/usage{query}", headers=headers)


async def test_what_is_used_and_what_is_left(place: Place) -> None:
    await place.configure(runs_per_user=2)
    place.does(None)
    for _ in range(2):
        await place.job(await place.upload(user_id="7"), until="Running")
    await place.upload(user_id="7")
    status, found = await asked(place, "?user=7")
    stored = await place.server.context.jobs.stored("7")
    (service,) = [one for one in found["services"] if one["service"] == place.service]
    assert status == 200
    assert 0 < stored == found["stored"]["used"]
    assert found["stored"] == {"used": stored, "limit": 2_000_000, "left": 2_000_000 - stored}
    today = found["uploaded_today"]
    assert today.pop("renewed_at").endswith("T00:00:00Z")
    assert today == {"used": stored, "limit": 5_000, "left": 5_000 - stored}
    assert found["uploads"] == {"used": 0, "limit": 3, "left": 3}
    assert service["under_way"] == {"used": 2, "limit": 2, "left": 0}
    assert service["waiting"] == {"used": 1, "limit": 9, "left": 8}
    assert found["rate_limit"] is None
    _, other = await asked(place, "?user=8")
    assert other["uploaded_today"] is None
    assert other["stored"] == {"used": 0, "limit": 1_000_000, "left": 1_000_000}


async def test_the_command_line_and_the_sdk_show_it(place: Place) -> None:
    how = {"FERRYMAN_URL": place.url, "FERRYMAN_TOKEN": OPERATOR, "FERRYMAN_USER": "7"}
    code, out, err = await ferryman("usage", **how)
    assert code == 0, err
    rows = {line[0]: line[1:] for line in (text.split("\t") for text in out.splitlines())}
    assert rows["WHAT"] == ["USED", "LIMIT", "LEFT"]
    assert rows["stored"][1] == "1.9 MiB"
    assert rows["uploads at once"] == ["0", "3", "3"]
    assert rows[f"{place.service}: under way"][0] == "0"
    assert rows["requests"] == ["", "none", ""]
    async with Client(place.url, token="seven") as client:
        assert (await client.usage()).user_id == "7"
        with pytest.raises(NotAllowed):
            await client.usage("8")
    async with Client(place.url, token=OPERATOR, user="9") as client:
        assert [(await client.usage(*user)).user_id for user in ((), ("8",))] == ["9", "8"]


@each(
    "token, query, expected",
    [
        ("seven", "", 200),
        ("seven", "?user=7", 200),
        ("seven", "?user=8", 403),
        ("eight", "?user=7", 403),
        ("portal", "?user=7", 200),
        ("portal", "?user=8", 403),
        ("portal", "", 400),
        ("agent", "?user=7", 403),
        (OPERATOR, "?user=8", 200),
        (OPERATOR, "", 400),
        (OPERATOR, "?user=a%20b", 400),
        ("nobody", "", 401),
    ],
)
async def test_nobody_sees_what_is_not_theirs(
    place: Place, token: str, query: str, expected: int
) -> None:
    assert (await asked(place, query, token))[0] == expected
    if token == "portal" and expected == 200:
        _, found = await asked(place, token=token, **{"Ferryman-Act-As": "7"})
        assert found["user_id"] == "7"
