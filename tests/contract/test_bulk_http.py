"""One action on many jobs, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio

from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving


async def bulk(caller: ServerClient, token: str = "", **asked: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{caller.url}/api/v1/jobs/bulk"
    async with caller.session.post(url, json=asked, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


def codes(answer: dict[str, Any]) -> list[tuple[int, bool, str]]:
    return [(item["id"], item["ok"], item["code"]) for item in answer["items"]]


async def test_jobs_are_cancelled_retried_tagged_and_deleted_by_number(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        running, waiting = await caller.upload(), await caller.upload(not_before="in 1h")
        await caller.job(running, until="Running")
        status, answer = await bulk(caller, action="cancel", ids=[running, waiting, 99])
        assert status == 200
        assert codes(answer) == [
            (running, True, "requested"),
            (waiting, True, "requested"),
            (99, False, "job_not_found"),
        ]
        assert (answer["more"], answer["next"]) == (False, None)
        for job_id in (running, waiting):
            assert (await caller.job(job_id))["status"] == "Cancelled"
        _, answer = await bulk(caller, action="cancel", ids=[running])
        assert codes(answer) == [(running, True, "already_ended")]
        _, answer = await bulk(caller, action="retry", ids=[waiting])
        assert codes(answer) == [(waiting, True, "queued")]
        _, answer = await bulk(caller, action="retry", ids=[waiting])
        assert codes(answer)[0][1] is False
        _, answer = await bulk(caller, action="tag", ids=[running, waiting], tags=["a", "b"])
        assert codes(answer) == [(running, True, "tagged"), (waiting, True, "tagged")]
        _, answer = await bulk(caller, action="untag", ids=[running], tags=["b"])
        tagged = json.loads((await caller.get("/api/v1/jobs?tag=b"))[2])["items"]
        assert [one["id"] for one in tagged] == [waiting]
        assert (await caller.job(running))["tags"] == ["a"]
        _, answer = await bulk(caller, action="delete", ids=[running])
        assert codes(answer) == [(running, True, "deleted")]
        assert (await caller.get(f"/api/v1/jobs/{running}"))[0] == 404
        another = await caller.upload()
        await caller.job(another, until="Running")
        _, answer = await bulk(caller, action="delete", ids=[another])
        assert codes(answer)[0][1:] in ((True, "requested"), (True, "cancelled"))
        assert (await caller.job(another))["status"] == "Cancelled"
        _, answer = await bulk(caller, action="delete", ids=[another])
        assert codes(answer) == [(another, True, "deleted")]


async def test_a_filter_is_worked_off_in_slices_with_each_job_once(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        for number in range(5):
            await caller.upload(not_before="in 1h", tags="odd" if number % 2 else "even")
        asked: dict[str, Any] = {"action": "cancel", "filter": {"tag": "even"}, "limit": 2}
        _, first = await bulk(caller, **asked)
        _, second = await bulk(caller, **asked, cursor=first["next"])
        assert [one[0] for one in codes(first) + codes(second)] == [5, 3, 1]
        assert (first["more"], second["more"], second["next"]) == (True, False, None)
        for job_id in (1, 3, 5):
            assert (await caller.job(job_id))["status"] == "Cancelled"
        # Where no state is named: those that the action can change.
        _, answer = await bulk(caller, action="cancel", filter={"user": "7"})
        assert [one[0] for one in codes(answer)] == [4, 2]
        for job_id in (2, 4):
            await caller.job(job_id)
        _, answer = await bulk(caller, action="cancel", all=True)
        assert answer["items"] == []
        _, answer = await bulk(caller, action="retry", filter={"tag": "odd", "since": "1h"})
        assert [one[:2] for one in codes(answer)] == [(4, True), (2, True)]
        _, answer = await bulk(caller, action="delete", filter={"state": "Cancelled"})
        assert [one[0] for one in codes(answer)] == [5, 3, 1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unchanged(module_folder):
    """A server with one job, which stays as it is."""
    async with driving(module_folder, FakeOrchestrator(then="Running")) as caller:
        assert await caller.upload(not_before="in 1h") == 1
        yield caller


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({}, "invalid_action", "cancel, retry, delete, tag, untag, move"),
        ({"action": "cancel", "ids": [1], "service": "my_service"}, "invalid_service", "move"),
        ({"action": "move", "ids": [1]}, "invalid_service", "'None' is none that takes jobs"),
        ({"action": "explode", "ids": [1]}, "invalid_action", "'explode'"),
        ({"action": "cancel"}, "invalid_filter", '"all": true'),
        ({"action": "cancel", "filter": {}}, "invalid_filter", '"all": true'),
        ({"action": "cancel", "all": True, "filter": {"tag": "a"}}, "invalid_filter", "all"),
        ({"action": "cancel", "ids": []}, "invalid_ids", "1 to 1000"),
        ({"action": "cancel", "ids": list(range(1, 1_002))}, "invalid_ids", "1 to 1000"),
        ({"action": "cancel", "ids": ["x"]}, "invalid_ids", "'x'"),
        ({"action": "cancel", "ids": [1.5]}, "invalid_ids", "'1.5'"),
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
        ({"action": "tag", "ids": [1], "tags": ["a b"]}, "invalid_tags", "words"),
        ({"action": "tag", "ids": [1], "tags": ["a,b"]}, "invalid_tags", "word"),
        ({"action": "tag", "ids": [1], "tags": "a"}, "invalid_tags", "list of words"),
        ({"action": "tag", "ids": [1], "tags": ["\ud800"]}, "invalid_json", "whole characters"),
        ({"action": "cancel", "filter": {"user": "\ud800"}}, "invalid_json", "whole characters"),
        ({"action": "cancel", "ids": [1], "color": "red"}, "unknown_field", "color"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_done(unchanged, wrong, code, words):
    status, problem = await bulk(unchanged, **wrong)
    assert (status, problem["code"]) == (400, code), problem
    assert words in problem["detail"]
    shown = json.loads((await unchanged.get("/api/v1/jobs/1"))[2])
    assert (shown["cancel_requested_at"], shown["tags"]) == (None, [])


async def test_what_somebody_may_not_see_is_not_there(tmp_path):
    principals = {
        "p" * 20: Principal("portal", Role.PORTAL),
        "a" * 20: Principal("ann-laptop", Role.USER, "ann"),
        "n" * 20: Principal("node-1", Role.AGENT),
    }
    portal, ann, node = principals
    async with driving(tmp_path, FakeOrchestrator(), principals=principals) as caller:
        caller.session.headers["Authorization"] = f"Bearer {portal}"
        job_id = await caller.upload(not_before="in 1h")
        for action in ("cancel", "retry", "delete", "tag", "untag"):
            tags = {"tags": ["a"]} if "tag" in action else {}
            _, answer = await bulk(caller, ann, action=action, ids=[job_id], **tags)
            assert codes(answer) == [(job_id, False, "job_not_found")]
            _, answer = await bulk(caller, ann, action=action, filter={"user": "7"}, **tags)
            assert answer["items"] == []
            _, answer = await bulk(caller, ann, action=action, all=True, **tags)
            assert answer["items"] == []
            status, problem = await bulk(caller, node, action=action, ids=[job_id], **tags)
            assert (status, problem["code"]) == (403, "not_allowed")
        moved = {"action": "move", "service": "my_service"}
        status, problem = await bulk(caller, ann, **moved, ids=[job_id])
        assert (status, problem["code"]) == (403, "not_allowed")
        shown = json.loads((await caller.get(f"/api/v1/jobs/{job_id}"))[2])
        assert (shown["cancel_requested_at"], shown["tags"]) == (None, [])
