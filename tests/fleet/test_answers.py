"""What an answer, a list and an event stream of an agent mean, down to their bytes."""

import asyncio
import hashlib
import math
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from server.agents import answers, ferryman_agent
from server.agents.agent import Agent
from server.agents.ferryman_agent import FerrymanAgent
from server.domain.agents import NoSuchPayload, RefusedByAgent, Unreachable
from server.stages import inbox
from server.stages.inbox import Inbox, Report
from server.storage.scratch import Scratch, ScratchFile
from shared.clock import SECOND, RealClock
from shared.files.opened import to_end
from shared.ids import AttemptKey
from shared.wire import AgentEvent, PayloadDoc, PayloadList, PayloadState, ResultInfo
from tests.kit import waiting
from tests.kit.clock import SimClock
from tests.kit.each import each


def file_at(path: Path) -> ScratchFile:
    return ScratchFile(path, Scratch(path.parent, lambda: "never used"))


class Body:
    """The content of an answer, in these pieces; a number is a pause of so many seconds."""

    def __init__(self, pieces: tuple[Any, ...], clock: SimClock) -> None:
        self._pieces, self._clock = iter(pieces), clock

    async def readany(self) -> bytes:
        for piece in self._pieces:
            if isinstance(piece, bytes):
                return piece
            await self._clock.advance(piece)
        return b""


def answer(*pieces: Any, status: int = 200, clock: SimClock | None = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = Body(pieces, clock or SimClock())
    return SimpleNamespace(status=status, headers=named, content=body)


async def test_a_body_that_trickles_is_not_waited_for_and_one_that_is_long_is(tmp_path):
    clock = SimClock()
    trickle = [part for _ in range(100) for part in (b"x" * 1000, 1.0)]
    with pytest.raises(TimeoutError, match="too slowly"):
        await answers.store(answer(*trickle, clock=clock), file_at(tmp_path / "f"), clock)
    assert 60.0 <= clock.monotonic() < 62.0
    clock = SimClock()
    steady = [part for _ in range(100) for part in (b"x" * 70_000, 15.0)]
    with mock.patch("server.agents.answers.to_end", wraps=to_end) as hops:
        fetched = await answers.store(answer(*steady, clock=clock), file_at(tmp_path / "g"), clock)
    assert (fetched.size, clock.monotonic()) == (7_000_000, 1500.0)
    assert hops.call_count == 7, "each costs more than what it writes"
    assert (tmp_path / "g").stat().st_size == 7_000_000


async def test_no_more_is_taken_than_was_announced_or_can_be(tmp_path):
    with pytest.raises(Unreachable, match="longer than the 5 bytes"):
        await answers.store(answer(b"123456"), file_at(tmp_path / "f"), SimClock(), most=5)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        await answers.read(answer(*[b"x" * 6] * 10_000), most=10)


async def test_only_its_code_says_that_a_payload_is_not_known():
    known = await answers.refusal(answer(b'{"code": "payload_not_found"}', status=404))
    assert isinstance(known, NoSuchPayload)
    for status, code in ((404, b"no_such_route"), (410, b"payload_not_found")):
        other = await answers.refusal(answer(b'{"code": "%s"}' % code, status=status))
        assert isinstance(other, RefusedByAgent)


@each(
    "status, code, header, final, wait_s",
    [
        (400, "invalid_bundle", None, True, None),
        (413, "too_large", None, True, None),
        (403, "not_offered", None, True, None),
        (401, "unauthorized", None, False, None),
        (409, "key_refused", None, False, None),
        (409, "stale_attempt", "9", False, 9.0),
        (409, "digest_mismatch", None, False, None),
        (409, "submit_in_progress", "2", False, 2.0),
        (503, "draining", "10", False, 10.0),
        (503, "draining", "9" * 400, False, 3600.0),
        (503, "draining", "soon", False, None),
        (507, "disk_full", None, False, 30.0),
        (500, "internal_error", None, False, None),
    ],
)
async def test_refusals(status, code, header, final, wait_s):
    headers = {"Retry_After": header} if header else {}
    body = b'{"code": "%s", "message": "no"}' % code.encode()
    found = await answers.refusal(answer(body, status=status, **headers))
    assert isinstance(found, RefusedByAgent)
    assert (found.code, str(found)) == (code, "no")
    assert (found.final, found.retry_after_s) == (final, wait_s)


@each("said, wait_s", [(1e308, 3600.0), (math.inf, 3600.0), (math.nan, 3600.0), (-1.0, 0.0)])
def test_an_agent_cannot_have_itself_left_out_for_ever(said, wait_s):
    assert answers.refused(503, "draining", "no", said).retry_after_s == wait_s


AT = 1_700_000_000


@each(
    "said, ahead_s",
    [
        *((formatdate(AT + said, usegmt=True), 0.0) for said in (0, -1, 1, 3)),
        (formatdate(AT + 4, usegmt=True), 1.0),
        (formatdate(AT - 3, usegmt=True), -2.0),
        (formatdate(AT + 259_200, usegmt=True), 259_197.0),
        *((date, None) for date in ("", "soon", "9" * 5_000)),
    ],
)
def test_a_clock_is_wrong_by_what_neither_the_way_nor_whole_seconds_explain(said, ahead_s):
    """Asked at 0 s, answered at 3 s."""
    found = answers.clock_ahead_s(answer(Date=said), AT * SECOND, (AT + 3) * SECOND)
    assert found == ahead_s
    assert answers.clock_ahead_s(answer(), 0, 0) is None


# -- events and lists

CONTENT = b"of\nbytes\n"
NODE = cast(Agent, SimpleNamespace(name="node", supports_events=True))


def reported(number: int) -> PayloadDoc:
    result = ResultInfo(size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    return PayloadDoc(id=number, status=PayloadState.COMPLETED, key="1.1", result=result)


def line(**event: object) -> bytes:
    return AgentEvent(seq=1, **event).model_dump_json().encode() + b"\n"  # type: ignore[arg-type]


async def heard(*pieces: bytes) -> list[tuple[int | None, bytes | None]]:
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(mock.create_autospec(BaseProtocol), 1 << 16, loop=loop)
    for piece in pieces:
        stream.feed_data(piece)
    stream.feed_eof()
    found = ferryman_agent.read_events(stream, RealClock())
    return [
        (one.event.payload.id if one.event.payload else None, one.result) async for one in found
    ]


@each(
    "broken",
    [
        line(payload=reported(7), result_bytes=answers.MAX_RESULT + 1) + b"x",
        line(result_bytes=3) + b"abc",
        line(payload=reported(7), result_bytes=3) + b"ab",
        b'{"seq":1,"result_bytes":-1}\n',
        b'{"seq":1,"status":{"slots":-1,"running":0}}\n',
        b'{"seq":1,"payload":7}\n',
        b"\xff\n",
        b"x" * (1 << 21),
    ],
)
async def test_what_was_not_asked_for_ends_the_stream(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"events|line|result_bytes|slots|payload|JSON"):
        await heard(broken)


async def test_others_have_their_turn_however_much_an_agent_sends() -> None:
    read, turns = asyncio.create_task(heard(*[line()] * 250)), 0
    while not read.done():
        await waiting.turns()
        turns += 1
    assert len(await read) == 250
    assert turns > 2


def test_a_result_that_came_with_a_report_counts_only_as_announced() -> None:
    assert Report(NODE, reported(1), AttemptKey(1, 1), 0.0, CONTENT).result == CONTENT
    for damaged in (CONTENT.upper(), CONTENT + b"x", b"", None):
        assert Report(NODE, reported(1), AttemptKey(1, 1), 0.0, damaged).result is None
    nothing = reported(1).model_copy(update={"result": None})
    assert Report(NODE, nothing, AttemptKey(1, 1), 0.0, CONTENT).result is None


def test_results_that_are_too_much_for_one_agent_are_let_go(monkeypatch) -> None:
    monkeypatch.setattr(inbox, "_REPORT_BYTES", 0)
    monkeypatch.setattr(inbox, "_MAX_BYTES", 2 * len(CONTENT))
    reports = Inbox(0.0, SimClock(), lambda: None)
    node, other = NODE, cast(Agent, SimpleNamespace(name="other", supports_events=True))

    def came() -> dict[tuple[str, int], bool]:
        return {one.which: one.content is not None for one in reports.take(99)}

    for agent, number in ((node, 1), (node, 2), (node, 2), (node, 3), (other, 1)):
        reports.put(agent, reported(number), CONTENT)
    taken = reports.take(99)
    kept = {one.which: one.content is not None for one in taken}
    assert kept == {("node", 1): True, ("node", 2): True, ("node", 3): False}
    assert came() == {("other", 1): True}, "as much is taken at once"
    reports.done(taken[0])
    reports.put(node, reported(4), CONTENT)
    assert came() == {("node", 4): True}, "room comes back"
    assert reports.forget_agent("node") == {("node", 2), ("node", 3), ("node", 4)}
    for number in (5, 6):
        reports.put(node, reported(number), CONTENT)
    assert came() == {("node", 5): True, ("node", 6): True}


async def test_of_two_reports_of_a_payload_one_is_looked_at_and_what_both_hold_comes_back(
    monkeypatch,
) -> None:
    monkeypatch.setattr(inbox, "_MAX_BYTES", 2 * inbox._REPORT_BYTES)
    woken = list[None]()
    reports = Inbox(0.0, SimClock(), lambda: woken.append(None))
    node = NODE
    async with asyncio.timeout(10.0):
        await reports.receive(node, reported(1), CONTENT, 0)
        (older,) = reports.take(9)
        older.tries = 3
        reports.put(node, reported(1), CONTENT)
        assert reports.take(9) == [], "the older one is looked at"
        reports.again(older, 60.0)
        (newer,) = reports.take(9)
        assert (newer.content, newer.tries) == (CONTENT, 3)
        reports.again(newer, 0.0)
        assert newer.content is None, "what cannot be followed now takes little memory"
        (newer,) = reports.take(9)
        newer.key = AttemptKey(7, 1)
        reports.put(node, reported(1))
        reports.again(newer, 0.0)
        (other,) = reports.take(9)
        assert (other.key.job_id, other.tries) == (1, 0), "the number was given to another"
        reports.again(other, 0.0)
        reports.put(node, reported(1))
        (newest,) = reports.take(9)
        reports.put(node, reported(1))
        woken.clear()
        reports.done(newest)
        assert woken, "another one waits behind it"
        reports.put(node, reported(2))
        assert reports.forget_agent("node") == {("node", 1), ("node", 2)}
        await reports.receive(node, reported(3), None, 0)


class Lister(FerrymanAgent):
    """Its list has no end."""

    def __init__(self) -> None:
        self.name, self.page = "lister", [reported(number) for number in range(1_000)]

    async def payloads(self, after: int = 0) -> PayloadList:
        return PayloadList.model_construct(seq=1, payloads=self.page, next=after + 1)


async def test_all_pages_of_a_list_name_no_more_than_is_kept_of_them():
    lister, named = Lister(), list[int]()

    async def listen() -> None:
        async for page in lister.pages(await lister.payloads()):
            named.append(len(page.payloads))

    with pytest.raises(Unreachable, match="its list has no end"):
        await listen()
    assert 50_000 < sum(named) <= 100_000
