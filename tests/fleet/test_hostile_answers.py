"""Answers of an agent that make no sense, do not end, or are too much: no job is lost, fails by
them or runs twice; nobody gets another's result.
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
    FakeAgent,
    HeldPayload,
    Trick,
    completes,
    is_intake,
    on,
    partial,
    refuse,
    zipped,
)
from tests.kit.uploads import left

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
