"""Whatever answers at an agent's address: no job is lost, fails by it, runs twice, or is believed
dead; nobody gets another's result; and nobody is hurt by answers that lie or have no end.
"""

import asyncio
import io
import json
import warnings
import zipfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from server.agents import ferryman_agent
from server.domain import outcome
from tests.kit.fake_agent import (
    INTAKE,
    FakeAgent,
    HeldPayload,
    Trick,
    completes,
    elsewhere,
    is_intake,
    on,
    page,
    partial,
    refuse,
    serving,
    zipped,
)
from tests.kit.uploads import left

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
    honest, lied = FakeAgent("honest", "id-honest", ends="Running"), asyncio.Event()
    liar = FakeAgent("liar", "id-liar", slots=0)

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


# -- answers that lie


@pytest.mark.parametrize(
    "doc",
    [{"key": "999.1"}, {"server": "another"}, {"key": None}, {"status": "Exploded"}, {"id": "x"}],
)
async def test_an_answer_about_another_payload_is_no_answer(fleet, doc):
    """To a bundle that was taken: the agent is asked for the key, and lies again; then it does not
    have it.
    """
    agent, lies = FakeAgent(), iter([doc, doc])

    def lie(request: web.Request) -> Awaitable[web.StreamResponse] | None:
        if not (is_intake(request) or request.path.endswith("/settle")):
            return None
        reply = next(lies, None)

        async def answer() -> web.StreamResponse:
            payload = HeldPayload(1, "sim", "1.1", None).wire() | (reply or {})
            return web.json_response({"answers": [{"payload": payload}], "payload": payload})

        return answer() if reply else None

    agent.trick = on(["/"], lie)
    await fleet.use(agent)
    job_id = await fleet.upload()
    await completes(fleet, job_id, 2)
    assert next(lies, None) is None
    assert agent.refused == {f"{job_id}.1"}
    assert agent.starts == {f"{job_id}.2": 1}


async def test_payloads_of_others_are_left_alone(fleet):
    agent, job_id = await fleet.busy()
    held = agent.held(f"{job_id}.1")
    others = [("another", f"{job_id}.1"), (held.server, "no key"), (held.server, "0.0")]
    for number, (server, key) in enumerate(others, 90):
        await agent.say(HeldPayload(number, server, key, None, "Completed", zipped("of others")))
    agent.hang_up()
    await agent.end(held)
    await completes(fleet, job_id)
    assert [agent.payloads[number].status for number in (90, 91, 92)] == ["Completed"] * 3


async def test_a_partial_result_is_that_of_the_job_whatever_its_number_is_by_now(fleet):
    """The agent's data were lost, and its numbers start over with another user's payload."""
    agent, job_id = await fleet.busy()
    held = agent.held(f"{job_id}.1")
    held.result = zipped("so far")
    assert (await partial(fleet, job_id)).read("output.txt") == b"so far"
    others = HeldPayload(held.id, "another", "5.1", None, result=zipped("of others"))
    agent.payloads[held.id] = others
    assert (await partial(fleet, job_id)).namelist() == ["ferryman.json"]


@pytest.mark.parametrize("size", ["longer", "shorter", "other bytes"])
async def test_a_result_that_is_not_the_one_announced_is_not_taken(fleet, size):
    agent, lied = FakeAgent(sends_results=False), list[str]()

    def lie(request: web.Request) -> Awaitable[web.StreamResponse] | None:
        true = agent.payloads[int(request.match_info["id"])].result
        body = {"longer": true + b"x", "shorter": true[:-1], "other bytes": b"x" * len(true)}[size]

        async def answer() -> web.StreamResponse:
            lied.append(request.path)
            return web.Response(body=body, content_type="application/zip")

        return None if lied else answer()

    agent.trick = on(["/retrieve_partial"], lie)
    await fleet.use(agent)
    before = left(fleet.data, "results")
    await completes(fleet, await fleet.upload())
    assert len(lied) == 1
    assert len(left(fleet.data, "results") - before) == 1


def listing(made: Callable[[int], Any]) -> Trick:
    """Lists its payloads behind a number with this text, or this document."""

    async def trick(request: web.Request) -> web.StreamResponse | None:
        if request.method != "GET" or request.path != "/payloads":
            return None
        found = made(int(request.query["after"]))
        found = found if isinstance(found, str) else json.dumps(found)
        return web.Response(body=found, content_type="application/json")

    return trick


NONSENSE = {
    "it leads back": lambda after: {"seq": 1, "payloads": [], "next": after},
    "one page without end": lambda _: {"seq": 1, "payloads": [], "message": "x" * (2 << 20)},
    "pages without end": lambda after: {"seq": 1, "payloads": [], "next": after + 1},
    "it is deep": lambda _: '{"seq": 1, "payloads": [' + "[" * 100_000,
    "it is none": lambda _: [],
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_a_list_of_nonsense_or_of_any_size_is_no_answer(fleet, what, monkeypatch):
    """Nor are such events: test_answers.py and test_follower.py."""
    monkeypatch.setattr(ferryman_agent, "_MOST_PAYLOADS", 20)
    agent, job_id = await fleet.busy(infra_retries=0)
    calls = agent.calls["GET /payloads"]
    agent.away(listing(NONSENSE[what]))
    await agent.until(lambda: agent.calls["GET /payloads"] >= calls + 2)
    await agent.asked_twice()
    assert (await fleet.job(job_id, until="Running"))["status"] == "Running"
    agent.trick = None
    await agent.end(agent.held(f"{job_id}.1"))
    await completes(fleet, job_id)


async def test_a_list_of_several_pages_is_read_to_its_end(fleet):
    agent = FakeAgent(ends="Running")

    def one_by_one(after: int) -> dict[str, Any]:
        found = [one.wire() for one in agent.payloads.values() if one.id > after]
        return {"seq": 1, "payloads": found[:1], "next": after + 1 if len(found) > 1 else None}

    agent.trick = listing(one_by_one)
    await fleet.use(agent)
    ids = await fleet.running(3)
    for job_id in ids:
        held = agent.held(f"{job_id}.1")
        held.status, held.result = "Completed", zipped(f"result of {held.key}")
    agent.hang_up()
    for job_id in ids:
        await completes(fleet, job_id)


@pytest.mark.parametrize("status", ["Running", "Completed"])
async def test_a_number_that_was_given_again_ends_and_forgets_nothing_else(fleet, status):
    """As after an agent's database was replaced: what it told is about another payload now."""
    agent, done = FakeAgent(), asyncio.Event()
    await fleet.use(agent)
    job_id = await fleet.upload()
    await fleet.job(job_id)
    server = agent.held(f"{job_id}.1").server
    again = HeldPayload(77, server, "998.1", None, status)

    async def give_again(request: web.Request) -> None:
        asked = request.path == "/kill/77" or b'{"id":77,"key":"999.1"}' in await request.read()
        if asked and not done.is_set():
            agent.payloads[77] = again
            done.set()

    agent.trick = give_again
    await agent.say(HeldPayload(77, server, "999.1", None, status))
    await done.wait()
    await agent.until(lambda: agent.payloads.get(77) is again)
    await fleet.job(await fleet.upload())
    assert (again.status, agent.killed) == (status, [])


# -- an agent is slow, or has too much


async def test_downloads_that_hang_hold_up_their_own_agent_only(fleet):
    """Its kills too, and another agent's results, go on while a hundred of its transfers hang."""
    slow = FakeAgent(slots=24, ends="Running", sends_results=False)
    quick = FakeAgent(slots=1, sends_results=False, well=False)
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

    slow.trick = trickle
    await fleet.use(slow, quick, runs_per_user=99, max_runs=99)
    *ids, last = await fleet.running(21)
    for job_id in ids:
        await slow.end(slow.held(f"{job_id}.1"))
    await slow.until(lambda: hanging >= 8)
    slow.slots = 0
    quick.well = True
    for agent in (slow, quick):
        agent.hang_up()
    assert (await fleet.terminate(last))[0] == 200
    job = await fleet.job(await fleet.upload())
    assert (job["status"], job["agent"]) == ("Completed", quick.name)
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
    await completes(fleet, await fleet.upload())
    assert (len(agent.orders), under_way < 2) == (1, True)  # or a list of it comes before
    assert set(agent.starts.values()) == {1}


@pytest.mark.parametrize("status", ["Completed", "Failed", "Killed"])
async def test_no_more_bytes_are_taken_than_the_limits_of_the_job_allow(fleet, status):
    agent, job_id = await fleet.busy(infra_retries=0)
    held = agent.held(f"{job_id}.1")
    held.status, held.more = status, {"result": {"size": 2**62, "sha256": "0" * 64}}
    await agent.say(held)
    job = await fleet.job(job_id)
    assert job["status"] == ("Cancelled" if status == "Killed" else "Failed")
    assert f"{2**62} bytes" in str(job)
    await agent.until(lambda: held.status == "Cleaned")
    assert agent.calls["GET /retrieve_partial/{id}"] == 0


async def test_a_partial_result_has_no_more_bytes_than_the_jobs_limits_allow(fleet, monkeypatch):
    agent, job_id = await fleet.busy(limits={"results": "1MB", "log": "1kB"})
    agent.held(f"{job_id}.1").result = zipped("x" * 1_100_000)
    assert "output.txt" in (await partial(fleet, job_id)).namelist()
    monkeypatch.setattr(outcome, "ZIP_OVERHEAD", 0)
    assert (await partial(fleet, job_id)).namelist() == ["ferryman.json"]


def results_of_a_liar() -> dict[str, bytes]:
    """ZIPs that no agent of ours makes."""
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    return {
        "above": zip_of(("../../evil", b"x")),
        "absolute": zip_of(("/etc/evil", b"x")),
        "twice": zip_of(("a", b"1"), ("a", b"2")),
        "a file and a folder": zip_of(("a", b"1"), ("a/b", b"2")),
        "a link": zip_of((link, b"/etc/passwd")),
        "cut": zip_of(("a", b"1"))[:-10],
        "no ZIP": b"x" * 500,
    }


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
