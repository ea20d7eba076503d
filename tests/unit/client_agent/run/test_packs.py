"""Which payloads share a sandbox, and how long a worker goes on with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client_agent.run.sandboxes import PASS_S
from client_agent.sandbox.base import Grant, Grants
from shared.wire import ArrayTask, PackTask, PayloadState
from tests.kit.agent import Rig, new_payload, stored_bundle
from tests.kit.clock import SimClock

PACK = PackTask(batch=7, most=10)


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path, SimClock(), slots=1, ahead=0)
    made.sandbox.has_packs = True
    await made.open()
    yield made
    await made.close()
    assert made.sandbox.violations == []
    assert all(pack.closed for pack in made.sandbox.packs)


async def submit(rig: Rig, job: int, **more: Any):
    """A task of the array, or what ``more`` makes of it."""
    name, sealed = stored_bundle(rig.folders, {"run.sh": b"x\n"})
    new = new_payload(f"{job}.1", bundle=name, sealed=sealed)
    task = {"array": ArrayTask(index=job), "pack": PACK} | more
    payload, _ = await rig.payloads.add(replace(new, **task))
    rig.runner.enqueue(payload)
    return payload


async def run(rig: Rig, payloads) -> list[int]:
    """Let each of them end; attempts in each sandbox start."""
    for payload in sorted(payloads, key=lambda one: one.id):
        ended = await rig.ended(payload.id)
        assert ended.state is PayloadState.COMPLETED
    return [pack.count for pack in rig.sandbox.packs]


def finish(process) -> None:
    process.finish()


async def test_tasks_of_one_array_share_a_start_up_to_the_most(rig):
    rig.sandbox.script = finish
    assert await run(rig, [await submit(rig, job) for job in range(1, 24)]) == [10, 10, 3]


@pytest.mark.parametrize(
    "other",
    [
        {"user_id": "eve"},
        {"server": "another"},
        {"service": "docking"},
        {"pack": PackTask(batch=8, most=10)},
        {"env": {"A": "1"}},
        {"timeout_s": 61.0},
        {"bundle_digest": "1" * 64},
        {"entry": "other.sh"},
    ],
)
async def test_what_differs_is_not_packed_together(rig, other):
    held = await submit(rig, 1)
    process = await rig.sandbox.process("1.1")
    second = await submit(rig, 2, **other)
    process.finish()
    await rig.ended(held.id)
    (await rig.sandbox.process("2.1")).finish() if "bundle_digest" not in other else None
    await rig.ended(second.id)
    assert [pack.count for pack in rig.sandbox.packs] == [1, 1]


@pytest.mark.parametrize("alone", [{"pack": None}, {"array": None}])
async def test_what_is_no_task_of_a_pack_runs_alone(rig, alone):
    rig.sandbox.script = finish
    assert await run(rig, [await submit(rig, job, **alone) for job in (1, 2)]) == []


@pytest.mark.parametrize("call", ["ptrace", "process_vm"])
async def test_jobs_that_may_control_other_processes_are_not_packed(rig, call):
    rig.sandbox.script = finish
    rig.context = replace(rig.context, grants=Grants(Grant(allow=frozenset({call})), {}))
    rig.runner._context = rig.context
    assert await run(rig, [await submit(rig, job) for job in (1, 2)]) == []


async def test_short_tasks_go_on_past_another_payload_and_long_ones_do_not(rig):
    payloads = [await submit(rig, 1), await submit(rig, 2, user_id="eve"), await submit(rig, 3)]
    (await rig.sandbox.process("1.1")).finish()
    long = await rig.sandbox.process("3.1")  # job 2 is passed over
    payloads.append(await submit(rig, 4))
    await rig.clock.advance(PASS_S)
    long.finish()
    (await rig.sandbox.process("2.1")).finish()
    (await rig.sandbox.process("4.1")).finish()
    assert await run(rig, payloads) == [2, 1, 1]


async def test_a_sandbox_that_cannot_be_used_again_is_followed_by_another(rig):
    payloads = [await submit(rig, job) for job in (1, 2, 3)]
    first = await rig.sandbox.process("1.1")
    rig.sandbox.packs[0].usable = False
    rig.sandbox.script = finish
    first.finish()
    counts = await run(rig, payloads)
    assert counts[0] == 1
    assert sum(counts) == 3
    assert rig.sandbox.packs[0].closed
