"""Whatever answers at an agent's address: no job is lost, fails by it, runs twice, or is believed
dead; nobody gets another's result.
"""

import asyncio

import pytest
from aiohttp import web

from tests.kit.fake_agent import (
    INTAKE,
    FakeAgent,
    HeldPayload,
    completes,
    elsewhere,
    on,
    page,
    partial,
    serving,
    zipped,
)

STRANGERS = {
    "404 page": page(404),
    "502 of a proxy": page(502, "<html>Bad Gateway</html>"),
    "page for everything": page(200),
    "JSON for everything": page(200, "{}", "application/json"),
    "list for everything": page(200, "[]", "application/json"),
    "answers to no order": page(200, '{"answers": []}', "application/json"),
    "empty answers": page(200, "", "application/json"),
    "healthy, and no agent": page(200, '{"status": "ok"}', "application/json"),
    "404 in JSON": page(404, '{"detail": "Not Found"}', "application/json"),
    "redirect": elsewhere,
}
stranger = pytest.mark.parametrize("trick", STRANGERS.values(), ids=STRANGERS.keys())
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        (name, url)
        for name in STRANGERS
        for url in ("url", "three")
        # that is all a job-orchestrator client says of itself:
        if (name, url) != ("healthy, and no agent", "three")
    ],
)
async def test_a_stranger_gets_no_bundle_and_fails_no_job(fleet, name, url):
    agent = FakeAgent(trick=STRANGERS[name])
    await fleet.use(agent, infra_retries=0, three=url == "three")
    job_id = await fleet.upload()
    await agent.asked_twice()
    assert set(agent.calls) == {"GET /health"}
    job = await fleet.job(job_id, until="Queued")
    assert f"agent {agent.name} cannot be reached" in job["queue"]["reason"]
    agent.trick = None
    if url == "url":
        await completes(fleet, job_id)
        assert agent.starts == {f"{job_id}.1": 1}


@stranger
async def test_a_proxy_in_between_ends_no_job_and_calls_none_dead(fleet, trick):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent, infra_retries=0)
    running, cancelled = await fleet.running(2)
    agent.away(trick)
    assert (await fleet.terminate(cancelled))[0] == 202
    await agent.asked_twice()
    for job_id in (running, cancelled):
        assert await fleet.states(job_id) == ["Queued", "Processing", "Submitted", "Running"]
    agent.trick = None
    await agent.end(agent.held(f"{running}.1"))
    assert (await fleet.job(cancelled))["status"] == "Cancelled"
    await completes(fleet, running)
    assert set(agent.starts.values()) == {1}
    assert agent.killed == [f"{cancelled}.1"]


@stranger
async def test_a_page_in_place_of_the_answer_to_a_bundle_fails_no_job(fleet, trick):
    agent = FakeAgent(trick=on(INTAKE, trick))
    await fleet.use(agent, infra_retries=0)
    job_id = await fleet.upload()
    await agent.until(lambda: agent.refused == {f"{job_id}.1", f"{job_id}.2"})
    agent.trick = None
    assert (await fleet.job(job_id))["status"] == "Completed"
    assert set(agent.starts.values()) == {1}


async def test_only_its_own_code_says_that_an_agent_has_lost_a_job(fleet):
    agent, job_id = await fleet.busy()
    agent.payloads.clear()
    agent.ends = "Completed"
    agent.hang_up()
    await completes(fleet, job_id, 2)


async def test_an_agent_that_may_get_no_work_hands_over_what_it_has(fleet):
    agent, job_id = await fleet.busy(FakeAgent(ends="Running", slots=1))
    agent.well = False
    agent.hang_up()
    await agent.asked_twice()
    await agent.end(agent.held(f"{job_id}.1"))
    await completes(fleet, job_id)
    waiting = await fleet.job(await fleet.upload(), until="Queued")
    assert "unhealthy: no sandbox" in waiting["queue"]["reason"]
    shown = (await fleet.agents())[agent.name]
    assert (shown["up"], shown["reachable"], len(agent.orders)) == (False, True, 1)


async def test_another_bundle_under_the_key_is_never_the_result(fleet):
    """As after a restore from a backup: the agent knows the key, and another user's bundle."""
    agent = FakeAgent()
    await fleet.use(agent)
    first = await fleet.upload()
    await fleet.job(first)
    server = agent.held(f"{first}.1").server
    for number, status in ((1, "Completed"), (2, "Running")):
        other = agent.new(server, f"{first + number}.1", "d" * 64)
        other.status, other.result = status, zipped("of another user")
    agent.hang_up()
    listed = agent.calls["GET /payloads"]
    for job_id in [await fleet.upload() for _ in range(2)]:
        await completes(fleet, job_id, 2)
    await agent.until(lambda: agent.calls["GET /payloads"] > listed)
    await agent.until(lambda: all(one.status == "Cleaned" for one in agent.payloads.values()))
    assert len(agent.orders) == 1 + 2 * 2
    assert set(agent.starts.values()) == {1}


# -- an agent speaks about what another one has


def forged(held: HeldPayload, status: str = "Completed", digest: str | None = "") -> HeldPayload:
    digest = held.digest if digest == "" else digest
    return HeldPayload(77, held.server, held.key, digest, status, zipped("forged"))


def afterwards(held: HeldPayload) -> HeldPayload:
    """What is said after a lie: it is Cleaned when the lie has been dealt with."""
    return HeldPayload(78, held.server, "999999.1", "d" * 64, "Failed")


@pytest.mark.parametrize("status", ["Running", "Completed", "Failed", "Killed"])
@pytest.mark.parametrize("says", ["the digest", "no digest", "a wrong digest"])
async def test_an_agent_cannot_end_a_job_that_another_has(fleet, says, status):
    honest, liar = FakeAgent(ends="Running"), FakeAgent(slots=0)
    _, job_id = await fleet.busy(honest, liar, infra_retries=0)
    held = honest.held(f"{job_id}.1")
    digest = {"the digest": held.digest, "no digest": None}.get(says, "d" * 64)
    lie, after = forged(held, status, digest), afterwards(held)
    lie.more = {"live": {"message": "forged"}} if status == "Running" else {}
    await liar.say(lie)
    await liar.say(after)
    await liar.until(lambda: after.status == "Cleaned")
    job = await fleet.job(job_id, until="Running")
    assert (job["status"], job["message"]) == ("Running", "run.sh started")
    await honest.end(held)
    await completes(fleet, job_id)
    assert liar.calls["GET /retrieve_partial/{id}"] == 0
    assert not liar.killed


@pytest.mark.parametrize("edited", ["", "its address", "its name", "nothing"])
async def test_who_lists_anothers_attempt_after_a_restart_does_not_get_it(tmp_path, edited):
    """Also when it says the other's id and answers first, after the other's table was edited."""
    honest, liar = (
        FakeAgent("honest", "id-honest", ends="Running"),
        FakeAgent("liar", "id-liar", slots=0),
    )
    lied = asyncio.Event()

    async def late(_: web.Request) -> None:
        await lied.wait()

    async with honest.listening(), liar.listening():
        async with serving(tmp_path, honest, liar) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
            await liar.followed()
        if edited == "its address":
            honest.url = honest.url.replace("127.0.0.1", "localhost")
        elif edited == "its name":
            honest.name = "renamed"
        if edited:
            liar.id, honest.trick = honest.id, late
        held = honest.held(f"{job_id}.1")
        after = afterwards(held)
        liar.model.payloads = {one.id: one for one in (forged(held), after)}
        async with serving(tmp_path, honest, liar) as caller:
            await liar.until(lambda: after.status == "Cleaned")
            job = await caller.job(job_id, until="Running")
            assert (job["status"], job["agent"]) == ("Running", honest.name)
            lied.set()
            await honest.followed()
            await honest.end(held)
            await completes(caller, job_id)


@pytest.mark.parametrize("retries", [1, 0])
async def test_only_the_agent_that_lost_an_attempt_answers_for_it(fleet, retries):
    """While the job waits for the next one, and when it has failed without a result."""
    honest, liar = FakeAgent(ends="Running"), FakeAgent(slots=0)
    _, job_id = await fleet.busy(honest, liar, infra_retries=retries)
    honest.away()
    state = "Queued" if retries else "Failed"
    await fleet.given_up(job_id, state)
    held = honest.held(f"{job_id}.1")
    lie = forged(held)
    await liar.say(lie)
    await liar.until(lambda: lie.status == "Cleaned")
    job = await fleet.job(job_id, until=state)
    assert (job["status"], job["reason"]) == (state, "agent_lost")
    assert liar.calls["GET /retrieve_partial/{id}"] == 0
    assert "output.txt" not in (await partial(fleet, job_id)).namelist()
    held.status, held.result = "Completed", zipped("late")
    honest.slots = 0
    honest.trick = None  # it is back, and has ended the attempt meanwhile
    await honest.until(lambda: held.status == "Cleaned")
    job = await fleet.job(job_id)
    assert (job["status"], job["attempt"]) == ("Completed" if retries else "Failed", 1)
    assert (await partial(fleet, job_id)).read("output.txt") == b"late"
    if retries:
        states = ["Processing", "Submitted", "Running", "Completed"]
        assert (await fleet.states(job_id))[-4:] == states
    assert set(honest.starts.values()) == {1}
