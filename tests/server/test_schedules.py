"""Schedules over HTTP: the form, the documents, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.each import each
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEDULES = "/api/v1/schedules"


async def post(place: Place, **fields: str) -> tuple[int, Any]:
    files = {"run.sh": b"echo hello\n", "params.txt": b"a\n"}
    given = {"name": "nightly", "cron": "30 2 * * *"} | fields
    return await place.posted(files, None, SCHEDULES, **given)


async def test_a_schedule_is_added_listed_and_deleted(place):
    status, added = await post(place, time_zone="Europe/Berlin", tags="a")
    assert status == 201, added
    assert (added["cron"], added["time_zone"]) == ("30 2 * * *", "Europe/Berlin")
    fields = {"user_id": place.user, "service": place.service, "name": "nightly", "tags": "a"}
    assert added["fields"] == fields
    assert added["next_at"].endswith(":30:00Z")
    listed = await place.api("GET", "/schedules", user=place.user)
    assert listed == {"items": [added], "next": None}
    assert (await place.api("GET", "/jobs", schedule=str(added["id"])))["items"] == []
    here = f"{SCHEDULES}/{added['id']}"
    assert (await place.ask("DELETE", here))[0] == 204
    status, problem = await place.ask("DELETE", here)
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
    assert (await place.api("GET", "/schedules", user=place.user))["items"] == []


async def test_a_name_is_a_users_once_and_schedules_are_counted(place, monkeypatch):
    monkeypatch.setattr("server.store.schedules.MOST_OF_USER", 2)
    made = [(await post(place))[1]["id"]]
    status, problem = await post(place)
    assert (status, problem["code"]) == (409, "schedule_exists")
    assert (await post(place, user_id=f"{place.user}-other"))[0] == 201
    made.append((await post(place, name="other"))[1]["id"])
    status, problem = await post(place, name="third")
    assert (status, problem["code"]) == (409, "too_many_schedules")
    query = {"limit": "1", "user": place.user}
    page = await place.api("GET", "/schedules", **query)
    rest = await place.api("GET", "/schedules", **query, cursor=page["next"])
    assert [one["id"] for one in page["items"] + rest["items"]] == made[::-1]
    assert rest["next"] is None
