"""One action on many jobs, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATOR, ANN = "o" * 20, "a" * 20
PRINCIPALS = {
    OPERATOR: Principal("operator", Role.OPERATOR),
    ANN: Principal("ann-laptop", Role.USER, "ann"),
}


async def bulk(place: Place, token: str = OPERATOR, **asked: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    return await place.ask("POST", "/api/v1/jobs/bulk", json=asked, headers=headers)


async def items(place: Place, **asked: Any) -> list[tuple[int, bool, str]]:
    status, answer = await bulk(place, **asked)
    assert status == 200, answer
    return [(item["id"], item["ok"], item["code"]) for item in answer["items"]]


async def test_jobs_are_cancelled_retried_tagged_and_deleted_by_number(place: Place) -> None:
    place.does(None)
    running, waiting = await place.upload(), await place.upload(not_before="in 1h")
    await place.job(running, until="Running")
    assert await items(place, action="cancel", ids=[running, waiting, 99_999]) == [
        (running, True, "requested"),
        (waiting, True, "requested"),
        (99_999, False, "job_not_found"),
    ]
    for job_id in (running, waiting):
        assert (await place.job(job_id))["status"] == "Cancelled"
    assert await items(place, action="cancel", ids=[running]) == [(running, True, "already_ended")]
    assert await items(place, action="retry", ids=[waiting]) == [(waiting, True, "queued")]
    assert (await items(place, action="retry", ids=[waiting]))[0][1] is False
    tagged = [(running, True, "tagged"), (waiting, True, "tagged")]
    assert await items(place, action="tag", ids=[running, waiting], tags=["a", "b"]) == tagged
    await items(place, action="untag", ids=[running], tags=["b"])
    found = await place.api("GET", "/jobs", tag="b", user=place.user)
    assert [one["id"] for one in found["items"]] == [waiting]
    assert (await place.job(running))["tags"] == ["a"]
    assert await items(place, action="delete", ids=[running]) == [(running, True, "deleted")]
    assert (await place.get(f"/api/v1/jobs/{running}"))[0] == 404
    status, problem = await bulk(place, ANN, action="move", service=place.service, ids=[waiting])
    assert (status, problem["code"]) == (403, "not_allowed")
    another = await place.upload()
    await place.job(another, until="Running")
    (found,) = await items(place, action="delete", ids=[another])
    assert found[1:] in ((True, "requested"), (True, "cancelled"))
    assert (await place.job(another))["status"] == "Cancelled"
    assert await items(place, action="delete", ids=[another]) == [(another, True, "deleted")]


async def test_a_filter_is_worked_off_in_slices_with_each_job_once(place: Place) -> None:
    tags = ["even", "odd"] * 2 + ["even"]
    ids = [await place.upload(not_before="in 1h", tags=tag) for tag in tags]
    mine, even, odd = {"user": place.user}, ids[::-2], ids[-2::-2]
    asked: dict[str, Any] = {"action": "cancel", "filter": mine | {"tag": "even"}, "limit": 2}
    _, first = await bulk(place, **asked)
    _, second = await bulk(place, **asked, cursor=first["next"])
    assert [one["id"] for one in first["items"] + second["items"]] == even
    assert (first["more"], second["more"], second["next"]) == (True, False, None)
    for job_id in even:
        assert (await place.job(job_id))["status"] == "Cancelled"
    # Where no state is named: those that the action can change.
    assert [one[0] for one in await items(place, action="cancel", filter=mine)] == odd
    for job_id in odd:
        await place.job(job_id)
    assert await items(place, action="cancel", all=True) == []
    retried = await items(place, action="retry", filter=mine | {"tag": "odd", "since": "1h"})
    assert [one[:2] for one in retried] == [(one, True) for one in odd]
    deleted = await items(place, action="delete", filter=mine | {"state": "Cancelled"})
    assert [one[0] for one in deleted] == even


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "invalid_action", "cancel, retry, delete, tag, untag, move"),
    ({"action": "cancel", "ids": [1], "service": "my_service"}, "invalid_service", "move"),
    ({"action": "move", "ids": [1]}, "invalid_service", "'None' is none that takes jobs"),
    ({"action": "explode", "ids": [1]}, "invalid_action", "'explode'"),
    ({"action": "cancel"}, "invalid_filter", '"all": true'),
    ({"action": "cancel", "ids": []}, "invalid_ids", "1 to 1000"),
    ({"action": "cancel", "ids": list(range(1, 1_002))}, "invalid_ids", "1 to 1000"),
    ({"action": "cancel", "ids": [True]}, "invalid_ids", "'True'"),
    ({"action": "cancel", "ids": [1], "all": True}, "invalid_ids", "not both"),
    ({"action": "cancel", "filter": {"color": "red"}}, "unknown_field", "color"),
    ({"action": "cancel", "filter": {"state": "Bored"}}, "invalid_state", "'Bored'"),
    ({"action": "cancel", "filter": {"since": "soon"}}, "invalid_since", "'soon'"),
    ({"action": "cancel", "filter": {"tag": None}}, "invalid_tag", "'None'"),
    ({"action": "cancel", "filter": [1]}, "invalid_filter", "object"),
    ({"action": "cancel", "filter": {"tag": "a"}, "limit": 1_001}, "invalid_limit", "1001"),
    ({"action": "cancel", "filter": {"tag": "a"}, "cursor": "x"}, "invalid_cursor", "next"),
    ({"action": "tag", "ids": [1]}, "invalid_tags", "need some"),
    ({"action": "cancel", "ids": [1], "tags": ["a"]}, "invalid_tags", "have none"),
    ({"action": "tag", "ids": [1], "tags": ["a,b"]}, "invalid_tags", "word"),
    ({"action": "tag", "ids": [1], "tags": "a"}, "invalid_tags", "list of words"),
    ({"action": "tag", "ids": [1], "tags": ["\ud800"]}, "invalid_json", "whole characters"),
    ({"action": "cancel", "ids": [1], "color": "red"}, "unknown_field", "color"),
]


@each("wrong, code, words", WRONG)
async def test_what_is_wrong_is_named_and_nothing_is_done(
    place: Place, wrong: dict[str, Any], code: str, words: str
) -> None:
    job_id = await place.upload(not_before="in 1h")
    wrong = {name: [job_id] if str(value) == "[1]" else value for name, value in wrong.items()}
    status, problem = await bulk(place, **wrong)
    assert (status, problem["code"]) == (400, code), problem
    assert words in problem["detail"]
    shown = await place.api("GET", f"/jobs/{job_id}")
    assert (shown["cancel_requested_at"], shown["tags"]) == (None, [])
