"""Whatever answers at an agent's address: no job is lost, fails by it, runs twice, or is believed
dead; nobody gets another's result.
"""

from __future__ import annotations

import asyncio
import io
import json
import warnings
import zipfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import pytest
from aiohttp import web

from server.agents import ferryman_agent
from server.domain import outcome
from tests.kit.fake_agent import (
    INTAKE,
    FakeAgent,
    HeldPayload,
    Trick,
    elsewhere,
    is_intake,
    page,
    refuse,
    said,
    serving,
    zipped,
)
from tests.kit.server_http import ServerClient

STRANGERS = {
    "404 page": page(404),
    "502 of a proxy": page(502, "<html>Bad Gateway</html>"),
    "page for everything": page(200),
    "JSON for everything": page(200, "{}", "application/json"),
    "list for everything": page(200, "[]", "application/json"),
    "empty answers": page(200, "", "application/json"),
    "healthy, and no agent": page(200, '{"status": "ok"}', "application/json"),
    "404 in JSON": page(404, '{"detail": "Not Found"}', "application/json"),
    "redirect": elsewhere,
}
stranger = pytest.mark.parametrize("trick", STRANGERS.values(), ids=STRANGERS.keys())
ONCE = "infra_retries = 0"
pytestmark = pytest.mark.asyncio(loop_scope="module")


Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse] | None]


def on(paths: Iterable[str], answer: Answer) -> Trick:
    """A trick at the routes that begin so, but at lists."""

    async def trick(request: web.Request) -> web.StreamResponse | None:
        here = request.path.startswith(tuple(paths)) and not is_listing(request)
        made = answer(request) if here else None
        if made is not None:
            await request.read()
            return await made
        return None

    return trick


def is_listing(request: web.Request) -> bool:
    return request.method == "GET" and request.path == "/payloads"


async def result(caller: ServerClient, job_id: int) -> str:
    status, kind, body = await caller.get(f"/download/{job_id}")
    assert (status, kind) == (200, "application/zip"), body
    return said(body)


async def terminate(caller: ServerClient, job_id: int) -> int:
    async with caller.session.post(f"{caller.url}/terminate/{job_id}") as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize(
    ("trick", "url"),
    [
        (STRANGERS[name], url)
        for name in STRANGERS
        for url in ("url", "three")
        # that is all a job-orchestrator client says of itself:
        if (name, url) != ("healthy, and no agent", "three")
    ],
)
async def test_a_stranger_gets_no_bundle_and_fails_no_job(fleet, trick, url):
    agent = FakeAgent(trick=trick)
    await fleet.use(agent, infra_retries=0, three=url == "three")
    job_id = await fleet.upload()
    health = agent.calls["GET /health"]
    await agent.until(lambda: agent.calls["GET /health"] >= health + 2)
    assert set(agent.calls) == {"GET /health"}
    job = await fleet.job(job_id, until="Queued")
    assert f"agent {agent.name} cannot be reached" in job["queue"]["reason"]
    agent.trick = None
    if url == "url":
        assert (await fleet.job(job_id))["status"] == "Completed"
        assert agent.starts == {f"{job_id}.1": 1}


@stranger
async def test_a_proxy_in_between_ends_no_job_and_calls_none_dead(fleet, trick):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent, infra_retries=0)
    running, cancelled = [await fleet.upload() for _ in range(2)]
    for job_id in (running, cancelled):
        await fleet.job(job_id, until="Running")
    agent.trick = trick
    agent.hang_up()
    health = agent.calls["GET /health"]
    assert await terminate(fleet, cancelled) == 202
    await agent.until(lambda: agent.calls["GET /health"] >= health + 2)
    for job_id in (running, cancelled):
        assert await fleet.states(job_id) == ["Queued", "Processing", "Submitted", "Running"]
    agent.trick = None
    await agent.end(agent.held(f"{running}.1"))
    assert (await fleet.job(cancelled))["status"] == "Cancelled"
    assert (await fleet.job(running))["status"] == "Completed"
    assert await result(fleet, running) == f"result of {running}.1"
    assert set(agent.starts.values()) == {1}
    assert agent.killed == [f"{cancelled}.1"]


@stranger
async def test_a_page_in_place_of_the_answer_to_a_bundle_fails_no_job(fleet, trick):
    agent = FakeAgent(trick=on(INTAKE, trick))
    await fleet.use(agent, infra_retries=0)
    job_id = await fleet.upload()
    await agent.until(lambda: agent.refused == {f"{job_id}.1", f"{job_id}.2"})
    agent.trick = None
    job = await fleet.job(job_id)
    assert job["status"] == "Completed"
    assert set(agent.starts.values()) == {1}


async def test_only_its_own_code_says_that_an_agent_has_lost_a_job(fleet):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.payloads.clear()
    agent.ends = "Completed"
    agent.hang_up()
    job = await fleet.job(job_id)
    assert (job["status"], job["attempt"]) == ("Completed", 2)


async def test_an_agent_that_may_get_no_work_hands_over_what_it_has(fleet):
    agent = FakeAgent(ends="Running", slots=1)
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.well = False
    agent.hang_up()
    health = agent.calls["GET /health"]
    await agent.until(lambda: agent.calls["GET /health"] > health)
    await agent.end(agent.held(f"{job_id}.1"))
    assert (await fleet.job(job_id))["status"] == "Completed"
    waiting = await fleet.job(await fleet.upload(), until="Queued")
    assert "unhealthy: no sandbox" in waiting["queue"]["reason"]
    status, _, body = await fleet.get("/api/v1/agents")
    reply = json.loads(body)["items"][0]
    assert (status, reply["up"], reply["reachable"]) == (200, False, True)
    assert len(agent.orders) == 1


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
    jobs = [await fleet.upload() for _ in range(2)]
    for job_id in jobs:
        job = await fleet.job(job_id)
        assert (job["status"], job["attempt"]) == ("Completed", 2)
        assert await result(fleet, job_id) == f"result of {job_id}.2"
    await agent.until(lambda: agent.calls["GET /payloads"] > listed)
    await agent.until(lambda: all(one.status == "Cleaned" for one in agent.payloads.values()))
    assert len(agent.orders) == 1 + 2 * len(jobs)
    assert set(agent.starts.values()) == {1}


async def heard(liar: FakeAgent, forged: HeldPayload) -> None:
    """Say it, and return when what was said after it has been dealt with."""
    after = HeldPayload(forged.id + 1, forged.server, "999999.1", "d" * 64, "Failed")
    await liar.say(forged)
    await liar.say(after)
    await liar.until(lambda: after.status == "Cleaned")


@pytest.mark.parametrize("status", ["Running", "Completed", "Failed", "Killed"])
@pytest.mark.parametrize("says", ["the digest", "no digest", "a wrong digest"])
async def test_an_agent_cannot_end_a_job_that_another_has(fleet, says, status):
    honest = FakeAgent("honest", ends="Running", slots=4)
    liar = FakeAgent("liar", slots=0)
    await fleet.use(honest, liar, infra_retries=0)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    held = honest.held(f"{job_id}.1")
    digest = {"the digest": held.digest, "no digest": None}.get(says, "d" * 64)
    forged = HeldPayload(77, held.server, held.key, digest, status, zipped("forged"))
    forged.more = {"live": {"message": "forged"}} if status == "Running" else {}
    await heard(liar, forged)
    job = await fleet.job(job_id, until="Running")
    assert (job["status"], job["message"]) == ("Running", "run.sh started")
    await honest.end(held)
    assert (await fleet.job(job_id))["status"] == "Completed"
    assert await result(fleet, job_id) == f"result of {job_id}.1"
    assert liar.calls["GET /retrieve_partial/{id}"] == 0
    assert not liar.killed


async def test_an_agent_that_lists_another_ones_attempt_after_a_restart_does_not_get_it(tmp_path):
    honest = FakeAgent("honest", ends="Running", slots=4)
    liar = FakeAgent("liar", slots=0)
    async with honest.listening(), liar.listening():
        async with serving(tmp_path, honest, liar) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
        held = honest.held(f"{job_id}.1")
        forged = HeldPayload(77, held.server, held.key, held.digest, "Completed", zipped("forged"))
        after = HeldPayload(78, held.server, "999999.1", "d" * 64, "Failed")
        liar.payloads = {one.id: one for one in (forged, after)}
        async with serving(tmp_path, honest, liar) as caller:
            await liar.until(lambda: after.status == "Cleaned")
            assert (await caller.job(job_id, until="Running"))["status"] == "Running"
            await honest.end(held)
            assert (await caller.job(job_id))["status"] == "Completed"
            assert await result(caller, job_id) == f"result of {job_id}.1"


@pytest.mark.parametrize("edited", ["its address", "its name", "nothing"])
async def test_an_agent_that_says_the_id_of_another_gets_no_jobs_of_it(tmp_path, edited):
    """Also when it answers first, after the table of the other one was edited."""
    honest = FakeAgent("honest", "id-honest", ends="Running", slots=4)
    liar = FakeAgent("liar", "id-liar", slots=0)
    lied = asyncio.Event()

    async def late(_: web.Request) -> None:
        await lied.wait()

    async with honest.listening(), liar.listening():
        async with serving(tmp_path, honest, liar) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
            await liar.until(lambda: liar.streams == 1)
        if edited == "its address":
            honest.url = honest.url.replace("127.0.0.1", "localhost")
        elif edited == "its name":
            honest.name = "renamed"
        held = honest.held(f"{job_id}.1")
        forged = HeldPayload(77, held.server, held.key, held.digest, "Completed", zipped("forged"))
        after = HeldPayload(78, held.server, "999999.1", "d" * 64, "Failed")
        liar.payloads = {one.id: one for one in (forged, after)}
        liar.id, honest.trick = honest.id, late
        async with serving(tmp_path, honest, liar) as caller:
            await liar.until(lambda: after.status == "Cleaned")
            job = await caller.job(job_id, until="Running")
            assert (job["status"], job["agent"]) == ("Running", honest.name)
            lied.set()
            await honest.until(lambda: honest.streams == 1)
            await honest.end(held)
            job = await caller.job(job_id)
            assert (job["status"], job["attempt"]) == ("Completed", 1)
            assert await result(caller, job_id) == f"result of {job_id}.1"


async def test_an_agent_does_not_answer_for_an_attempt_that_another_has_lost(fleet):
    """Neither while the job waits for the next attempt, nor when it has ended without a result."""
    honest = FakeAgent("honest", ends="Running", slots=4)
    liar = FakeAgent("liar", slots=0)
    await fleet.use(honest, liar, infra_retries=0)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    honest.trick = page(502)
    honest.hang_up()
    job = await fleet.given_up(job_id)
    assert (job["status"], job["reason"]) == ("Failed", "agent_lost")
    held = honest.held(f"{job_id}.1")
    forged = HeldPayload(77, held.server, held.key, held.digest, "Completed", zipped("forged"))
    await liar.say(forged)
    await liar.until(lambda: forged.status == "Cleaned")
    _, _, body = await fleet.get(f"/download_partial/{job_id}")
    assert "output.txt" not in zipfile.ZipFile(io.BytesIO(body)).namelist()


async def test_an_agent_does_not_save_the_attempt_that_another_has_lost(fleet):
    honest = FakeAgent("honest", ends="Running", slots=4)
    liar = FakeAgent("liar", slots=0)
    await fleet.use(honest, liar)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    honest.trick = page(502)
    honest.hang_up()
    await fleet.given_up(job_id, "Queued")
    held = honest.held(f"{job_id}.1")
    forged = HeldPayload(77, held.server, held.key, held.digest, "Completed", zipped("forged"))
    await liar.say(forged)
    await liar.until(lambda: forged.status == "Cleaned")
    assert (await fleet.job(job_id, until="Queued"))["status"] == "Queued"
    assert liar.calls["GET /retrieve_partial/{id}"] == 0


@pytest.mark.parametrize(
    "doc",
    [{"key": "999.1"}, {"server": "another"}, {"key": None}, {"status": "Exploded"}, {"id": "x"}],
)
async def test_an_answer_about_another_payload_is_no_answer(fleet, doc):
    """The submit was taken, and its answer makes no sense: the agent is asked for the key."""
    agent = FakeAgent()
    lies = iter([doc])

    def lie(request: web.Request) -> Awaitable[web.StreamResponse] | None:
        reply = next(lies, None)
        if reply is None:
            return None

        async def answer() -> web.StreamResponse:
            said = HeldPayload(1, "sim", "1.1", None).wire() | reply
            return web.json_response({"answers": [{"payload": said}]})

        return answer()

    agent.trick = on(INTAKE, lie)
    await fleet.use(agent)
    job_id = await fleet.upload()
    job = await fleet.job(job_id)
    assert (job["status"], job["attempt"]) == ("Completed", 2)
    assert agent.refused == {f"{job_id}.1"}
    assert agent.starts == {f"{job_id}.2": 1}


async def test_payloads_of_others_are_left_alone(fleet):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    held = agent.held(f"{job_id}.1")
    for number, (server, key) in enumerate(
        [("another", f"{job_id}.1"), (held.server, "no key"), (held.server, "0.0")]
    ):
        await agent.say(
            HeldPayload(90 + number, server, key, None, "Completed", zipped("of others"))
        )
    agent.hang_up()
    await agent.end(held)
    assert (await fleet.job(job_id))["status"] == "Completed"
    assert await result(fleet, job_id) == f"result of {job_id}.1"
    assert [agent.payloads[90 + number].status for number in range(3)] == ["Completed"] * 3


async def test_a_partial_result_is_that_of_the_job_whatever_its_number_is_by_now(fleet):
    """The agent's data were lost, and its numbers start over with another user's payload."""
    agent = FakeAgent(ends="Running")
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    held = agent.held(f"{job_id}.1")
    held.result = zipped("so far")
    status, _, body = await fleet.get(f"/download_partial/{job_id}")
    assert (status, said(body)) == (200, "so far")
    agent.payloads[held.id] = HeldPayload(
        held.id, "another", "5.1", None, result=zipped("of others")
    )
    status, _, body = await fleet.get(f"/download_partial/{job_id}")
    assert zipfile.ZipFile(io.BytesIO(body)).namelist() == ["ferryman.json"]


@pytest.mark.parametrize("size", ["longer", "shorter", "other bytes"])
async def test_a_result_that_is_not_the_one_announced_is_not_taken(fleet, size):
    agent = FakeAgent(sends_results=False)
    bad = 1

    def lie(request: web.Request) -> Awaitable[web.StreamResponse] | None:
        nonlocal bad
        if not bad:
            return None
        bad -= 1
        true = agent.payloads[int(request.match_info["id"])].result
        body = {"longer": true + b"x", "shorter": true[:-1], "other bytes": b"x" * len(true)}[size]

        async def answer() -> web.StreamResponse:
            return web.Response(body=body, content_type="application/zip")

        return answer()

    def stored() -> set[Path]:
        return {path for path in (fleet.data / "results").rglob("*") if path.is_file()}

    agent.trick = on(["/retrieve_partial"], lie)
    await fleet.use(agent)
    before = stored()
    job_id = await fleet.upload()
    assert (await fleet.job(job_id))["status"] == "Completed"
    assert await result(fleet, job_id) == f"result of {job_id}.1"
    assert len(stored() - before) == 1


async def test_downloads_that_hang_hold_up_their_own_agent_only(fleet):
    """Its kills too, and another agent's results, go on while a hundred of its transfers hang."""
    slow, quick = (
        FakeAgent("slow", slots=24, ends="Running", sends_results=False),
        FakeAgent("quick", slots=1, sends_results=False),
    )
    never = asyncio.Event()
    hanging = 0

    async def trickle(request: web.Request) -> web.StreamResponse | None:
        nonlocal hanging
        if "/retrieve_partial" not in request.path:
            return None
        answer = web.StreamResponse(headers={"Content-Type": "application/zip"})
        await answer.prepare(request)
        await answer.write(b"PK")
        hanging += 1
        await never.wait()
        return answer

    quick.well = False
    slow.trick = trickle
    await fleet.use(slow, quick, runs_per_user=99, max_runs=99)
    ids = [await fleet.upload() for _ in range(21)]
    for job_id in ids:
        await fleet.job(job_id, until="Running")
    for job_id in ids[:-1]:
        await slow.end(slow.held(f"{job_id}.1"))
    await slow.until(lambda: hanging >= 8)
    slow.slots = 0
    quick.well = True
    for agent in (slow, quick):
        agent.hang_up()
    assert await terminate(fleet, ids[-1]) == 200
    job = await fleet.job(await fleet.upload())
    assert (job["status"], job["agent"]) == ("Completed", "quick")
    assert hanging == 8
    never.set()


async def test_a_bundle_that_is_being_taken_is_not_sent_again(fleet):
    """The agent is slow to answer and says so when it is asked for the key."""
    agent = FakeAgent()
    under_way = 2

    async def slow(request: web.Request) -> web.StreamResponse | None:
        nonlocal under_way
        if is_intake(request) and not agent.orders:
            agent.model.listeners.clear()  # its events do not come
            answer = await agent.submit(request)
            assert request.transport is not None
            request.transport.abort()
            return answer
        if "/settle" in request.path and under_way:
            under_way -= 1
            return refuse(409, "submit_in_progress", **{"Retry-After": "0"})
        return None

    agent.trick = slow
    await fleet.use(agent)
    job = await fleet.job(await fleet.upload())
    assert (job["status"], job["attempt"]) == ("Completed", 1)
    assert (len(agent.orders), under_way) == (1, 0)
    assert set(agent.starts.values()) == {1}


async def test_a_result_that_comes_after_the_attempt_was_given_up_saves_another_one(fleet):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.trick = page(502)
    agent.hang_up()
    await fleet.given_up(job_id, "Queued")
    agent.held(f"{job_id}.1").status = "Completed"
    agent.held(f"{job_id}.1").result = zipped("late")
    agent.slots = 0
    agent.trick = None
    job = await fleet.job(job_id)
    assert (job["status"], job["attempt"]) == ("Completed", 1)
    assert await result(fleet, job_id) == "late"
    assert set(agent.starts.values()) == {1}
    history = await fleet.states(job_id)
    assert history[-4:] == ["Queued", "Processing", "Submitted", "Running", "Completed"][-4:]


async def test_what_a_lost_attempt_left_can_be_fetched_when_it_comes_after_all(fleet):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent, infra_retries=0)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.trick = page(502)
    agent.hang_up()
    job = await fleet.given_up(job_id)
    assert (job["status"], job["reason"]) == ("Failed", "agent_lost")
    held = agent.held(f"{job_id}.1")
    held.status, held.result = "Completed", zipped("late")
    agent.trick = None
    await agent.until(lambda: held.status == "Cleaned")
    assert (await fleet.job(job_id))["status"] == "Failed", "it had failed already"
    _, _, body = await fleet.get(f"/download_partial/{job_id}")
    assert said(body) == "late"


@pytest.mark.parametrize("body", [b"{" * (1 << 20), b'{"seq": 1, "payload": 7}\n', b"\xff\n"])
async def test_an_event_stream_of_nonsense_is_no_answer(fleet, body):
    agent = FakeAgent(ends="Running")

    async def nonsense(request: web.Request) -> web.StreamResponse | None:
        return web.Response(body=body) if request.path == "/events" else None

    await fleet.use(agent, infra_retries=0)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.trick = nonsense
    agent.hang_up()
    streams = agent.calls["GET /events"]
    await agent.until(lambda: agent.calls["GET /events"] >= streams + 2)
    await agent.end(agent.held(f"{job_id}.1"))  # the list that comes first still has it
    assert (await fleet.job(job_id))["status"] == "Completed"


async def test_a_cancel_is_not_confirmed_while_its_agent_is_not_in_the_settings(tmp_path):
    agent, other = FakeAgent(ends="Running"), FakeAgent("other")
    async with agent.listening(), other.listening():
        async with serving(tmp_path, agent) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
        async with serving(tmp_path, other) as caller:
            url = f"{caller.url}/terminate/{job_id}"
            async with caller.session.post(url) as answer:
                reply = await answer.json()
            assert answer.status == 202
            # Unknown once the server has noticed that nobody can say what the job does.
            assert reply["status"] in ("Running", "Unknown")
            assert "agent fake is not in the server's settings" in reply["message"]
            async with caller.session.post(f"{caller.url}/api/v1/jobs/{job_id}/cancel") as answer:
                assert (answer.status, (await answer.json())["message"]) == (202, reply["message"])
            assert agent.killed == []
        async with serving(tmp_path, agent) as caller:
            assert (await caller.job(job_id))["status"] == "Cancelled"
            # Twice, where the list of payloads that the server compares is older than the cancel.
            assert set(agent.killed) == {f"{job_id}.1"}


async def test_the_list_of_agents_says_what_each_does_now(fleet):
    agent = FakeAgent(ends="Running", slots=3)
    await fleet.use(agent)
    for job_id in [await fleet.upload() for _ in range(2)]:
        await fleet.job(job_id, until="Running")
    _, _, body = await fleet.get(f"/api/v1/agents/{agent.name}")
    reply = json.loads(body)
    assert (reply["jobs"], reply["running"], reply["slots"]) == (2, 2, 3)
    assert (reply["kind"], reply["up"], reply["trouble"]) == ("ferryman", True, "")
    assert "running" not in reply["health"]


@pytest.mark.parametrize(("status", "route"), [("Running", "/kill/"), ("Completed", "/payloads/")])
async def test_a_number_that_an_agent_gave_again_ends_and_forgets_nothing_else(
    fleet, status, route
):
    """As after an agent's database was replaced: what it told is about another payload now."""
    agent, done = FakeAgent(), asyncio.Event()
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id)
    server = agent.held(f"{job_id}.1").server
    again = HeldPayload(77, server, "998.1", None, status)

    async def give_again(request: web.Request) -> None:
        if request.path == f"{route}77":
            agent.payloads[77] = again
            done.set()

    agent.trick = give_again
    await agent.say(HeldPayload(77, server, "999.1", None, status))
    await done.wait()
    await agent.until(lambda: agent.payloads.get(77) is again)
    await fleet.job(await fleet.upload())
    assert (again.status, agent.killed) == (status, [])


LISTS = {
    "leads back": lambda after: {"payloads": [], "next": after},
    "is one page without end": lambda _: {"payloads": [], "message": "x" * (2 << 20)},
    "has pages without end": lambda after: {"payloads": [], "next": after + 1},
    "is deep": lambda _: '{"seq": 1, "payloads": [' + "[" * 100_000,
    "is none": lambda _: [],
}


@pytest.mark.parametrize("made", LISTS.values(), ids=LISTS.keys())
async def test_a_list_without_end_or_of_any_size_is_no_answer(fleet, made, monkeypatch):
    monkeypatch.setattr(ferryman_agent, "_MOST_PAYLOADS", 20)
    agent = FakeAgent(ends="Running")

    async def lie(request: web.Request) -> web.StreamResponse | None:
        if request.method != "GET" or request.path != "/payloads":
            return None
        found = made(int(request.query["after"]))
        found = {"seq": 1} | found if isinstance(found, dict) else found
        text = found if isinstance(found, str) else json.dumps(found)
        return web.Response(text=text, content_type="application/json")

    await fleet.use(agent, infra_retries=0)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.trick = lie
    agent.hang_up()
    listed = agent.calls["GET /payloads"]
    asked = agent.calls["GET /health"]
    await agent.until(lambda: agent.calls["GET /payloads"] > listed)
    await agent.until(lambda: agent.calls["GET /health"] >= asked + 2)
    assert (await fleet.job(job_id, until="Running"))["status"] == "Running"
    agent.trick = None
    await agent.end(agent.held(f"{job_id}.1"))
    assert (await fleet.job(job_id))["status"] == "Completed"


async def test_a_list_of_several_pages_is_read_to_its_end(fleet):
    agent = FakeAgent(ends="Running")

    async def one_by_one(request: web.Request) -> web.StreamResponse | None:
        if request.method != "GET" or request.path != "/payloads":
            return None
        after = int(request.query["after"])
        found = [one.wire() for one in agent.payloads.values() if one.id > after]
        page, more = found[:1], len(found) > 1
        body = {"seq": 1, "payloads": page, "next": after + 1 if more else None}
        return web.json_response(body)

    agent.trick = one_by_one
    await fleet.use(agent)
    ids = [await fleet.upload() for _ in range(3)]
    for job_id in ids:
        await fleet.job(job_id, until="Running")
    for job_id in ids:
        held = agent.held(f"{job_id}.1")
        held.status, held.result = "Completed", zipped(f"result of {held.key}")
    agent.hang_up()
    for job_id in ids:
        assert (await fleet.job(job_id))["attempt"] == 1
        assert await result(fleet, job_id) == f"result of {job_id}.1"


@pytest.mark.parametrize("status", ["Completed", "Failed", "Killed"])
async def test_no_more_bytes_are_taken_than_the_limits_of_the_job_allow(fleet, status):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent, infra_retries=0)
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    held = agent.held(f"{job_id}.1")
    held.status, held.more = status, {"result": {"size": 2**62, "sha256": "0" * 64}}
    await agent.say(held)
    job = await fleet.job(job_id)
    assert job["status"] == ("Cancelled" if status == "Killed" else "Failed")
    assert f"{2**62} bytes" in str(job)
    await agent.until(lambda: held.status == "Cleaned")
    assert agent.calls["GET /retrieve_partial/{id}"] == 0


async def test_a_partial_result_has_no_more_bytes_than_the_limits_of_the_job_allow(
    fleet, monkeypatch
):
    agent = FakeAgent(ends="Running")
    await fleet.use(agent, limits={"results": "1MB", "log": "1kB"})
    job_id = await fleet.upload()
    await fleet.job(job_id, until="Running")
    agent.held(f"{job_id}.1").result = zipped("x" * 1_100_000)
    _, _, body = await fleet.get(f"/download_partial/{job_id}")
    assert "output.txt" in zipfile.ZipFile(io.BytesIO(body)).namelist()
    monkeypatch.setattr(outcome, "ZIP_OVERHEAD", 0)
    _, _, body = await fleet.get(f"/download_partial/{job_id}")
    assert zipfile.ZipFile(io.BytesIO(body)).namelist() == ["ferryman.json"]


def results_of_a_liar() -> dict[str, bytes]:
    """ZIPs that no agent of ours makes."""
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    made = {
        "above": zip_of(("../../evil", b"x")),
        "absolute": zip_of(("/etc/evil", b"x")),
        "twice": zip_of(("a", b"1"), ("a", b"2")),
        "a file and a folder": zip_of(("a", b"1"), ("a/b", b"2")),
        "a link": zip_of((link, b"/etc/passwd")),
        "cut": zip_of(("a", b"1"))[:-10],
        "no ZIP": b"x" * 500,
    }
    other_size = bytearray(zip_of(("a", b"1")))
    at = other_size.index(b"PK\1\2") + 24
    other_size[at : at + 4] = b"\xf0\xff\xff\xff"
    return made | {"another size": bytes(other_size)}


def zip_of(*files: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in files:
            archive.writestr(name, content)
    return packed.getvalue()


async def test_a_result_that_is_no_honest_zip_is_given_to_no_other_job(fleet):
    """Nor are children of it made: a name outside, a link, a bomb."""
    agent = FakeAgent(ends="Running", slots=20)
    children = {
        "child outside": zip_of(("children/a/run.sh", b"true"), ("children/a/../../b", b"x")),
        "bomb": zip_of(("children/a/run.sh", b"true"), ("children/a/b", bytes(64 << 20))),
    }
    await fleet.use(agent, infra_retries=0, runs_per_user=20, max_runs=20)
    for name, content in (results_of_a_liar() | children).items():
        job_id = await fleet.upload()
        await fleet.job(job_id, until="Running")
        held = agent.held(f"{job_id}.1")
        held.status, held.result = "Completed", content
        if name in children:
            held.more["result"] = held.wire()["result"] | {"children": 1}
        await agent.say(held)
        job = await fleet.job(job_id)
        if name in children:
            assert (job["status"], job["reason"]) == ("Failed", "invalid_bundle"), name
            continue
        assert job["status"] == "Completed", name
        after = await fleet.job(await fleet.upload(inputs_from=str(job_id)))
        assert (after["status"], after["reason"]) == ("Failed", "dependency_failed"), name
        assert (await fleet.get("/health"))[0] == 200
