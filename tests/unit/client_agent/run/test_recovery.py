from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from functools import partial

import pytest

from client_agent.payloads import attempt_keys
from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.payload import Outcome
from client_agent.run.retention import RetentionSweep
from shared.ids import AttemptKey
from shared.wire import PayloadState, Reason, ResultInfo
from tests.kit.agent import SERVER, Rig, numbered
from tests.kit.clock import SimClock
from tests.kit.crash_points import CrashingRig, CrashPoint, SimulatedCrash

JOBS = (1, 2)


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path, SimClock())
    await made.open()
    yield made
    await made.close()


async def reopened(rig: Rig) -> Rig:
    """The agent is killed and started again."""
    for task in rig.runner._tasks:
        task.cancel()
    rig.sandbox.die()
    await rig.shut()
    after = Rig(rig.home, rig.clock)
    after.token = numbered("second")
    await after.open()
    return after


async def test_what_ran_when_the_agent_was_killed_is_interrupted(rig):
    payload = await rig.submit()
    (await rig.sandbox.process("1.1")).write("partial", b"p")
    after = await reopened(rig)
    doc = (await after.payloads.get(payload.id)).doc()
    assert (doc.status, doc.reason) == (PayloadState.FAILED, Reason.AGENT_ERROR)
    assert doc.interrupted
    assert doc.message == "the agent was killed while it ran"
    assert not after.sandbox.starts
    await after.close()


async def test_what_waited_runs_after_a_restart_in_the_same_order(rig):
    for job in (1, 2):
        await rig.submit(f"{job}.1")
        await rig.sandbox.process(f"{job}.1")
    waiting = [await rig.submit(f"{job}.1") for job in (3, 4)]
    after = await reopened(rig)
    for payload in waiting:
        (await after.sandbox.process(payload.key)).finish()
        assert (await after.ended(payload.id)).state is PayloadState.COMPLETED
    await after.close()


async def test_a_restart_clears_the_sandbox_before_it_stores_any_end(tmp_path):
    rig = Rig(tmp_path, SimClock())
    await rig.open()
    payload = await rig.submit()
    await rig.sandbox.process("1.1")
    for task in rig.runner._tasks:
        task.cancel()
    await rig.shut()
    after = Rig(tmp_path, rig.clock)

    def cannot(step):
        if step == "clear":
            raise OSError("a process of the previous run would not die")

    after.sandbox.hook = cannot
    with pytest.raises(OSError, match="would not die"):
        await after.open()
    assert (await after.payloads.get(payload.id)).state is PayloadState.RUNNING
    await after.shut()


async def test_files_without_a_row_are_removed_at_start_and_others_are_not(rig):
    rig.sandbox.script = lambda process: process.finish()
    done = await rig.submit("1.1")
    await rig.ended(done.id)
    rig.sandbox.script = None
    for job in (2, 3):
        await rig.submit(f"{job}.1")
        await rig.sandbox.process(f"{job}.1")
    waiting = await rig.submit("4.1")
    orphans = [
        rig.home / "bundles" / "orphan",
        rig.home / "results" / "2.zip",
        rig.home / "staging" / "half",
        rig.home / "logs" / "2.stdout",
    ]
    for path in orphans:
        path.write_bytes(b"x")
    for task in rig.runner._tasks:
        task.cancel()
    await rig.shut()
    after = Rig(rig.home, rig.clock, slots=1)
    after.sandbox.broken = None
    await after.open()
    assert not [path for path in orphans if path.exists()]
    assert after.folders.result(done.id).exists()
    process = await after.sandbox.process(waiting.key)
    process.finish()
    assert (await after.ended(waiting.id)).state is PayloadState.COMPLETED
    await after.close()


async def test_a_new_database_loses_no_result_that_an_earlier_one_knew(rig):
    """Its disk may not be mounted; and the new one gives the same numbers again."""
    rig.sandbox.script = lambda process: process.finish()
    for number in range(2):
        done = await rig.submit(f"{number + 1}.1")
        await rig.ended(done.id)
        result = rig.folders.result(done.id).read_bytes()
        await rig.shut()
        for path in rig.home.glob("*.sqlite*"):
            path.unlink()
        rig = Rig(rig.home, rig.clock)
        rig.sandbox.script = lambda process: process.finish()
        await rig.open()
        assert not rig.folders.result(done.id).exists()
        kept = sorted(rig.folders.aside.iterdir())
        assert [path.read_bytes() for path in kept][-1] == result
        assert len(kept) == number + 1
    await rig.close()


async def test_an_older_copy_of_the_database_loses_no_later_result(rig):
    rig.sandbox.script = lambda process: process.finish()
    first = await rig.submit("1.1")
    await rig.ended(first.id)
    await rig.shut()
    files = list(rig.home.glob("*.sqlite*"))
    copies = {path: path.read_bytes() for path in files}
    later = Rig(rig.home, rig.clock)
    later.sandbox.script = lambda process: process.finish()
    await later.open()
    second = await later.submit("2.1")
    await later.ended(second.id)
    result = later.folders.result(second.id).read_bytes()
    await later.shut()
    for path in rig.home.glob("*.sqlite*"):
        path.unlink()
    for path, content in copies.items():
        path.write_bytes(content)
    after = Rig(rig.home, rig.clock)
    await after.open()
    assert after.folders.result(first.id).exists()
    assert [path.read_bytes() for path in after.folders.aside.iterdir()] == [result]
    await after.close()


async def test_a_result_without_a_row_that_the_database_knew_is_not_kept(rig):
    rig.sandbox.script = lambda process: process.finish()
    await rig.ended((await rig.submit()).id)
    await rig.shut()
    rig.folders.result(1).rename(rig.folders.result(0))
    after = Rig(rig.home, rig.clock)
    await after.open()
    assert not after.folders.result(0).exists()
    assert not after.folders.aside.exists()
    await after.close()


async def test_unacknowledged_results_are_removed_in_time_and_later_their_rows(rig):
    sweep = RetentionSweep(rig.payloads, rig.folders, rig.bundles, rig.clock, retention_s=3600)
    rig.sandbox.script = lambda process: process.finish()
    payload = await rig.submit()
    await rig.ended(payload.id)
    await rig.clock.advance(3599)
    assert await sweep.run_once() == 0
    assert rig.folders.result(payload.id).exists()
    await rig.clock.advance(1)
    assert await sweep.run_once() == 1
    assert not rig.folders.result(payload.id).exists()
    assert (await rig.payloads.get(payload.id)).state is PayloadState.CLEANED
    await rig.clock.advance(3600)
    assert await sweep.run_once() == 1
    assert await rig.payloads.find(payload.id) is None


async def test_the_name_of_a_user_is_on_disk_until_the_sweep_after_the_acknowledgement(rig):
    sweep = RetentionSweep(rig.payloads, rig.folders, rig.bundles, rig.clock, retention_s=3600)
    rig.sandbox.script = lambda process: process.finish()
    await rig.database.write(
        lambda tx: tx.rows(
            "CREATE TRIGGER named AFTER INSERT ON payloads BEGIN"
            " UPDATE payloads SET given = json_set(given, '$.user_id', 'somebody-' || 'to-forget')"
            " WHERE id = new.id; END"
        )
    )
    payload = await rig.submit()
    await rig.ended(payload.id)
    await sweep.run_once()
    await rig.payloads.acknowledge(payload.id, Caller(payload.id, payload.server, payload.key))
    files = [one for one in rig.home.rglob("agent.sqlite*") if one.is_file()]
    assert any(b"somebody-to-forget" in one.read_bytes() for one in files)
    await sweep.run_once()
    assert not any(b"somebody-to-forget" in one.read_bytes() for one in files)


async def test_the_retention_sweep_goes_on_after_a_failed_sweep_until_it_is_stopped(rig):
    sweep = RetentionSweep(rig.payloads, rig.folders, rig.bundles, rig.clock, retention_s=60)
    payload = await rig.submit()
    (await rig.sandbox.process("1.1")).finish()
    await rig.ended(payload.id)
    expire, sweeps = rig.payloads.expire, []

    async def failing(retention_s):
        sweeps.append(rig.clock.monotonic())
        if len(sweeps) == 1:
            raise OSError("bad")
        return await expire(retention_s)

    rig.payloads.expire = failing
    stop = asyncio.Event()
    sweeping = asyncio.ensure_future(sweep.run(stop, lambda: None))
    await rig.clock.until_asleep(60)
    await rig.clock.advance(61)
    with rig.payloads.wakeups.of(payload.id) as changed:
        if (await rig.payloads.get(payload.id)).state is not PayloadState.CLEANED:
            await changed.wait()
    stop.set()
    await sweeping
    assert sweeps[:2] == [0.0, 60.0]


async def work_until_crash(rig: CrashingRig, acknowledged: set[int]) -> None:
    """Submit, run and acknowledge as a server would."""
    for job in JOBS:
        key = f"{job}.1"
        payload = await rig.submit(key)
        ended = asyncio.ensure_future(rig.ended(payload.id))
        crashed = asyncio.ensure_future(rig.crash_point.crashed.wait())
        await asyncio.wait({ended, crashed}, return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()
        if not ended.done():
            ended.cancel()
            raise SimulatedCrash
        acknowledged.add(payload.id)
        await rig.payloads.acknowledge(payload.id, Caller())
        await rig.folders.remove_results([payload.id])


async def test_a_crash_at_any_step_loses_no_payload_and_runs_none_twice(tmp_path):
    """Cut at every step in turn, then start again and drain."""
    for number in itertools.count():
        home = tmp_path / str(number)
        home.mkdir()
        starts: Counter[str] = Counter()

        def script(process, starts=starts):
            starts[process.job] += 1
            process.write("out", process.job.encode())
            process.finish()

        clock, crash_point = SimClock(), CrashPoint(number)
        dying = CrashingRig(home, clock, slots=2)
        dying.sandbox.script = script
        acknowledged: set[int] = set()
        try:
            await dying.open_with(crash_point)
            await work_until_crash(dying, acknowledged)
        except SimulatedCrash:
            pass
        await dying.die()
        where = f"cut after {crash_point.steps}"

        after = Rig(home, clock)
        after.token = numbered("second")
        after.sandbox.script = script
        await after.open()
        assert after.database is not None
        for job in JOBS:  # a server sends again what it has no answer for
            key = f"{job}.1"
            find = partial(attempt_keys.find, server=SERVER, key=AttemptKey(job, 1))
            if await after.database.write(find) is None:
                await after.submit(key)
        held = []
        for payload_id in range(1, 10):
            payload = await after.payloads.find(payload_id)
            if payload is None:
                continue
            if payload.state is not PayloadState.CLEANED:
                payload = await after.ended(payload_id)
                assert payload.state in (PayloadState.COMPLETED, PayloadState.FAILED), where
                assert payload.doc().interrupted == (payload.state is PayloadState.FAILED), where
                if payload.state is PayloadState.COMPLETED:
                    held.append(payload_id)
                    assert after.result(payload_id)["out"] == str(payload.key).encode(), where
            else:
                assert payload_id in acknowledged, where
        await after.runner.stop(60)
        assert set(starts) <= {f"{job}.1" for job in JOBS}
        assert max(starts.values()) == 1, where
        assert after.sandbox.violations == []
        left = {
            str(path.relative_to(home))
            for path in home.rglob("*")
            if path.is_file() and not path.name.startswith("agent.sqlite")
        }
        assert left == {f"results/{payload_id}.zip" for payload_id in held}, where
        await after.close()
        if not crash_point.crashed.is_set():
            break
    assert number > 40  # or it cut nothing


async def test_a_result_is_durable_before_its_outcome_is_stored(rig):
    end, seen = rig.payloads.end, []

    async def looking(payload_id, before, outcome: Outcome):
        seen.append((outcome.result, rig.folders.result(payload_id).exists()))
        return await end(payload_id, before, outcome)

    rig.payloads.end = looking
    payload = await rig.submit()
    (await rig.sandbox.process("1.1")).finish()
    await rig.ended(payload.id)
    assert isinstance(seen[0][0], ResultInfo)
    assert seen[0][1]
