from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest

from client_agent.collect import result
from client_agent.payloads.errors import NoSuchPayload
from client_agent.payloads.payload import Outcome
from shared.clock import SECOND
from shared.files.bundles.reader import BundleReader
from shared.wire import Limits, PayloadState, Reason
from tests.kit.agent import LIMITS, Rig, contents, new_payload
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeWorkspace


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path, SimClock())
    await made.open()
    yield made
    await made.close()
    assert made.sandbox.violations == []


def finishes(code=0, **files):
    def script(process):
        for name, data in files.items():
            process.write(name.replace("_", "."), data)
        process.finish(code)

    return script


async def test_a_bundle_is_run_and_its_result_is_what_it_left(rig):
    rig.sandbox.script = finishes(out_txt=b"42")
    payload = await rig.submit(files={"run.sh": b"x", "data/in.txt": b"in"})
    ended = await rig.ended(payload.id)
    assert ended.state is PayloadState.COMPLETED
    assert (ended.outcome.reason, ended.outcome.message, ended.outcome.exit_code) == (None, "", 0)
    files = rig.result(payload.id)
    assert {name: files[name] for name in ("run.sh", "data/in.txt", "out.txt")} == {
        "run.sh": b"x",
        "data/in.txt": b"in",
        "out.txt": b"42",
    }
    data = rig.folders.result(payload.id).read_bytes()
    assert ended.outcome.result.size == len(data)
    assert ended.outcome.result.sha256 == hashlib.sha256(data).hexdigest()


async def test_run_sh_gets_the_job_in_its_environment_and_nothing_else(rig):
    payload = await rig.submit("17.2", service="docking", limits=Limits(cpus=1.5, memory=1 << 30))
    process = await rig.sandbox.process("17.2")
    assert dict(process.launch.env) == {
        "FERRYMAN_JOB_ID": "17",
        "FERRYMAN_ATTEMPT": "2",
        "FERRYMAN_SERVICE": "docking",
        "FERRYMAN_CPUS": "1.5",
        "FERRYMAN_MEMORY_BYTES": str(1 << 30),
    }
    assert list(process.launch.argv) == ["bash", "run.sh"]
    process.finish()
    await rig.ended(payload.id)


async def test_the_agents_files_in_a_result_have_the_time_of_its_end(rig):
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    await rig.clock.advance(7200)
    process.finish()
    ended = await rig.ended(payload.id)
    with zipfile.ZipFile(rig.folders.result(payload.id)) as archive:
        when = archive.getinfo("ferryman.json").date_time
    assert datetime(*when, tzinfo=UTC) == datetime.fromtimestamp(ended.ended_at / SECOND, UTC)


async def test_a_bundle_of_a_reference_server_is_its_own_job(rig):
    payload = await rig.submit(None)
    (await rig.sandbox.process(f"{payload.id}.1")).finish()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED


async def test_it_is_stored_as_running_before_run_sh_starts(rig):
    seen = []

    def script(process):
        seen.append(process)
        process.finish()

    rig.sandbox.script = script
    order: list[Any] = []
    started = rig.payloads.start

    async def start(*args):
        assert not seen
        order.append(await started(*args))
        return order[-1]

    rig.payloads.start = start
    payload = await rig.submit()
    await rig.ended(payload.id)
    assert order[0].state is PayloadState.RUNNING
    assert order[0].pid == seen[0].pid
    assert order[0].started_at is not None


async def test_a_failure_keeps_its_files_its_logs_and_its_last_lines(rig):
    def script(process):
        process.write("partial.txt", b"half")
        process.log(stdout=b"working\n", stderr=b"first\n\x1b[31mcannot read in.pdb\x1b[0m\n")
        process.finish(3)

    rig.sandbox.script = script
    payload = await rig.submit()
    doc = (await rig.ended(payload.id)).doc()
    assert (doc.status, doc.reason, doc.exit_code) == (PayloadState.FAILED, Reason.EXIT_CODE, 3)
    assert doc.message == "run.sh ended with exit code 3"
    assert doc.stderr_tail == "first\n\\x1b[31mcannot read in.pdb\\x1b[0m"
    assert not doc.interrupted
    files = rig.result(payload.id)
    assert files["partial.txt"] == b"half"
    assert files["stdout.log"] == b"working\n"
    assert b"cannot read" in files["stderr.log"]


async def test_the_receipt_says_what_ran_where_and_how_it_ended(rig):
    rig.sandbox.script = lambda process: process.finish(3, warnings=("pids_limit: 4 times",))
    payload = await rig.submit("17.2")
    await rig.ended(payload.id)
    receipt = rig.receipt(payload.id)
    assert {name: receipt[name] for name in ("job", "attempt", "agent", "version", "service")} == {
        "job": 17,
        "attempt": 2,
        "agent": "node-1",
        "version": "1.0",
        "service": "example",
    }
    assert receipt["bundle"] == {"digest": payload.bundle_digest, "size": payload.bundle_size}
    assert receipt["limits"] == LIMITS.model_dump()
    assert (receipt["status"], receipt["reason"], receipt["exit_code"]) == (
        "Failed",
        "exit_code",
        3,
    )
    assert receipt["message"] == "run.sh ended with exit code 3"
    assert receipt["usage"]["peak_memory_bytes"] == 4096
    assert receipt["enforcement"] == {"memory": "none"}
    assert receipt["logs"] == {"stdout": "stdout.log", "stderr": "stderr.log"}
    assert receipt["warnings"] == ["pids_limit: 4 times"]
    assert receipt["received_at"] <= receipt["started_at"] <= receipt["ended_at"]


async def test_files_of_the_job_keep_names_that_the_agents_files_have_too(rig):
    def script(process):
        process.write("stdout.log", b"of the job")
        process.write("ferryman.json", b"of the job")
        process.log(stdout=b"of the agent")
        process.finish()

    rig.sandbox.script = script
    payload = await rig.submit()
    await rig.ended(payload.id)
    files = rig.result(payload.id)
    assert (files["stdout.log"], files["ferryman.json"]) == (b"of the job", b"of the job")
    assert files["stdout.ferryman.log"] == b"of the agent"
    assert b'"stdout": "stdout.ferryman.log"' in files["ferryman.ferryman.json"]


async def test_too_large_results_fail_the_job_but_logs_and_receipt_are_kept(rig):
    def script(process):
        process.write("big", b"x" * (LIMITS.results + 1))
        process.log(stderr=b"I was here\n")
        process.finish()

    rig.sandbox.script = script
    payload = await rig.submit()
    ended = await rig.ended(payload.id)
    assert (ended.state, ended.outcome.reason) == (PayloadState.FAILED, Reason.RESULTS_LIMIT)
    assert str(LIMITS.results) in ended.outcome.message
    assert set(rig.result(payload.id)) == {"stdout.log", "stderr.log", "ferryman.json"}
    assert rig.receipt(payload.id)["reason"] == "results_limit"


async def test_the_first_cause_stands_when_a_failed_job_leaves_too_much(rig):
    rig.sandbox.script = finishes(4, big=b"x" * (LIMITS.results + 1))
    payload = await rig.submit()
    ended = await rig.ended(payload.id)
    assert (ended.outcome.reason, ended.outcome.exit_code) == (Reason.EXIT_CODE, 4)
    assert any("results_limit" in warning for warning in ended.outcome.warnings)


async def test_the_wall_time_limit_is_named_in_the_message(rig):
    payload = await rig.submit(timeout_s=5400.0)
    await rig.sandbox.process("1.1")
    await rig.clock.advance(5400)
    ended = await rig.ended(payload.id)
    assert (ended.state, ended.outcome.reason) == (PayloadState.FAILED, Reason.TIMEOUT)
    assert ended.outcome.message == "stopped after 1h 30m: the wall time limit of the job"
    assert not ended.outcome.interrupted


async def test_waiting_payloads_run_in_the_order_of_arrival_in_the_slots_there_are(rig):
    payloads = [await rig.submit(f"{job}.1") for job in range(1, 6)]
    order: list[str] = []
    for _ in payloads:
        while len(rig.sandbox.live) < min(2, 5 - len(order)):
            await rig.sandbox._started.wait()
            rig.sandbox._started.clear()
        assert len(rig.sandbox.live) <= 2
        job, process = min(rig.sandbox.live.items())
        order.append(job)
        process.finish()
        await rig.ended(payloads[len(order) - 1].id)
    assert order == ["1.1", "2.1", "3.1", "4.1", "5.1"]


async def test_a_running_attempt_is_killed_before_the_answer(rig):
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    process.write("partial", b"p")
    killed = await rig.runner.kill(payload.id)
    assert killed.state is PayloadState.KILLED
    assert killed.doc().killed
    assert not process.alive
    assert rig.result(payload.id)["partial"] == b"p"
    assert rig.receipt(payload.id)["status"] == "Cancelled"
    assert (await rig.runner.kill(payload.id)).state is PayloadState.KILLED


async def test_one_that_ignores_sigterm_is_killed_after_the_grace_time(rig):
    rig.sandbox.obeys_sigterm = False
    payload = await rig.submit()
    await rig.sandbox.process("1.1")
    killing = asyncio.ensure_future(rig.runner.kill(payload.id))
    await rig.clock.until_asleep(5.0)
    await rig.clock.advance(4.9)
    assert not killing.done()
    await rig.clock.advance(0.2)
    assert (await killing).state is PayloadState.KILLED


async def test_a_prepared_payload_that_is_killed_never_starts(rig):
    for job in (1, 2):
        await rig.submit(f"{job}.1")
        await rig.sandbox.process(f"{job}.1")
    waiting = await rig.submit("3.1")
    killed = await rig.runner.kill(waiting.id)
    assert killed.state is PayloadState.KILLED
    assert not rig.folders.bundle(waiting.bundle_file).exists()
    last = await rig.submit("4.1")
    for job in (1, 2, 4):
        (await rig.sandbox.process(f"{job}.1")).finish()
    await rig.ended(last.id)
    assert "3.1" not in rig.sandbox.starts


@pytest.mark.parametrize("step", ["prepare", "start"])
async def test_killed_while_its_sandbox_is_prepared_it_never_starts(rig, step):
    at, go_on = asyncio.Event(), asyncio.Event()

    async def hold(name):
        if name == step:
            at.set()
            await go_on.wait()

    rig.sandbox.hook = hold
    payload = await rig.submit()
    await at.wait()
    killing = asyncio.ensure_future(rig.runner.kill(payload.id))
    await rig.ended(payload.id)
    go_on.set()
    assert (await killing).state is PayloadState.KILLED
    assert await rig.runner.stop(60)
    assert not rig.sandbox.starts
    assert not any((rig.home / "work").iterdir())


async def test_a_completed_payload_stays_completed_when_it_is_killed(rig):
    rig.sandbox.script = finishes()
    payload = await rig.submit()
    await rig.ended(payload.id)
    assert (await rig.runner.kill(payload.id)).state is PayloadState.COMPLETED


async def test_killing_an_unknown_payload_raises(rig):
    with pytest.raises(NoSuchPayload):
        await rig.runner.kill(99)


async def test_a_kill_and_an_end_at_the_same_time_store_one_outcome(rig):
    for job in range(1, 12):
        payload = await rig.submit(f"{job}.1")
        process = await rig.sandbox.process(f"{job}.1")
        killing = asyncio.ensure_future(rig.runner.kill(payload.id))
        for _ in range(job):
            await rig.clock.sleep(0)
        process.finish()
        payload = await killing
        assert payload.state in (PayloadState.COMPLETED, PayloadState.KILLED)
        assert (await rig.payloads.get(payload.id)).state is payload.state
        word = "Cancelled" if payload.state is PayloadState.KILLED else payload.state
        assert rig.receipt(payload.id)["status"] == word


async def test_a_sandbox_that_does_not_come_up_is_no_fault_of_the_bundle(rig):
    rig.sandbox.broken = "bwrap: No permissions to create new namespace"
    payload = await rig.submit()
    ended = await rig.ended(payload.id)
    assert (ended.state, ended.outcome.reason) == (PayloadState.FAILED, Reason.SANDBOX_ERROR)
    assert ended.outcome.interrupted
    assert "No permissions" in ended.outcome.message
    assert await rig.watch.problem() is not None
    rig.sandbox.broken = None
    await rig.clock.advance(11)
    assert await rig.watch.problem() is None


async def test_a_sandbox_that_breaks_down_is_no_fault_of_the_bundle(rig):
    payload = await rig.submit()
    (await rig.sandbox.process("1.1")).break_down("bwrap: out of memory")
    ended = await rig.ended(payload.id)
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.SANDBOX_ERROR, True)
    assert ended.outcome.result is not None


async def test_nothing_is_collected_while_death_is_not_certain(rig):
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    process.write("secret", b"s")
    process.break_down("a process would not die", certain=False)
    ended = await rig.ended(payload.id)
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.AGENT_ERROR, True)
    assert ended.outcome.result is None
    assert not rig.folders.result(payload.id).exists()


async def test_a_stored_bundle_that_is_damaged_is_no_fault_of_its_sender(rig):
    name = "damaged"
    rig.folders.bundle(name).write_bytes(b"not a zip")
    payload, _ = await rig.payloads.add(new_payload("9.1", bundle=name))
    rig.runner.enqueue(payload)
    ended = await rig.ended(payload.id)
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.AGENT_ERROR, True)
    assert not rig.sandbox.starts


async def test_a_bundle_larger_than_its_disk_limit_fails_by_that_limit(rig):
    payload = await rig.submit(files={"run.sh": b"", "big": b"x" * (LIMITS.disk + 1)})
    ended = await rig.ended(payload.id)
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.DISK_LIMIT, False)
    assert "1.0 MiB" in ended.outcome.message


@pytest.fixture
def own_disk(monkeypatch):
    """Each attempt has a disk of its own."""
    make = FakeWorkspace.__init__

    def init(self, *args):
        make(self, *args)
        self.enforcement = {"disk": "hard"}

    monkeypatch.setattr(FakeWorkspace, "__init__", init)


@pytest.mark.parametrize(("room", "fits"), [(4, False), (5, True)])
async def test_more_files_than_its_own_disk_can_hold_fail_by_that_limit(
    rig, own_disk, monkeypatch, room, fits
):
    statvfs = os.fstatvfs

    def fstatvfs(fd):
        fields = list(statvfs(fd))
        fields[7] = room  # f_favail
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    rig.sandbox.script = lambda process: process.finish()
    payload = await rig.submit(files={"run.sh": b"", "a/b/1": b"1", "a/2": b"2"})
    ended = await rig.ended(payload.id)
    if fits:
        assert ended.state is PayloadState.COMPLETED
        return
    assert (ended.outcome.reason, ended.outcome.interrupted) == (Reason.DISK_LIMIT, False)
    assert "5 files and folders" in ended.outcome.message
    assert "can hold 4" in ended.outcome.message


@pytest.mark.parametrize("own", [True, False])
async def test_a_disk_that_is_full_is_the_bundles_fault_only_where_it_is_its_own(
    rig, monkeypatch, request, own
):
    if own:
        request.getfixturevalue("own_disk")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BundleReader, "unpack", full)
    ended = await rig.ended((await rig.submit()).id)
    reason = Reason.DISK_LIMIT if own else Reason.AGENT_ERROR
    assert (ended.outcome.reason, ended.outcome.interrupted) == (reason, not own)


async def test_after_the_end_only_the_result_is_left_on_disk(rig):
    rig.sandbox.script = finishes(out=b"1")
    payload = await rig.submit()
    await rig.ended(payload.id)
    await rig.runner.stop(60)
    left = {str(path.relative_to(rig.home)) for path in rig.home.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith("agent.sqlite")} == {
        f"results/{payload.id}.zip"
    }


async def snapshot(rig, payload, to):
    await rig.runner.snapshot(payload, to, rig.threads, lambda _: None)


async def test_a_snapshot_shows_what_a_running_attempt_has_so_far(rig, tmp_path):
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    process.write("sofar.txt", b"45 of 100")
    process.log(stdout=b"step 45\n")
    await snapshot(rig, await rig.payloads.get(payload.id), tmp_path / "snap.zip")
    files = contents(tmp_path / "snap.zip")
    assert (files["sofar.txt"], files["stdout.log"]) == (b"45 of 100", b"step 45\n")
    assert b'"status": "Running"' in files["ferryman.json"]
    process.finish()
    assert (await rig.ended(payload.id)).state is PayloadState.COMPLETED


async def test_a_snapshot_of_a_waiting_payload_is_a_receipt(rig, tmp_path):
    for job in (1, 2):
        await rig.submit(f"{job}.1")
        await rig.sandbox.process(f"{job}.1")
    payload = await rig.submit("3.1")
    await snapshot(rig, payload, tmp_path / "snap.zip")
    assert set(contents(tmp_path / "snap.zip")) == {"ferryman.json"}


async def test_killed_just_before_it_is_stored_as_running_it_never_starts(rig):
    start, attempts = rig.payloads.start, []

    async def overtaken(payload_id, *args):
        attempts.append(rig.runner._attempts[payload_id])
        early = Outcome(PayloadState.KILLED, message="cancelled")
        assert await rig.payloads.end(payload_id, PayloadState.PREPARED, early) is not None
        return await start(payload_id, *args)

    rig.payloads.start = overtaken
    rig.sandbox.script = finishes()
    payload = await rig.submit()
    await rig.ended(payload.id)
    await attempts[0].finished.wait()
    assert not rig.sandbox.starts
    assert (await rig.payloads.get(payload.id)).state is PayloadState.KILLED


async def test_a_directory_is_kept_until_a_snapshot_of_it_is_packed(rig, tmp_path, monkeypatch):
    packing, go_on = threading.Event(), threading.Event()
    real = result.snapshot

    def slow(*args):
        packing.set()
        go_on.wait(30)
        real(*args)

    monkeypatch.setattr(result, "snapshot", slow)
    payload = await rig.submit()
    process = await rig.sandbox.process("1.1")
    process.write("sofar.txt", b"45")
    running = await rig.payloads.get(payload.id)
    snapping = asyncio.ensure_future(snapshot(rig, running, tmp_path / "snap.zip"))
    await asyncio.to_thread(packing.wait, 30)
    process.finish()
    await rig.ended(payload.id)
    await rig.clock.settle()
    assert process.workspace.path.exists()
    go_on.set()
    await snapping
    assert contents(tmp_path / "snap.zip")["sofar.txt"] == b"45"
    assert await rig.runner.stop(60)
    assert not process.workspace.path.exists()
