from __future__ import annotations

import asyncio
import contextlib

import pytest

from client_agent.run.context import SlotQueue


@pytest.fixture
def slots():
    return SlotQueue(1)


async def waiting(slots, payload_id):
    task = asyncio.ensure_future(slots.acquire(payload_id))
    await asyncio.wait([task], timeout=0)
    return task


async def test_no_more_slots_are_in_use_than_there_are():
    slots = SlotQueue(2)
    assert await slots.acquire(1)
    assert await slots.acquire(2)
    third = await waiting(slots, 3)
    assert not third.done()
    assert slots.in_use == 2
    slots.release()
    assert await third
    assert slots.in_use == 2
    slots.release()
    slots.release()
    assert slots.in_use == 0


async def test_the_oldest_that_waits_gets_the_next_slot(slots):
    await slots.acquire(1)
    tasks = {payload_id: await waiting(slots, payload_id) for payload_id in (9, 4, 7)}
    for payload_id in (4, 7, 9):
        slots.release()
        assert await tasks[payload_id]
        assert [one for one, task in tasks.items() if not task.done()] == [
            one for one in (9, 7) if one > payload_id
        ]


async def test_one_that_is_withdrawn_gets_no_slot_and_takes_none_from_others(slots):
    await slots.acquire(1)
    withdrawn, other = await waiting(slots, 2), await waiting(slots, 3)
    slots.withdraw(2)
    assert not await withdrawn
    slots.release()
    assert await other
    assert slots.in_use == 1


async def test_a_slot_given_to_a_cancelled_task_is_not_lost(slots):
    await slots.acquire(1)
    cancelled = await waiting(slots, 2)
    slots.release()
    cancelled.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await cancelled
    assert slots.in_use == 0
