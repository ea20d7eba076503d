"""Schedules over HTTP: the form, the documents, and who may see them."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

START = {"user_id": "7", "service": "my_service", "name": "nightly", "cron": "30 2 * * *"}
SCHEDULES = "/api/v1/schedules"


async def post(
    caller: ServerClient, fields: dict[str, str], token: str = "", **files: str
) -> tuple[int, dict[str, Any]]:
    form = aiohttp.FormData(quote_fields=False)
    for name, value in fields.items():
        form.add_field(name, value)
    for name, content in ({"run": "echo hello\n"} | files).items():
        suffix = ".txt" if name == "params" else ".sh"
        form.add_field("file", content.encode(), filename=f"{name}{suffix}")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with caller.session.post(
        f"{caller.url}{SCHEDULES}", data=form, headers=headers
    ) as answer:
        return answer.status, json.loads(await answer.read())


async def ask(
    caller: ServerClient, method: str, path: str, token: str = ""
) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with caller.session.request(method, f"{caller.url}{path}", headers=headers) as answer:
        return answer.status, json.loads(await answer.read() or b"{}")


async def test_a_schedule_is_added_listed_and_deleted(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        status, added = await post(caller, START | {"time_zone": "Europe/Berlin", "tags": "a"})
        assert status == 201, added
        assert (added["cron"], added["time_zone"]) == ("30 2 * * *", "Europe/Berlin")
        fields = {"user_id": "7", "service": "my_service", "name": "nightly", "tags": "a"}
        assert added["fields"] == fields
        assert added["next_at"].endswith(":30:00Z")
        _, page = await ask(caller, "GET", f"{SCHEDULES}?user=7")
        assert page == {"items": [added], "next": None}
        _, jobs = await ask(caller, "GET", f"/api/v1/jobs?schedule={added['id']}")
        assert jobs["items"] == []
        here = f"{SCHEDULES}/{added['id']}"
        assert (await ask(caller, "DELETE", here))[0] == 204
        status, problem = await ask(caller, "DELETE", here)
        assert (status, problem["code"]) == (404, "schedule_not_found")


@pytest.mark.parametrize(
    ("wrong", "status", "code", "words"),
    [
        ({"cron": ""}, 400, "invalid_cron", "five fields"),
        ({"cron": "61 * * * *"}, 400, "invalid_cron", "'61 * * * *' is no cron line (bad minute)"),
        ({"name": ""}, 400, "missing_name", "a schedule has a name"),
        ({"time_zone": "Middle/Earth"}, 400, "invalid_time_zone", "'Middle/Earth'"),
        ({"time_zone": "../../etc/passwd"}, 400, "invalid_time_zone", "Europe/Berlin"),
        ({"array_file": "params.txt"}, 400, "invalid_array_file", "again and again"),
        ({"after": "1"}, 400, "invalid_after", "again and again"),
        ({"not_before": "in 2h"}, 400, "invalid_not_before", "again and again"),
        ({"retries": "many"}, 400, "invalid_retries", "'many'"),
        ({"color": "red"}, 400, "unknown_field", "color"),
        ({"user_id": "a b"}, 400, "invalid_user_id", "user_id"),
    ],
)
async def test_a_wrong_field_is_named_with_its_value(tmp_path, wrong, status, code, words):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        found, problem = await post(caller, START | wrong)
        assert (found, problem["code"]) == (status, code), problem
        assert words in problem["detail"]
        assert problem["part"] == next(iter(wrong))
        assert (await ask(caller, "GET", SCHEDULES))[1]["items"] == []


async def test_a_name_is_a_users_once_and_schedules_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("server.store.schedules.MOST_OF_USER", 2)
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        assert (await post(caller, START))[0] == 201
        status, problem = await post(caller, START)
        assert (status, problem["code"]) == (409, "schedule_exists")
        assert (await post(caller, START | {"user_id": "8"}))[0] == 201
        assert (await post(caller, START | {"name": "other"}))[0] == 201
        status, problem = await post(caller, START | {"name": "third"})
        assert (status, problem["code"]) == (409, "too_many_schedules")
        _, page = await ask(caller, "GET", f"{SCHEDULES}?limit=2")
        _, rest = await ask(caller, "GET", f"{SCHEDULES}?limit=2&cursor={page['next']}")
        assert [one["id"] for one in page["items"] + rest["items"]] == [3, 2, 1]


async def test_a_schedule_that_somebody_may_not_see_is_not_there(tmp_path):
    principals = {
        "a" * 20: Principal("ann-laptop", Role.USER, "ann"),
        "b" * 20: Principal("bob-laptop", Role.USER, "bob"),
        "n" * 20: Principal("node-1", Role.AGENT),
    }
    ann, bob, node = principals
    async with driving(tmp_path, FakeOrchestrator(), principals=principals) as caller:
        status, problem = await post(caller, START, token=ann)
        assert (status, problem["code"]) == (403, "not_allowed")
        status, added = await post(caller, START | {"user_id": "ann"}, token=ann)
        assert status == 201
        here = f"{SCHEDULES}/{added['id']}"
        assert (await ask(caller, "DELETE", here, bob))[1]["code"] == "schedule_not_found"
        assert (await ask(caller, "DELETE", here, node))[1]["code"] == "not_allowed"
        assert (await ask(caller, "GET", SCHEDULES, bob))[1]["items"] == []
        assert (await ask(caller, "GET", f"{SCHEDULES}?user=ann", bob))[1]["items"] == []
        assert len((await ask(caller, "GET", SCHEDULES, ann))[1]["items"]) == 1
