"""Tasks of an array that share a sandbox start, in a real agent."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from typing import Any

import pytest

from client_agent.sandbox.kernel.pidfd import descendants
from tests.processes.agent_process import AgentProcess, agent, died, watched

_JOBS = itertools.count(1)
TASK = b"""
echo "task $FERRYMAN_ARRAY_INDEX of job $FERRYMAN_JOB_ID"; touch mine; ls
exit $((FERRYMAN_ARRAY_INDEX % 2))
"""
PACK = {"batch": 7, "most": 20}


def submit(running: AgentProcess, index: int, script: bytes, **changed: Any) -> dict[str, Any]:
    order = {"array": {"index": index}, "pack": PACK} | changed
    return running.submit(f"{next(_JOBS)}.1", {"run.sh": script}, **order)


def result(running: AgentProcess, payload_id: int) -> dict[str, bytes]:
    status, data = running.call("GET", f"/retrieve_partial/{payload_id}")
    assert status == 200
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory):
    """One agent with one slot."""
    with agent(tmp_path_factory.mktemp("agent"), "--slots", "1") as started:
        yield started


def blocked(running: AgentProcess) -> int:
    """The slot, and what could be a worker of the next payload, are taken by other users' jobs."""
    first = running.submit(f"{next(_JOBS)}.1", {"run.sh": b"sleep 1000\n"}, user_id="bob")
    running.until(first["id"], "Running")
    return int(first["id"])


def test_tasks_of_an_array_share_a_sandbox_and_keep_results_of_their_own(running: AgentProcess):
    block = blocked(running)
    tasks = [submit(running, index, TASK) for index in range(6)]
    running.call("POST", f"/kill/{block}")
    ends = [running.ended(task["id"]) for task in tasks]
    pids = []
    for index, (task, ended) in enumerate(zip(tasks, ends, strict=True)):
        files = result(running, task["id"])
        job = int(task["key"].split(".")[0])
        assert files["stdout.log"].decode() == f"task {index} of job {job}\nmine\nrun.sh\n"
        receipt = json.loads(files["ferryman.json"])
        assert (receipt["job"], receipt["exit_code"]) == (job, index % 2)
        assert (ended["exit_code"], ended["status"]) == (
            index % 2,
            "Failed" if index % 2 else "Completed",
        )
        assert set(files) == {"run.sh", "mine", "stdout.log", "stderr.log", "ferryman.json"}
        pids.append(ended["loc"])
    assert len(set(pids)) <= 2, pids  # one for each worker


def test_one_task_of_a_pack_is_cancelled_alone(running: AgentProcess):
    first = submit(running, 0, b"true\n")
    running.ended(first["id"])  # else the other worker may be quicker with the second
    second = submit(running, 1, b"sleep 1000\n", on_shutdown="stop")
    pid = running.until(second["id"], "Running")["pid"]
    third = submit(running, 2, b"echo third\n")
    waiting = submit(running, 3, b"echo never\n")
    assert running.call("POST", f"/kill/{waiting['id']}")[1]["status"] == "Killed"
    assert running.call("POST", f"/kill/{second['id']}")[1]["status"] == "Killed"
    assert descendants(pid) == []  # of the driver, which may be alive a moment longer
    assert running.ended(third["id"])["status"] == "Completed"
    assert result(running, third["id"])["stdout.log"] == b"third\n"
    killed = running.call("GET", f"/retrieve/{waiting['id']}")[1]
    assert (killed["status"], killed["started_at"]) == ("Killed", None)


def test_a_timeout_ends_one_task_alone(running: AgentProcess):
    tasks = [submit(running, index, TASK) for index in (0, 2)]
    slow = submit(running, 4, b"sleep 1000\n", timeout_s=0.2)
    last = submit(running, 6, TASK)
    assert running.ended(slow["id"])["reason"] == "timeout"
    for task in (*tasks, last):
        assert running.ended(task["id"])["status"] == "Completed"


def test_an_agent_killed_in_a_pack_keeps_ends_and_runs_what_had_not_started(tmp_path):
    with agent(tmp_path, "--slots", "1") as running:
        done = [submit(running, index, b"echo done\n") for index in range(3)]
        for task in done:
            running.ended(task["id"])
        stuck = submit(running, 3, b"echo began; sleep 1000\n")
        pid = running.until(stuck["id"], "Running")["pid"]
        rest = [submit(running, index, b"echo rest\n") for index in (4, 5, 6)]
        with watched(pid) as init:
            running.kill()
            assert died(init)
    with agent(tmp_path, "--slots", "1") as running:
        for task in done:
            found = running.call("GET", f"/retrieve_partial/{task['id']}")
            assert found[0] == 200
        ended = running.ended(stuck["id"])
        assert (ended["status"], ended["interrupted"]) == ("Failed", True)
        for task in rest:
            assert running.ended(task["id"])["status"] == "Completed"
            assert result(running, task["id"])["stdout.log"] == b"rest\n"
