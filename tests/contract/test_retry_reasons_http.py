"""Which failures are tried again, and what a user hears of those that are not."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.kit.fake_agent import FakeAgent, HeldPayload, serving
from tests.kit.server_http import RUN, ServerClient

NEVER = ("queue_timeout", "invalid_bundle", "not_offered", "child_failed", "dependency_failed")
AT_ONCE = 'retry_delays = ["0s"]\ninfra_retries = 0\n'


async def posted(caller: ServerClient, **fields: str) -> tuple[int, dict[str, Any]]:
    """Status and answer of an upload."""
    form = aiohttp.FormData({"user_id": "7", "service": "my_service", **fields})
    form.add_field("file", RUN, filename="run.sh")
    async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
        return answer.status, await answer.json()


async def fails(agent: FakeAgent, key: str, reason: str, exit_code: int | None) -> None:
    """The attempt is there, and ends so."""
    async with asyncio.timeout(20):  # until it is started
        await agent.until(lambda: bool(agent.starts[key]))
    held: HeldPayload = agent.held(key)
    held.status = "Failed"
    held.more = {"reason": reason, "exit_code": exit_code, "message": f"it failed: {reason}"}
    await agent.say(held)


@pytest.mark.parametrize(
    ("reason", "exit_code"), [("exit_code", 1), ("timeout", 143), ("heartbeat_timeout", None)]
)
@pytest.mark.parametrize("said_by", ["upload", "service"])
async def test_retries_alone_retry_what_a_bundle_does_wrong(
    tmp_path, reason, exit_code, said_by
) -> None:
    agent = FakeAgent(ends="Running")
    of_service, of_upload = (
        ("retries = 1\n", {}) if said_by == "service" else ("", {"retries": "1"})
    )
    async with serving(tmp_path, agent, extra=AT_ONCE + of_service) as caller:
        status, answer = await posted(caller, **of_upload)
        assert (status, "warnings" in answer) == (201, False)
        job_id = answer["id"]
        await fails(agent, f"{job_id}.1", reason, exit_code)
        await fails(agent, f"{job_id}.2", reason, exit_code)
        job = await caller.job(job_id)
    assert (job["status"], job["reason"], job["attempt"]) == ("Failed", reason, 2)
    assert job["retry"]["retry_on"] == ["exit_code", "heartbeat_timeout", "timeout"]
    assert "not tried again" not in job["message"]


@pytest.mark.parametrize(
    ("fields", "reason", "exit_code", "why"),
    [
        ({"retry_on": "exit:7"}, "timeout", 143, "retry_on has only exit:7"),
        ({"retry_on": "exit:7"}, "exit_code", 1, "retry_on has only exit:7"),
        ({"no_retry_on": "exit:1"}, "exit_code", 1, "no_retry_on has exit:1"),
        (
            {},
            "memory_limit",
            137,
            "retry_on has only exit_code, heartbeat_timeout, timeout",
        ),
        ({}, "invalid_bundle", None, "invalid_bundle would be the same next time"),
    ],
)
async def test_a_failure_with_retries_left_says_why_it_was_not_tried_again(
    tmp_path, fields, reason, exit_code, why
) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, extra=AT_ONCE) as caller:
        job_id = await caller.upload(retries="2", **fields)
        await fails(agent, f"{job_id}.1", reason, exit_code)
        job = await caller.job(job_id)
    assert (job["status"], job["reason"], job["attempt"]) == ("Failed", reason, 1)
    assert job["retries_left"] == 2
    assert job["message"].endswith(f"; it has 2 retries left, but {why}"), job["message"]


async def test_a_failure_of_the_host_with_retries_left_says_what_counts_it(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, extra=AT_ONCE) as caller:
        job_id = await caller.upload(retries="1")
        await agent.until(lambda: bool(agent.starts[f"{job_id}.1"]))
        held = agent.held(f"{job_id}.1")
        held.status = "Failed"
        held.more = {"reason": "agent_error", "message": "its disk is broken", "interrupted": True}
        await agent.say(held)
        job = await caller.job(job_id)
    assert (job["status"], job["reason"]) == ("Failed", "agent_error")
    assert job["message"].endswith(
        "it has 1 retry left, but retry_on has only exit_code, heartbeat_timeout, timeout"
    )


async def test_the_answer_to_an_upload_says_what_its_list_leaves_out(tmp_path) -> None:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent) as caller:
        status, answer = await posted(caller, retries="2", retry_on="exit:7", timeout="9h")
        assert status == 201
        cut, left_out = answer["warnings"]
        assert cut.startswith("timeout: 9h was asked for")
        assert left_out == (
            "retry_on: exit:7 leaves out heartbeat_timeout, other exit codes, timeout, which "
            "service my_service tries again"
        )
        job = await caller.job(answer["id"], until="Running")
        assert job["warnings"] == answer["warnings"]
        # What adds to the list leaves nothing out, and without retries there is nothing to say.
        whole = "exit_code,timeout,heartbeat_timeout,memory_limit"
        for fields in ({"retries": "2", "retry_on": whole}, {"retry_on": "exit:7"}):
            _, answer = await posted(caller, **fields)
            assert "warnings" not in answer, fields


async def test_a_reason_that_is_never_retried_is_refused(tmp_path) -> None:
    async with serving(tmp_path, FakeAgent(ends="Running")) as caller:
        for reason in NEVER:
            await is_refused(caller, reason)


async def is_refused(caller: ServerClient, reason: str) -> None:
    status, answer = await posted(caller, retries="2", retry_on=f"timeout,{reason}")
    assert (status, answer["part"]) == (400, "retry_on")
    assert f"'{reason}' is never tried again" in answer["message"]
    status, _ = await posted(caller, retries="2", no_retry_on=reason)
    assert status == 201
    url = f"{caller.url}/api/v1/services/other"
    async with caller.session.put(url, json={"retry_on": [reason]}) as refused:
        assert refused.status == 400
        assert f"'{reason}' is never tried again" in (await refused.json())["detail"]
