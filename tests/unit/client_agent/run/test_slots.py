from __future__ import annotations

import asyncio
import contextlib

import pytest

from client_agent.run.slots import Turns


@pytest.fixture
def turns():
    return Turns(1)


async def waiting(turns, payload_id):
    task = asyncio.ensure_future(turns.take(payload_id))
    await asyncio.wait([task], timeout=0)
    return task


async def test_no_more_turns_are_held_than_there_are_slots():
    turns = Turns(2)
    assert await turns.take(1)
    assert await turns.take(2)
    third = await waiting(turns, 3)
    assert not third.done()
    assert turns.held == 2
    turns.give_back()
    assert await third
    assert turns.held == 2
    turns.give_back()
    turns.give_back()
    assert turns.held == 0


async def test_the_oldest_of_those_who_wait_is_next(turns):
    await turns.take(1)
    tasks = {payload_id: await waiting(turns, payload_id) for payload_id in (9, 4, 7)}
    for payload_id in (4, 7, 9):
        turns.give_back()
        assert await tasks[payload_id]
        assert [one for one, task in tasks.items() if not task.done()] == [
            one for one in (9, 7) if one > payload_id
        ]


async def test_who_is_dropped_gets_no_turn_and_takes_none_from_others(turns):
    await turns.take(1)
    dropped, other = await waiting(turns, 2), await waiting(turns, 3)
    turns.drop(2)
    assert not await dropped
    turns.give_back()
    assert await other
    assert turns.held == 1


async def test_a_turn_given_to_somebody_who_was_cancelled_is_not_lost(turns):
    await turns.take(1)
    gone = await waiting(turns, 2)
    turns.give_back()
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    assert turns.held == 0
