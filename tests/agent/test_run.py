"""How an attempt runs: what it gets, when it starts, how it ends, what is kept of it."""

import asyncio
import errno
import io
import json
import os
import re
import threading
import zipfile
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from client_agent.api.routes import MAX_SNAPSHOTS
from client_agent.collect import result
from client_agent.payloads.store import Payloads
from client_agent.run import outcomes
from client_agent.run.attempt import Attempt
from client_agent.sandbox.base import Ended, SandboxBroken
from client_agent.storage.folders import ROW_BYTES, Folders
from shared.files.bundles.reader import BundleReader
from shared.wire import Reason, Usage
from tests.kit.agent_http import LIMITS, AgentClient, calling, digest
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMS = b"one\ntwo words\n"
FILES = {
    "run.sh": b"true",
    "params.txt": PARAMS,
    "a/run.sh": b"echo a",
    "a/deep/data": b"of a",
    "b/run.sh": b"echo b",
}


async def collected(agent: AgentClient, payload_id: int) -> dict[str, bytes]:
    return await agent.zip(f"/retrieve_partial/{payload_id}")


def stored_in_steps(agent: AgentClient, patch: pytest.MonkeyPatch) -> None:
    """That it is stored as running is a step that can be held up."""
    start = Payloads.start

    async def stored(*args: Any) -> Any:
        await agent.sandbox.step("stored")
        return await start(*args)

    patch.setattr(Payloads, "start", stored)


# -- what it gets


async def test_a_folder_of_the_bundle_is_the_root_and_its_entry_is_run(agent) -> None:
    _, process = await agent.started("1.1", FILES, folder="a/", entry="gather.sh")
    assert process.launch.argv == ("bash", "gather.sh")
    assert (process.read("run.sh"), process.read("deep/data")) == (b"echo a", b"of a")
    assert sorted(path.name for path in process.workspace.path.iterdir()) == ["deep", "run.sh"]


async def test_a_task_of_an_array_knows_its_index_and_line(agent) -> None:
    for index, line in enumerate(("two words", "", None)):
        _, process = await agent.started(f"{index + 1}.1", array={"index": index, "line": line})
        env = process.launch.env
        found = env["FERRYMAN_ARRAY_INDEX"], env.get("FERRYMAN_ARRAY_LINE")
        assert found == (str(index), line)
        process.finish()


async def test_a_folder_that_the_bundle_has_not_is_a_mistake_of_the_order(agent) -> None:
    _, payload = await agent.submit("1.1", FILES, folder="missing/")
    doc = await agent.ended(payload["id"])
    found = (doc["status"], doc["reason"], doc["interrupted"])
    assert found == ("Invalid", "invalid_bundle", False)
    assert "no folder “missing/”" in doc["message"]


async def test_a_script_is_told_the_try_of_the_order_or_else_the_attempt_of_the_key(agent) -> None:
    for key, order, tried in (("1.3", {"try_number": 2}, "1.2"), ("2.3", {}, "2.3")):
        _, payload = await agent.submit(key, **order)
        (process := await agent.sandbox.process(tried)).finish()  # it is found by its variables
        assert process.launch.env["FERRYMAN_ATTEMPT"] == tried.partition(".")[2]
        assert (await agent.ended(payload["id"]))["key"] == key


async def test_what_the_agents_operator_grants_has_priority_over_the_servers(tmp_path) -> None:
    granted = {"env": {"LICENSE": "27000@here"}}
    async with calling(tmp_path, sandboxing=granted) as agent:
        _, process = await agent.started("17.2", env={"LICENSE": "27000@there", "MODE": "fast"})
        assert process.launch.variables.items() >= {("LICENSE", "27000@here"), ("MODE", "fast")}


# -- what is kept of it


async def test_a_failure_keeps_its_files_its_logs_and_its_last_lines(agent) -> None:
    secret = {"API_TOKEN": "the-secret-value"}
    payload_id, process = await agent.started("17.2", env=secret, outputs=["*.*", "not-yet"])
    assert process.launch.env.items() >= secret.items()
    process.write("partial.txt", b"half")
    process.write("aux.h", b"")  # no name for Windows
    (process.workspace.path / "link").symlink_to("/etc/passwd")
    process.log(b"working\n", b"first\n\x1b[31mcannot read in.pdb\x1b[0m\n")
    await agent.clock.advance(7)
    process.finish(3, warnings=("pids_limit: 4 times",))
    doc = await agent.ended(payload_id)
    assert (doc["status"], doc["reason"], doc["exit_code"]) == ("Failed", "exit_code", 3)
    assert doc["message"] == "run.sh ended with exit code 3"
    assert doc["stderr_tail"] == "first\n\\x1b[31mcannot read in.pdb\\x1b[0m"
    assert (doc["interrupted"], doc["enforcement"]) == (False, {"memory": "none"})
    others = [one for one in doc["warnings"] if not re.search(r"aux\.h|see skipped in", one)]
    assert others == ["pids_limit: 4 times"]
    assert len(doc["warnings"]) == 3
    files = await collected(agent, payload_id)
    assert "the-secret" not in f"{doc} {files}"
    assert (files["partial.txt"], files["stdout.log"]) == (b"half", b"working\n")
    assert b"cannot read" in files["stderr.log"]
    said = json.loads(files["ferryman.json"])
    wanted = {
        "job": 17,
        "attempt": 2,
        "agent": "node-1",
        "service": "example",
        "limits": LIMITS.model_dump(),
        "status": "Failed",
        "reason": "exit_code",
        "exit_code": 3,
        "message": "run.sh ended with exit code 3",
        "enforcement": {"memory": "none"},
        "logs": {"stdout": "stdout.log", "stderr": "stderr.log"},
        "warnings": doc["warnings"][:2],
    }
    assert {name: said[name] for name in wanted} == wanted
    assert said["bundle"]["digest"] == doc["bundle_digest"]
    assert [one["path"] for one in said["skipped"]] == ["link"]
    assert said["usage"]["peak_memory_bytes"] == 4096
    assert said["received_at"] <= said["started_at"] <= said["ended_at"]
    async with agent.http.get(f"/retrieve_partial/{payload_id}") as response:
        data = await response.read()
    assert digest(data).items() <= doc["result"].items()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        when = datetime(*archive.getinfo("ferryman.json").date_time, tzinfo=UTC)
    assert abs((when - datetime.fromisoformat(doc["ended_at"])).total_seconds()) < 2


async def test_too_large_results_fail_the_job_but_logs_and_receipt_are_kept(agent) -> None:
    for key, code, reason in (("1.1", 0, "results_limit"), ("2.1", 4, "exit_code")):
        payload_id, process = await agent.started(key)
        process.write("big", b"x" * (LIMITS.results + 1))
        process.log(stderr=b"I was here\n")
        process.finish(code)
        doc = await agent.ended(payload_id)
        assert (doc["status"], doc["reason"]) == ("Failed", reason), "the first cause stands"
        assert str(LIMITS.results) in doc["message"] + str(doc["warnings"])
        kept = {"stdout.log", "stderr.log", "ferryman.json"}
        assert set(await collected(agent, payload_id)) == kept


async def test_a_large_result_is_on_the_disk_before_it_is_reported(agent, monkeypatch) -> None:
    """A small one is in the row of its end."""
    real, synced = os.fsync, list[int]()

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    payload_id, process = await agent.started()
    process.write("large", os.urandom(2 * ROW_BYTES))
    process.finish()
    size = (await agent.ended(payload_id))["result"]["size"]
    assert synced.count(size) == 1
    small = await agent.completed("2.1")
    assert [path.name for path in (agent.data / "results").iterdir()] == [f"{payload_id}.zip"]
    assert agent.names("results") == [f"{payload_id}.zip", f"{small}.zip"]


# -- how it ends


@each(
    "end, status, reason, interrupted, kept",
    [
        (lambda run: run.finish(), "Completed", None, False, True),
        (lambda run: run.finish(3), "Failed", "exit_code", False, True),
        (lambda run: run.stop(Reason.MEMORY_LIMIT, ""), "Failed", "memory_limit", False, True),
        (lambda run: run.break_down("no memory"), "Failed", "sandbox_error", True, True),
        # nothing is read under the living
        (lambda run: run.break_down("", certain=False), "Failed", "agent_error", True, False),
    ],
)
async def test_its_server_hears_how_it_ended(agent, end, status, reason, interrupted, kept) -> None:
    await agent.fresh_server()
    payload_id, process = await agent.started()
    end(process)
    doc = await agent.ended(payload_id)
    assert (doc["status"], doc["reason"]) == (status, reason)
    assert (doc["interrupted"], doc["result"] is not None) == (interrupted, kept)
    assert agent.names("results") == ([f"{payload_id}.zip"] if kept else [])


async def test_words_about_limits_that_were_not_enforced_and_about_other_scripts() -> None:
    ended = Ended(4, Reason.EXIT_CODE, "m", Usage(wall_s=1.0), ("first",))
    none = {"memory": "none", "isolation": "none", "network": "none"}
    outcome = outcomes.of(ended, 60, none, "gather.sh")
    assert outcome.message == "gather.sh ended with exit code 4"
    first, *others = outcome.warnings
    assert first == "first"
    assert [warning.split(":")[0] for warning in others] == ["isolation", "network"]


@each("left", [None, b"", b"zeros"])
async def test_a_bundle_that_is_damaged_here_is_no_fault_of_its_sender(agent, left) -> None:
    """Bundles are not fsynced: these are what a power cut may leave of one."""

    def damage(step: str) -> None:
        if step == "prepare":
            for name in agent.names("bundles"):
                path = agent.data / "bundles" / name
                whole = path.read_bytes()
                path.unlink()
                if left is not None:
                    zeros = bytes(len(PARAMS))
                    path.write_bytes(whole.replace(PARAMS, zeros) if left else b"")

    await agent.fresh_server()
    agent.sandbox.hook = damage
    _, payload = await agent.submit("1.1", FILES)
    doc = await agent.ended(payload["id"])
    assert (doc["reason"], doc["interrupted"], agent.sandbox.starts) == ("agent_error", True, {})


@each("own", [True, False])
async def test_what_does_not_fit_is_the_bundles_fault_on_its_own_disk(agent, monkeypatch, own):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    await agent.fresh_server()
    agent.sandbox.enforcement = {"disk": "hard"} if own else {}
    _, payload = await agent.submit("1.1", {"run.sh": b"", "big": b"x" * (LIMITS.disk + 1)})
    doc = await agent.ended(payload["id"])
    assert (doc["reason"], doc["interrupted"]) == ("disk_limit", False)
    assert "1.0 MiB" in doc["message"]
    with monkeypatch.context() as patch:
        patch.setattr(BundleReader, "unpack", full)
        doc = await agent.ended((await agent.submit("2.1"))[1]["id"])
    assert (doc["reason"], doc["interrupted"]) == ("disk_limit" if own else "agent_error", not own)


# -- when it starts


async def test_the_oldest_that_is_ready_gets_the_slot(agent) -> None:
    ids = [(await agent.started(f"{job}.1"))[0] for job in (1, 2)]
    steps: list[str] = []
    agent.sandbox.hook = steps.append
    ids += [(await agent.submit(f"{job}.1"))[1]["id"] for job in (3, 4, 5)]
    await until(lambda: steps.count("up") == 2)  # as many workers have no slot
    order, ended = list[str](), list[int]()
    for payload_id in ids:
        await until(lambda: len(agent.sandbox.live) == min(2, 5 - len(ended)))
        order += sorted({*agent.sandbox.live} - {*order})
        assert order == ["1.1", "2.1", "3.1", "4.1", "5.1"][: len(order)]
        _, process = min(agent.sandbox.live.items())
        process.finish()
        await agent.ended(payload_id)
        ended.append(payload_id)


async def test_its_gate_opens_once_it_is_up_and_stored_as_running(agent, monkeypatch) -> None:
    agent.sandbox.script = FakeProcess.finish
    with monkeypatch.context() as patch, agent.sandbox.held("stored") as at:
        stored_in_steps(agent, patch)
        _, payload = await agent.submit("1.1")
        await at.wait()
        await agent.clock.settle()
        status = (await agent.doc(payload["id"]))["status"]
        assert (agent.sandbox.starts, status) == ({}, "Prepared")
    assert (await agent.ended(payload["id"]))["status"] == "Completed"
    with agent.sandbox.held("up"):
        ids = [(await agent.submit(f"{job}.1"))[1]["id"] for job in (2, 3, 4)]
        running = set[int]()
        async with agent.stream() as stream:
            while len(running) < 2:  # whichever are up first
                payload = (await stream.next())["payload"]
                if payload and payload["id"] in ids and payload["status"] == "Running":
                    running.add(payload["id"])
        (waiting,) = {*ids} - running
        assert (await agent.doc(waiting))["status"] == "Prepared", "there is no free slot"
        assert (await agent.call("GET", "/health"))[1]["running"] == 2
        assert agent.sandbox.starts == {"1.1": 1}
    for one in ids:
        assert (await agent.ended(one))["status"] == "Completed"
    assert agent.sandbox.starts == {f"{job}.1": 1 for job in (1, 2, 3, 4)}


@each("problem", [SandboxBroken("no"), OSError(errno.EMFILE, "too many")])
async def test_a_start_that_fails_after_it_was_stored_as_running_ends_it(agent, problem) -> None:
    await agent.fresh_server()
    with agent.sandbox.held("up", problem=problem):
        _, payload = await agent.submit("1.1")
        async with agent.stream() as stream:
            await stream.until("1.1", "Running")
    doc = await agent.ended(payload["id"])
    assert (doc["status"], doc["reason"], doc["interrupted"]) == ("Failed", "sandbox_error", True)
    await agent.clock.advance(11)
    await agent.completed("2.1")


async def test_a_running_attempt_is_dead_before_the_answer(agent) -> None:
    payload_id, process = await agent.started()
    process.write("partial", b"p")
    for _ in range(2):
        status, killed = await agent.call("POST", f"/kill/{payload_id}")
        assert (status, killed["status"], killed["killed"]) == (200, "Killed", True)
        assert not process.alive
    files = await collected(agent, payload_id)
    assert files["partial"] == b"p"
    assert json.loads(files["ferryman.json"])["status"] == "Cancelled"


async def test_what_waits_never_starts_once_it_is_killed_and_its_bundle_goes(agent) -> None:
    processes = [(await agent.started(f"{job}.1"))[1] for job in (1, 2)]
    bundles = agent.names("bundles")
    _, waiting = await agent.submit("3.1", {"run.sh": b"another"})
    assert agent.names("bundles") != bundles
    assert (await agent.call("POST", f"/kill/{waiting['id']}"))[1]["status"] == "Killed"
    await agent.until_holds("bundles", names=bundles)
    for process in processes:
        process.finish()
    await agent.completed("4.1")
    assert agent.sandbox.starts == {"1.1": 1, "2.1": 1, "4.1": 1}
    assert (await agent.doc(waiting["id"]))["started_at"] is None


@each("step", ["stored", "prepare", "start", "up"])
async def test_killed_while_its_sandbox_is_made_it_never_starts(agent, monkeypatch, step) -> None:
    await agent.fresh_server()
    cancel, cancelled = Attempt.cancel, asyncio.Event()

    def noted(attempt: Attempt) -> None:
        cancel(attempt)
        cancelled.set()

    with monkeypatch.context() as patch, agent.sandbox.held(step) as at:
        stored_in_steps(agent, patch)
        patch.setattr(Attempt, "cancel", noted)
        _, payload = await agent.submit()
        await at.wait()
        if step == "up":
            async with agent.stream() as stream:
                await stream.until("1.1", "Running")
        killing = asyncio.ensure_future(agent.call("POST", f"/kill/{payload['id']}"))
        await (cancelled.wait() if step == "up" else agent.ended(payload["id"]))
    assert (await killing)[1]["status"] == "Killed"
    assert agent.sandbox.starts == {}
    await until(lambda: not any((agent.data / "work").iterdir()))


async def test_a_partial_result_is_of_now_and_few_are_made_at_once(agent, monkeypatch) -> None:
    payload_id, process = await agent.started()
    files: dict[str, bytes] = {}
    for sofar in (b"45 of 100", b"46 of 100"):
        process.write("sofar.txt", sofar)
        process.log(b"step\n")
        files = await collected(agent, payload_id)
        assert files["sofar.txt"] == sofar
        assert json.loads(files["ferryman.json"])["status"] == "Running"
    assert files["stdout.log"] == b"step\nstep\n"
    threads, go_on, real = list[str](), threading.Event(), result.snapshot

    def held(*args: Any) -> None:
        threads.append(threading.current_thread().name)
        go_on.wait(30)
        real(*args)

    monkeypatch.setattr(result, "snapshot", held)
    path = f"/retrieve_partial/{payload_id}"
    asked = [asyncio.create_task(agent.zip(path)) for _ in range(MAX_SNAPSHOTS)]
    await until(lambda: len(threads) == MAX_SNAPSHOTS)
    assert all(name.startswith("ferryman-snapshot") for name in threads)
    status, refused = await agent.call("GET", path)
    assert (status, refused["code"]) == (503, "busy")
    process.finish()
    await agent.ended(payload_id)
    await agent.clock.settle()
    assert process.workspace.path.exists(), "it is kept until they are packed"
    go_on.set()
    assert [(await one)["sofar.txt"] for one in asked] == [b"46 of 100"] * MAX_SNAPSHOTS
    await until(lambda: not process.workspace.path.exists())


async def test_a_partial_result_has_the_logs_where_a_folder_may_not_be_read(agent, monkeypatch):
    payload_id, process = await agent.started()
    process.log(b"step\n")
    with monkeypatch.context() as patch:
        patch.setattr(result, "collect", Mock(side_effect=PermissionError(errno.EACCES, "no")))
        files = await collected(agent, payload_id)
    assert set(files) == {"stdout.log", "stderr.log", "ferryman.json"}
    assert files["stdout.log"] == b"step\n"


async def test_a_partial_result_leaves_the_space_that_must_stay_free(agent, monkeypatch) -> None:
    limits = LIMITS.model_copy(update={"results": 64 << 20})
    payload_id, process = await agent.started(limits=limits)
    process.write("sofar", os.urandom(10 << 20))
    for when in (1, 2, 3):  # before it, before it is written, while it is written
        asked: list[int] = []

        def free(_: Folders, asked=asked, when=when) -> int:
            asked.append(1)
            return -1 if len(asked) == when else 1 << 40

        with monkeypatch.context() as patch:
            patch.setattr(Folders, "free_bytes", free)
            status, refused = await agent.call("GET", f"/retrieve_partial/{payload_id}")
        assert (status, refused["code"]) == (507, "disk_full"), when
        await agent.until_holds("staging")
