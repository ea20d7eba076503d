"""The agent's HTTP API, as a job-orchestrator server uses it."""

from __future__ import annotations

import os

import pytest

from shared.wire import PayloadState
from tests.kit.agent_http import calling

FIELDS = {"id", "status", "loc", "pid", "killed", "input"}
STATES = {"Prepared", "Running", "Completed", "Failed", "Invalid", "Killed", "Cleaned"}


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


async def test_it_replies_to_a_ping(agent):
    assert await agent.call("GET", "/") == (200, {"message": "pong"})


async def test_its_health_says_ok(agent):
    status, body = await agent.call("GET", "/health")
    assert (status, body["status"]) == (200, "ok")


async def test_its_load_is_a_bare_float(agent):
    status, first = await agent.call("GET", "/load")
    assert (status, first) == (200, 0.0)
    assert isinstance(first, float)
    _, second = await agent.call("GET", "/load")
    assert 0.0 <= second <= 100.0


async def test_plain_parts_become_a_payload_with_the_six_fields_it_requires(agent):
    status, payload = await agent.submit_plain({"run.sh": b"true", "data/in.pdb": b"ATOM"})
    assert status == 200
    assert set(payload) >= FIELDS
    assert payload["status"] == "Prepared"
    assert isinstance(payload["id"], int)
    assert (payload["killed"], payload["input"]) == (False, {})
    process = await agent.sandbox.process(f"{payload['id']}.1")
    assert process.read("data/in.pdb") == b"ATOM"
    process.finish()


async def test_equal_plain_bundles_are_two_payloads(agent):
    ids = {(await agent.submit_plain({"run.sh": b"true"}))[1]["id"] for _ in range(2)}
    assert len(ids) == 2


async def test_retrieve_gives_the_payload_before_its_end_and_the_zip_after_it(agent):
    _, payload = await agent.submit_plain({"run.sh": b"true"})
    process = await agent.sandbox.process(f"{payload['id']}.1")
    status, running = await agent.call("GET", f"/retrieve/{payload['id']}")
    assert (status, running["status"]) == (200, "Running")
    assert set(running) >= FIELDS
    assert running["pid"] == process.pid
    process.write("out.txt", b"42")
    process.finish()
    await agent.ended(payload["id"])
    assert (await agent.zip(f"/retrieve/{payload['id']}"))["out.txt"] == b"42"


async def test_of_a_failure_retrieve_gives_the_payload_and_retrieve_partial_its_files(agent):
    _, payload = await agent.submit_plain({"run.sh": b"false"})
    process = await agent.sandbox.process(f"{payload['id']}.1")
    process.write("partial.txt", b"half")
    process.finish(1)
    await agent.ended(payload["id"])
    status, failed = await agent.call("GET", f"/retrieve/{payload['id']}")
    assert (status, failed["status"]) == (200, "Failed")
    assert (await agent.zip(f"/retrieve_partial/{payload['id']}"))["partial.txt"] == b"half"


async def test_retrieve_partial_is_a_zip_in_any_state(agent):
    for job in range(2):
        _, payload = await agent.submit_plain({"run.sh": b"true"})
        process = await agent.sandbox.process(f"{payload['id']}.1")
        process.write("sofar", str(job).encode())
        assert (await agent.zip(f"/retrieve_partial/{payload['id']}"))["sofar"] == str(job).encode()
    _, waiting = await agent.submit_plain({"run.sh": b"true"})
    assert set(await agent.zip(f"/retrieve_partial/{waiting['id']}")) == {"ferryman.json"}


async def test_kill_replies_when_the_processes_are_dead(agent):
    _, payload = await agent.submit_plain({"run.sh": b"sleep 60"})
    process = await agent.sandbox.process(f"{payload['id']}.1")
    status, killed = await agent.call("POST", f"/kill/{payload['id']}")
    assert (status, killed["status"], killed["killed"]) == (200, "Killed", True)
    assert not process.alive


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/retrieve/99"), ("GET", "/retrieve_partial/99"), ("POST", "/kill/99")],
)
async def test_an_unknown_payload_is_404_with_an_empty_payload(agent, method, path):
    status, body = await agent.call(method, path)
    assert status == 404
    assert set(body) >= FIELDS
    assert (body["id"], body["status"]) == (0, "Unknown")


@pytest.mark.parametrize(
    "files",
    [
        {"main.sh": b"true"},
        {"run.sh": b"true", "../evil": b"x"},
        {"run.sh": b"true", "/etc/evil": b"x"},
        {"run.sh": b"true", "a": b"x", "a/b": b"y"},
    ],
)
async def test_a_bad_bundle_is_400_with_the_reason_and_leaves_nothing(agent, tmp_path, files):
    status, payload = await agent.submit_plain(files)
    assert (status, payload["code"]) == (400, "invalid_bundle")
    assert payload["message"]
    folders = [tmp_path / "agent" / name for name in ("bundles", "staging")]
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


async def test_plain_bundles_have_a_slots_share_of_the_host_for_a_week(tmp_path):
    async with calling(tmp_path, slots=1, services=["docking"]) as agent:
        _, payload = await agent.submit_plain({"run.sh": b"true"})
        process = await agent.sandbox.process(f"{payload['id']}.1")
        assert process.launch.timeout_s == 7 * 86_400
        assert process.launch.env["FERRYMAN_SERVICE"] == "docking"
        assert float(process.launch.env["FERRYMAN_CPUS"]) == len(os.sched_getaffinity(0))
        assert int(process.launch.env["FERRYMAN_MEMORY_BYTES"]) >= 2 << 30
        process.finish()
        assert (await agent.ended(payload["id"]))["status"] == "Completed"


async def test_every_status_is_one_that_it_can_read(agent):
    assert {state.value for state in PayloadState} <= STATES
