"""Schedules over HTTP: the form, the documents, their jobs, and who may see them."""

from __future__ import annotations

from typing import Any

import pytest

from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATOR, ANN, BOB, NODE = (letter * 20 for letter in "oabn")
PRINCIPALS = {
    OPERATOR: Principal("operator", Role.OPERATOR),
    ANN: Principal("ann-laptop", Role.USER, "ann"),
    BOB: Principal("bob-laptop", Role.USER, "bob"),
    NODE: Principal("node-1", Role.AGENT),
}
SCHEDULES = "/api/v1/schedules"


async def post(place: Place, token: str = OPERATOR, **fields: str) -> tuple[int, Any]:
    files = {"run.sh": b"echo hello\n", "params.txt": b"a\n"}
    given = {"name": "nightly", "cron": "30 2 * * *"} | fields
    return await place.posted(files, {"Authorization": f"Bearer {token}"}, SCHEDULES, **given)


async def ask(
    place: Place, method: str, path: str, token: str = OPERATOR, **more: Any
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    return await place.ask(method, SCHEDULES + path, headers=headers, **more)


async def test_a_schedule_is_added_listed_and_deleted(place):
    status, added = await post(place, time_zone="Europe/Berlin", tags="a")
    assert status == 201, added
    assert (added["cron"], added["time_zone"]) == ("30 2 * * *", "Europe/Berlin")
    fields = {"user_id": place.user, "service": place.service, "name": "nightly", "tags": "a"}
    assert added["fields"] == fields
    assert added["next_at"].endswith(":30:00Z")
    assert await ask(place, "GET", f"?user={place.user}") == (200, {"items": [added], "next": None})
    assert (await place.api("GET", "/jobs", schedule=str(added["id"])))["items"] == []
    here = f"/{added['id']}"
    assert (await ask(place, "DELETE", here))[0] == 204
    status, problem = await ask(place, "DELETE", here)
    assert (status, problem["code"]) == (404, "schedule_not_found")


@each(
    "field, value, code, words",
    [
        ("cron", "", "invalid_cron", "five fields"),
        ("cron", "61 * * * *", "invalid_cron", "'61 * * * *' is no cron line (bad minute)"),
        ("name", "", "missing_name", "a schedule has a name"),
        ("time_zone", "Middle/Earth", "invalid_time_zone", "'Middle/Earth'"),
        ("time_zone", "Europe", "invalid_time_zone", "'Europe'"),
        ("time_zone", "../../etc/passwd", "invalid_time_zone", "Europe/Berlin"),
        ("array_file", "params.txt", "invalid_array_file", "again and again"),
        ("after", "1", "invalid_after", "again and again"),
        ("not_before", "in 2h", "invalid_not_before", "again and again"),
        ("retries", "many", "invalid_retries", "'many'"),
        ("color", "red", "unknown_field", "color"),
        ("user_id", "a b", "invalid_user_id", "user_id"),
    ],
)
async def test_a_wrong_field_is_named_with_its_value(place, field, value, code, words):
    status, problem = await post(place, **{field: value})
    assert (status, problem["code"], problem["part"]) == (400, code, field), problem
    assert words in problem["detail"]
    assert (await ask(place, "GET", f"?user={place.user}"))[1]["items"] == []


async def test_a_name_is_a_users_once_and_schedules_are_counted(place, monkeypatch):
    monkeypatch.setattr("server.store.schedules.MOST_OF_USER", 2)
    made = [(await post(place))[1]["id"]]
    status, problem = await post(place)
    assert (status, problem["code"]) == (409, "schedule_exists")
    assert (await post(place, user_id=f"{place.user}-other"))[0] == 201
    made.append((await post(place, name="other"))[1]["id"])
    status, problem = await post(place, name="third")
    assert (status, problem["code"]) == (409, "too_many_schedules")
    _, page = await ask(place, "GET", f"?limit=1&user={place.user}")
    _, rest = await ask(place, "GET", f"?limit=1&user={place.user}&cursor={page['next']}")
    assert [one["id"] for one in page["items"] + rest["items"]] == made[::-1]
    assert rest["next"] is None


async def test_a_schedule_that_somebody_may_not_see_is_not_there(place):
    status, problem = await post(place, ANN)
    assert (status, problem["code"]) == (403, "not_allowed")
    status, added = await post(place, ANN, user_id="ann")
    assert status == 201
    here = f"/{added['id']}"
    assert (await ask(place, "DELETE", here, BOB))[1]["code"] == "schedule_not_found"
    assert (await ask(place, "DELETE", here, NODE))[1]["code"] == "not_allowed"
    for query in ("", "?user=ann"):
        assert (await ask(place, "GET", query, BOB))[1]["items"] == []
    assert len((await ask(place, "GET", "", ANN))[1]["items"]) == 1
