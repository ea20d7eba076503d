"""``ferryman admin requeue``: back into the queue, and never two attempts at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, Conflict, JobDoc
from tests.contract.test_agents_http import unreachable
from tests.support.command_line import ferryman
from tests.support.fake_agent import FakeAgent, serving
from tests.support.server_http import ServerClient

SLOW: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent("north", "abc")


@pytest.fixture
async def caller(tmp_path: Path, agent: FakeAgent) -> AsyncIterator[ServerClient]:
    async with serving(tmp_path, agent, extra="[services.other]", **SLOW) as caller:
        yield caller


async def requeue(caller: ServerClient, job_id: int, **how: Any) -> JobDoc:
    async with Client(caller.url) as client:
        return await client.requeue(job_id, **how)


async def refused(caller: ServerClient, job_id: int, **how: Any) -> str:
    with pytest.raises(Conflict) as caught:
        await requeue(caller, job_id, **how)
    return f"{caught.value.code}: {caught.value}"


async def test_a_job_that_has_completed_runs_again(caller: ServerClient, agent: FakeAgent) -> None:
    job_id = await caller.upload()
    await caller.job(job_id)
    looked_at = await requeue(caller, job_id, dry_run=True)
    assert looked_at.status == "Completed"
    again = await requeue(caller, job_id)
    assert (again.status, again.run) == ("Queued", 2)
    done = await caller.job(job_id)
    assert (done["status"], done["attempt"]) == ("Completed", 2)
    assert agent.starts == {f"{job_id}.1": 1, f"{job_id}.2": 1}
    states = await caller.states(job_id, more_than=8)
    at = states.index("Completed")
    assert states[at + 1 : at + 3] == ["Queued", "Processing"]


async def test_a_job_that_its_agent_has_is_not_started_twice(
    caller: ServerClient, agent: FakeAgent
) -> None:
    agent.ends = "Running"
    job_id = await caller.upload()
    await caller.job(job_id, until="Running")
    assert "agent north has its attempt: cancel the job" in await refused(caller, job_id)
    assert "agent_reachable" in await refused(caller, job_id, lost=True)
    await unreachable(caller, agent)
    said = await refused(caller, job_id)
    assert "agent_unreachable" in said
    assert "if its host is off and stays off, say so (lost)" in said
    assert agent.starts == {f"{job_id}.1": 1}


async def test_a_job_that_its_agent_does_not_have_is_queued_by_its_word(
    caller: ServerClient, agent: FakeAgent
) -> None:
    agent.ends = "Running"
    job_id = await caller.upload()
    await caller.job(job_id, until="Running")
    agent.payloads.clear()
    agent.ends = "Completed"
    assert (await requeue(caller, job_id)).status == "Queued"
    done = await caller.job(job_id)
    assert (done["status"], done["attempt"], done["run"]) == ("Completed", 2, 1)
    assert f"{job_id}.1" in agent.refused, "it has promised never to take it"


async def test_the_operators_word_counts_where_the_agent_is_away(
    caller: ServerClient, agent: FakeAgent
) -> None:
    agent.ends = "Running"
    job_id = await caller.upload()
    await caller.job(job_id, until="Running")
    await unreachable(caller, agent)
    job = await requeue(caller, job_id, lost=True)
    assert (job.status, job.reason) == ("Queued", "agent_lost")
    assert "agent north is lost" in job.message


async def test_a_job_moves_to_another_service(caller: ServerClient) -> None:
    job_id = await caller.upload()
    await caller.job(job_id)
    assert "unknown_service" in await refused(caller, job_id, service="none")
    again = await requeue(caller, job_id, service="other")
    assert again.service == "other"


async def test_what_is_gone_stays_gone(caller: ServerClient) -> None:
    job_id = await caller.upload()
    await caller.job(job_id)
    database = caller.server.context.jobs
    job = await database.get(job_id)
    from server.domain import ending

    await database.clean([ending.expired(job, job.ended_at or 0)])
    assert "bundle_gone" in await refused(caller, job_id)


async def test_the_command_asks_shows_and_queues(caller: ServerClient) -> None:
    job_id = await caller.upload()
    await caller.job(job_id)
    words, url = ("admin", "requeue", str(job_id)), caller.url
    code, _, said = await ferryman(*words, FERRYMAN_URL=url)
    assert code == 2
    assert "give --yes where there is no terminal" in said
    code, _, said = await ferryman(*words, "--dry-run", FERRYMAN_URL=url)
    assert code == 0
    assert f"job {job_id}: can be queued again (it is Completed)" in said
    code, out, said = await ferryman(*words, "99", "--yes", "--json", FERRYMAN_URL=url)
    assert code == 1, "one of them is not there"
    assert "99" in said
    assert f'"id": {job_id}' in out or f'"id":{job_id}' in out
    await caller.job(job_id)
    code, _, said = await ferryman("admin", "requeue", "99", "--yes", FERRYMAN_URL=url)
    assert code == 1
    assert "99" in said
