"""Acknowledgements wait a moment for a request that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from server.agents import acknowledgements
from server.agents.acknowledgements import MAX_WAIT_S, Acknowledgements
from server.ports import RefusedByAgent, Unreachable
from shared.clock import yield_to_loop
from shared.wire import PayloadRef
from tests.kit.clock import SimClock


async def settle() -> None:
    for _ in range(20):
        await yield_to_loop()


class Agent:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.sent: list[list[int]] = []
        self.problem: Exception | None = None
        self.all = Acknowledgements(self.send, self.clock)

    async def send(self, refs: Sequence[PayloadRef]) -> list[Exception | None]:
        self.sent.append([ref.id for ref in refs])
        if self.problem is not None:
            raise self.problem
        return [None] * len(refs)

    async def begin(self, *ids: int) -> list[asyncio.Task[None]]:
        made = [asyncio.create_task(self.all(PayloadRef(id=one, key=f"{one}.1"))) for one in ids]
        await settle()
        return made


async def test_without_a_request_they_go_by_themselves_after_a_moment() -> None:
    agent = Agent()
    some = await agent.begin(1, 2)
    assert agent.sent == []
    await agent.clock.advance(MAX_WAIT_S)
    await asyncio.gather(*some)
    more = await agent.begin(3)
    await agent.clock.advance(MAX_WAIT_S)
    await asyncio.gather(*more)
    assert agent.sent == [[1, 2], [3]]


async def test_a_request_carries_them_and_its_answer_is_theirs() -> None:
    agent = Agent()
    some = await agent.begin(1, 2, 3)
    taken = agent.all.take()
    assert agent.all.take() == []
    agent.all.answered(taken, {2: "not_ended", 3: "payload_not_found"})
    done = await asyncio.gather(*some, return_exceptions=True)
    assert [type(one) for one in done] == [type(None), RefusedByAgent, type(None)]
    await agent.clock.advance(MAX_WAIT_S)
    assert agent.sent == []


async def test_what_a_request_could_not_carry_goes_at_once() -> None:
    agent = Agent()
    some = await agent.begin(1, 2)
    taken = agent.all.take()
    await agent.clock.advance(MAX_WAIT_S)
    assert agent.sent == []
    agent.all.put_back(taken)
    await asyncio.gather(*some)
    assert agent.sent == [[1, 2]]


async def test_when_they_cannot_be_sent_each_caller_knows() -> None:
    agent = Agent()
    agent.problem = Unreachable("gone", sent=True)
    some = await agent.begin(1, 2)
    await agent.clock.advance(MAX_WAIT_S)
    for one in some:
        with pytest.raises(Unreachable):
            await one


async def test_many_go_at_once_and_those_whose_callers_are_gone_do_not(monkeypatch) -> None:
    monkeypatch.setattr(acknowledgements, "SEND_AT_ONCE_FROM", 3)
    agent = Agent()
    (gone,) = await agent.begin(1)
    gone.cancel()
    await asyncio.gather(*await agent.begin(2, 3))
    assert agent.sent == [[2, 3]]
