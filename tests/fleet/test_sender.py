"""What goes together to an agent: orders, acknowledgements, and bundles that are sent once."""

import asyncio
from collections.abc import AsyncIterator

from server.agents import sender
from server.agents.agent import Body
from server.agents.sender import MAX_WAIT_S, MISSING, OrderSender, SentBundles, SmallOrder
from server.domain.agents import RefusedByAgent, Unreachable
from server.domain.jobs import Bundle
from shared.wire import OrderAnswer, PayloadRef, PayloadsAnswer, PayloadsRequest
from tests.kit.agent_http import order_of
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.waiting import turns


class Agent:
    """The far end; requests wait until it is ``ready``."""

    def __init__(self) -> None:
        self.clock, self.ready = SimClock(), asyncio.Event()
        self.ready.set()
        self.seen: list[tuple[list[str], list[int]]] = []
        """Of each request the keys of its orders, and the numbers that it acknowledges."""
        self.bytes: list[bytes] = []
        self.problem: Exception | None = None
        self.refused: dict[int, str] = {}
        self.sender = OrderSender(self.post, "server", self.clock)

    async def post(self, body: Body, orders: int) -> PayloadsAnswer:
        content = b"".join([chunk async for chunk in body.chunks()])
        assert len(content) == body.size
        line, _, rest = content.partition(b"\n")
        head = PayloadsRequest.model_validate_json(line)
        assert len(head.orders) == orders
        self.seen.append(([one.key for one in head.orders], [ref.id for ref in head.acknowledge]))
        self.bytes.append(rest)
        await self.ready.wait()
        if self.problem is not None:
            raise self.problem
        answers = [OrderAnswer(code=one.key) for one in head.orders]
        return PayloadsAnswer(answers=answers, refused=self.refused)

    async def order(self, *numbers: int, size: int = 3) -> list[asyncio.Task[OrderAnswer]]:
        made = []
        for number in numbers:
            content = f"{number:03}".encode() * (size // 3)
            one = SmallOrder(order_of(f"{number}.1", content, "d"), len(content), content)
            made.append(asyncio.create_task(self.sender.order(one)))
            await turns(20)
        return made

    async def acknowledge(self, *numbers: int) -> list[asyncio.Task[None]]:
        made = [
            asyncio.create_task(self.sender.acknowledge(PayloadRef(id=one, key=f"{one}.1")))
            for one in numbers
        ]
        await turns(20)
        return made


async def test_what_comes_meanwhile_goes_together_in_its_order_up_to_a_most_of_bytes(monkeypatch):
    monkeypatch.setattr(sender, "_ORDER_BYTES", 0)
    agent = Agent()
    agent.ready.clear()
    made = await agent.order(*range(1, 9), size=300_000)
    assert [keys for keys, _ in agent.seen] == [["1.1"], ["2.1"]], "nothing waits for company"
    agent.ready.set()
    assert [(await one).code for one in made] == [f"{n}.1" for n in range(1, 9)]
    assert [keys for keys, _ in agent.seen[2:]] == [["3.1", "4.1", "5.1"], ["6.1", "7.1", "8.1"]]
    assert agent.bytes[2] == b"003" * 100_000 + b"004" * 100_000 + b"005" * 100_000


async def test_acknowledgements_go_along_and_the_answer_is_theirs() -> None:
    agent = Agent()
    some = await agent.acknowledge(1, 2, 3)
    agent.refused = {2: "not_ended", 3: "payload_not_found"}
    await asyncio.gather(*await agent.order(9))
    assert agent.seen == [(["9.1"], [1, 2, 3])]
    done = await asyncio.gather(*some, return_exceptions=True)
    assert [type(one) for one in done] == [type(None), RefusedByAgent, type(None)]
    await agent.clock.advance(MAX_WAIT_S)
    assert len(agent.seen) == 1


async def test_without_a_request_they_go_by_themselves_after_a_moment() -> None:
    agent = Agent()
    for numbers in ([1, 2], [3]):
        some = await agent.acknowledge(*numbers)
        await agent.clock.advance(MAX_WAIT_S)
        await asyncio.gather(*some)
    assert agent.seen == [([], [1, 2]), ([], [3])]


async def test_many_go_at_once_and_those_whose_callers_are_gone_do_not(monkeypatch) -> None:
    monkeypatch.setattr(sender, "SEND_AT_ONCE_FROM", 3)
    agent = Agent()
    (gone,) = await agent.acknowledge(1)
    gone.cancel()
    await asyncio.gather(*await agent.acknowledge(2, 3))
    assert agent.seen == [([], [2, 3])]
    (gone,) = await agent.acknowledge(4)
    gone.cancel()
    await agent.clock.advance(MAX_WAIT_S)
    assert len(agent.seen) == 1, "for nobody no request is made"


async def test_when_a_request_fails_each_caller_knows() -> None:
    agent = Agent()
    agent.problem = Unreachable("gone", sent=True)
    made = [*await agent.acknowledge(1, 2), *await agent.order(3)]
    await agent.clock.advance(MAX_WAIT_S)
    assert await asyncio.gather(*made, return_exceptions=True) == [agent.problem] * 3


@each("together, final", [(1, True), (2, False)])
async def test_a_request_that_is_not_taken_is_the_fault_of_none_of_several(together, final) -> None:
    agent = Agent()
    agent.ready.clear()
    agent.problem = RefusedByAgent("too_large", "no", final=True)
    _, _, *rest = await agent.order(*range(1, 3 + together))
    agent.ready.set()
    for no in await asyncio.gather(*rest, return_exceptions=True):
        assert (no, no.final) == (agent.problem, final)  # type: ignore[union-attr]


async def test_a_large_bundle_is_a_request_of_its_own() -> None:
    agent = Agent()
    agent.ready.clear()
    await agent.order(1, 2, 3)

    async def source() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield bytes(1 << 20)

    order = order_of("9.1", b"", "d")
    large = asyncio.create_task(agent.sender.stream(order, 4 << 20, source(), 4 << 20))
    await turns(20)
    assert [keys for keys, _ in agent.seen] == [["1.1"], ["2.1"], ["9.1"]]
    agent.ready.set()
    assert (await large).code == "9.1"


# -- bundles that several have


class Line:
    """What was sent with a bundle, and without."""

    def __init__(self) -> None:
        self.first: list[int] = []
        self.later: list[int] = []
        self.problems: list[Exception] = []
        self.held = set[str]()
        self.bundles = SentBundles()
        self.never = asyncio.Event()
        self.hangs = 0

    async def send(self, *jobs: int, digest: str = "d", file: str = "f") -> list[int | str]:
        async def one(job: int) -> int:
            async def first() -> int:
                self.first.append(job)
                if job == self.hangs:
                    await self.never.wait()
                if self.problems:
                    raise self.problems.pop(0)
                self.held.add(digest)
                return job

            async def later() -> int:
                self.later.append(job)
                if digest not in self.held:
                    raise RefusedByAgent(MISSING, "not here", final=False)
                return job

            return await self.bundles.send(Bundle(file, 1, digest), first, later)

        found = await asyncio.gather(*map(one, jobs), return_exceptions=True)
        return [done if isinstance(done, int) else str(done) for done in found]


async def test_a_bundle_that_is_gone_is_sent_once_more() -> None:
    line = Line()
    await line.send(1)
    line.held.clear()
    assert await line.send(2, 3, 4, 5) == [2, 3, 4, 5]
    assert len(line.first) == 2


@each("problem", [Unreachable("reset", sent=True), RefusedByAgent("busy", "busy", final=False)])
async def test_when_the_first_one_fails_the_next_one_brings_it(problem) -> None:
    line = Line()
    line.problems.append(problem)
    assert await line.send(1, 2, 3) == [str(problem), 2, 3]
    assert line.first == [1, 2]


async def test_who_waits_for_a_first_one_that_is_cancelled_goes_first() -> None:
    line = Line()
    line.hangs = 1
    first = asyncio.create_task(line.send(1))
    await turns(20)
    second = asyncio.create_task(line.send(2))
    await turns(20)
    first.cancel()
    assert await second == [2]
    assert line.first == [1, 2]


async def test_another_file_of_the_same_content_is_sent_too() -> None:
    """What is executable in it may differ, which the digest does not say."""
    line = Line()
    for job, file in ((1, "f"), (2, "g"), (3, "g"), (4, "f")):
        assert await line.send(job, file=file) == [job]
    assert await line.send(5, digest="other") == [5]
    assert (line.first, line.later) == ([1, 2, 4, 5], [3])
