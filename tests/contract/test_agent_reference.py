"""What a job-orchestrator server sees of an agent of ours."""

from __future__ import annotations

import pytest

from shared.wire import PayloadState
from tests.support.agent_http import calling

SIX = {"id", "status", "loc", "pid", "killed", "input"}
ITS_WORDS = {"Prepared", "Running", "Completed", "Failed", "Invalid", "Killed", "Cleaned"}


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


async def test_it_answers_a_ping(agent):
    assert await agent.call("GET", "/") == (200, {"message": "pong"})


async def test_its_health_says_ok(agent):
    status, told = await agent.call("GET", "/health")
    assert (status, told["status"]) == (200, "ok")


async def test_its_load_is_a_bare_float(agent):
    status, first = await agent.call("GET", "/load")
    assert (status, first) == (200, 0.0)
    assert isinstance(first, float)
    _, second = await agent.call("GET", "/load")
    assert 0.0 <= second <= 100.0


async def test_plain_parts_become_a_payload_with_the_six_fields_it_requires(agent):
    status, told = await agent.submit_plain({"run.sh": b"true", "data/in.pdb": b"ATOM"})
    assert status == 200
    assert set(told) >= SIX
    assert told["status"] == "Prepared"
    assert isinstance(told["id"], int)
    assert (told["killed"], told["input"]) == (False, {})
    process = await agent.sandbox.process(f"{told['id']}.1")
    assert process.read("data/in.pdb") == b"ATOM"
    process.finish()


async def test_equal_plain_bundles_are_two_payloads(agent):
    ids = {(await agent.submit_plain({"run.sh": b"true"}))[1]["id"] for _ in range(2)}
    assert len(ids) == 2


async def test_before_the_end_retrieve_tells_the_payload_and_after_it_gives_the_zip(agent):
    _, told = await agent.submit_plain({"run.sh": b"true"})
    process = await agent.sandbox.process(f"{told['id']}.1")
    status, running = await agent.call("GET", f"/retrieve/{told['id']}")
    assert (status, running["status"]) == (200, "Running")
    assert set(running) >= SIX
    assert running["pid"] == process.pid
    process.write("out.txt", b"42")
    process.finish()
    await agent.ended(told["id"])
    assert (await agent.zip(f"/retrieve/{told['id']}"))["out.txt"] == b"42"


async def test_a_failure_is_told_by_retrieve_and_its_files_by_retrieve_partial(agent):
    _, told = await agent.submit_plain({"run.sh": b"false"})
    process = await agent.sandbox.process(f"{told['id']}.1")
    process.write("partial.txt", b"half")
    process.finish(1)
    await agent.ended(told["id"])
    status, failed = await agent.call("GET", f"/retrieve/{told['id']}")
    assert (status, failed["status"]) == (200, "Failed")
    assert (await agent.zip(f"/retrieve_partial/{told['id']}"))["partial.txt"] == b"half"


async def test_retrieve_partial_is_a_zip_in_any_state(agent):
    for job in range(2):
        _, told = await agent.submit_plain({"run.sh": b"true"})
        process = await agent.sandbox.process(f"{told['id']}.1")
        process.write("sofar", str(job).encode())
        assert (await agent.zip(f"/retrieve_partial/{told['id']}"))["sofar"] == str(job).encode()
    _, waiting = await agent.submit_plain({"run.sh": b"true"})
    assert set(await agent.zip(f"/retrieve_partial/{waiting['id']}")) == {"ferryman.json"}


async def test_kill_answers_when_the_processes_are_dead(agent):
    _, told = await agent.submit_plain({"run.sh": b"sleep 60"})
    process = await agent.sandbox.process(f"{told['id']}.1")
    status, killed = await agent.call("POST", f"/kill/{told['id']}")
    assert (status, killed["status"], killed["killed"]) == (200, "Killed", True)
    assert not process.alive


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/retrieve/99"), ("GET", "/retrieve_partial/99"), ("POST", "/kill/99")],
)
async def test_what_is_not_there_is_404_with_an_empty_payload(agent, method, path):
    status, told = await agent.call(method, path)
    assert status == 404
    assert set(told) >= SIX
    assert (told["id"], told["status"]) == (0, "Unknown")


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
    status, told = await agent.submit_plain(files)
    assert (status, told["code"]) == (400, "invalid_bundle")
    assert told["message"]
    folders = [tmp_path / "agent" / name for name in ("bundles", "staging")]
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


async def test_limits_and_timeout_of_plain_bundles_are_the_agents_own(tmp_path):
    limits = {"cpus": 2.0, "memory": "1GiB"}
    async with calling(
        tmp_path, default_timeout="90s", default_limits=limits, services=["docking"]
    ) as agent:
        _, told = await agent.submit_plain({"run.sh": b"true"})
        process = await agent.sandbox.process(f"{told['id']}.1")
        assert process.launch.timeout_s == 90
        assert process.launch.env["FERRYMAN_SERVICE"] == "docking"
        assert process.launch.env["FERRYMAN_CPUS"] == "2"
        assert process.launch.env["FERRYMAN_MEMORY_BYTES"] == str(1 << 30)
        await agent.clock.advance(91)
        assert (await agent.ended(told["id"]))["reason"] == "timeout"


async def test_no_status_is_a_word_that_it_cannot_read(agent):
    assert {state.value for state in PayloadState} <= ITS_WORDS
