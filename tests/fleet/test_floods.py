"""An agent that reports without end costs a bounded number of tasks and connections."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, cast

import pytest

from server.agents.ferryman_agent import FerrymanAgent
from server.domain.errors import NoSuchJob
from server.ports import Agent, Unreachable
from server.stages import get as get_stage
from server.stages import reported_results, unexpected_payloads
from server.stages.get import Get
from server.stages.reported_results import ReportedResults
from shared.wire import PayloadDoc, PayloadList, PayloadState, ResultInfo
from tests.kit.clock import SimClock
from tests.kit.sim_agent import one_page
from tests.kit.stage_resources import resources


class NoJobs:
    async def get(self, job_id: int) -> Any:
        raise NoSuchJob(job_id)

    async def in_states(self, *_: Any) -> list[Any]:
        return []


class Teller:
    """An agent that reports payloads which no job has, and is slow to end them."""

    supports_events = True

    name, reachable = "teller", True

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.at_once = self.most = self.ended = 0

    async def kill(self, _: int, key: str | None) -> None:
        await self._end()

    async def acknowledge(self, _: int, key: str | None) -> None:
        await self._end()

    async def _end(self) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.go_on.wait()
        self.at_once -= 1
        self.ended += 1


def payloads(count: int) -> PayloadList:
    states = [PayloadState.RUNNING, PayloadState.COMPLETED]
    return PayloadList(
        seq=1,
        payloads=[PayloadDoc(id=n, key=f"{n}.1", status=states[n % 2]) for n in range(1, count)],
    )


def getter() -> Get:
    return Get(resources(jobs=NoJobs(), clock=SimClock()))


async def test_an_agent_is_heard_no_faster_than_it_is_dealt_with():
    teller, known = Teller(), payloads(3 * get_stage._MAX_IN_FLIGHT)
    get = getter()
    hearing = asyncio.create_task(get.reconcile(cast(Agent, teller), one_page(known)))
    clock = SimClock()
    for _ in range(50):
        await clock.sleep(0)
    assert not hearing.done()
    assert len(get._tasks) == get_stage._MAX_IN_FLIGHT
    assert teller.at_once == unexpected_payloads._MAX_DISCARDS
    teller.go_on.set()
    await hearing
    await asyncio.gather(*(get._tasks[key] for key in get._tasks))
    assert teller.ended == len(known.payloads)
    assert teller.most == unexpected_payloads._MAX_DISCARDS


async def test_a_newer_word_of_what_is_looked_at_waits_for_no_room():
    teller, known = Teller(), payloads(get_stage._MAX_IN_FLIGHT + 1)
    get = getter()
    for payload in known.payloads:
        await get.receive(cast(Agent, teller), payload)
    await get.receive(cast(Agent, teller), known.payloads[0])
    await get.stop()


async def test_large_words_of_an_agent_take_the_room_of_many():
    """So what it says is bounded in bytes, too, also where it only says more about a payload."""
    teller = Teller()
    get = getter()
    large = PayloadDoc(id=1, key="1.1", status=PayloadState.RUNNING, message="x" * 1_000_000)
    size = len(large.model_dump_json())

    async def say() -> None:
        for number in range(1_000):
            one = large.model_copy(update={"id": 1 + number % 30})
            await get.receive(cast(Agent, teller), one, size=size)

    saying = asyncio.create_task(say())
    clock = SimClock()
    for _ in range(50):
        await clock.sleep(0)
    assert not saying.done()
    kept = sum(len(one.message) for one in get._latest.values()) + len(get._tasks) * 1_000_000
    assert kept <= 2 * get_stage._MAX_IN_FLIGHT * get_stage._LARGE
    teller.go_on.set()
    await saying
    await asyncio.gather(*(get._tasks[key] for key in get._tasks))
    for _ in range(50):
        await clock.sleep(0)  # their places are given back right after them
    await get.stop()
    assert get._in_flight["teller"]._value == get_stage._MAX_IN_FLIGHT


async def test_who_is_cancelled_while_it_waits_for_room_gives_back_what_it_had():
    teller, known = Teller(), payloads(get_stage._MAX_IN_FLIGHT)
    get = getter()
    for payload in known.payloads:
        await get.receive(cast(Agent, teller), payload)
    large = PayloadDoc(id=9_999, key="9999.1", status=PayloadState.RUNNING)
    waiting = asyncio.create_task(
        get.receive(cast(Agent, teller), large, size=100 * get_stage._LARGE)
    )
    clock = SimClock()
    await clock.sleep(0)
    assert get._in_flight["teller"].locked()  # it has the last place and waits for more
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert get._in_flight["teller"]._value == 1
    await get.stop()


class Lister(FerrymanAgent):
    """Its list has no end."""

    def __init__(self) -> None:
        self.name = "lister"

    async def payloads(self, after: int = 0) -> PayloadList:
        return PayloadList.model_construct(seq=1, payloads=PAGE, next=after + 1)


PAGE = payloads(1_001).payloads


async def test_all_pages_of_a_list_name_no_more_than_is_kept_of_them():
    named, lister = 0, Lister()

    async def listen() -> None:
        nonlocal named
        async for page in lister.pages(await lister.payloads()):
            named += len(page.payloads)

    with pytest.raises(Unreachable, match="its list has no end"):
        await listen()
    assert named <= 100_000


CONTENT = b"content"


def reported_payload(number: int, content: bytes = CONTENT) -> PayloadDoc:
    result = ResultInfo(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return PayloadDoc(id=number, status=PayloadState.COMPLETED, result=result)


def test_each_is_taken_once_and_only_as_announced() -> None:
    reported = ReportedResults()
    reported.put("node", 1, CONTENT)
    assert reported.has("node", reported_payload(1))
    assert not reported.has("other", reported_payload(1))
    assert reported.take("node", reported_payload(1)) == CONTENT
    assert reported.take("node", reported_payload(1)) is None
    for damaged in (b"CONTENT", CONTENT + b"x", b""):
        reported.put("node", 2, damaged)
        assert reported.take("node", reported_payload(2)) is None
    reported.put("node", 3, CONTENT)
    assert reported.take("node", reported_payload(3).model_copy(update={"result": None})) is None


def test_what_is_too_much_for_one_agent_is_let_go(monkeypatch) -> None:
    monkeypatch.setattr(reported_results, "_MAX_BYTES", 2 * len(CONTENT))
    reported = ReportedResults()
    for number in (1, 2, 3):
        reported.put("node", number, CONTENT)
    reported.put("other", 1, CONTENT)
    kept = [reported.has("node", reported_payload(number)) for number in (1, 2, 3)]
    assert (kept, reported.has("other", reported_payload(1))) == ([True, True, False], True)
    reported.put("node", 2, CONTENT)  # in place of the first
    assert reported.take("node", reported_payload(1)) == CONTENT
    reported.put("node", 3, CONTENT)
    assert reported.has("node", reported_payload(3)), "room comes back"
    reported.forget_agent("node")
    assert not reported.has("node", reported_payload(3))
    assert reported.has("other", reported_payload(1))
    reported.forget_agent(None)
    assert not reported.has("other", reported_payload(1))
