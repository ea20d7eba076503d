"""What an answer means, down to its bytes."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.agents import answers
from server.ports import NoSuchPayload, RefusedByAgent, Unreachable
from server.storage.scratch import FolderScratchFile
from server.storage.space import Reservation, Space
from shared.clock import SECOND
from shared.wire import AgentHealth
from tests.kit.clock import SimClock


def file_at(path: Path) -> FolderScratchFile:
    return FolderScratchFile(path, Reservation(Space(lambda: 1 << 60, 0)))


class Body:
    """The content of an answer, in these pieces; a number is a pause of so many seconds."""

    def __init__(self, pieces: list[Any], clock: SimClock) -> None:
        self._pieces, self._clock = iter(pieces), clock

    async def readany(self) -> bytes:
        for piece in self._pieces:
            if isinstance(piece, bytes):
                return piece
            self._clock._move(self._clock.monotonic() + piece)
        return b""


def answer(*pieces: Any, status: int = 200, clock: SimClock | None = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = Body(list(pieces), clock or SimClock())
    return SimpleNamespace(status=status, headers=named, content=body)


async def test_a_body_that_trickles_is_not_waited_for(tmp_path):
    clock = SimClock()
    trickle = [part for _ in range(100) for part in (b"x" * 1000, 1.0)]
    with pytest.raises(TimeoutError, match="too slowly"):
        await answers.store(answer(*trickle, clock=clock), file_at(tmp_path / "f"), clock)
    assert 60.0 <= clock.monotonic() < 62.0


async def test_a_body_that_keeps_the_rate_may_take_as_long_as_it_needs(tmp_path):
    clock = SimClock()
    steady = [part for _ in range(100) for part in (b"x" * 70_000, 15.0)]
    fetched = await answers.store(answer(*steady, clock=clock), file_at(tmp_path / "f"), clock)
    assert (fetched.size, clock.monotonic()) == (7_000_000, 1500.0)
    assert (tmp_path / "f").stat().st_size == 7_000_000


async def test_no_more_is_taken_than_was_announced(tmp_path):
    with pytest.raises(Unreachable, match="longer than the 5 bytes"):
        await answers.store(answer(b"123456"), file_at(tmp_path / "f"), SimClock(), most=5)


async def test_a_document_without_end_is_not_read_to_its_end():
    with pytest.raises(ValueError, match="more than 10 bytes"):
        await answers.read(answer(*[b"x" * 6] * 10_000), most=10)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>", b"\xff", b'{"status": 1}'])
async def test_what_is_no_document_is_no_answer(body):
    with pytest.raises(ValueError, match="not an agent's"):
        await answers.document(answer(body), AgentHealth)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>", b'"code"', b'{"code": 4}'])
@pytest.mark.parametrize("status", [400, 404, 409, 500, 502])
async def test_an_error_without_a_code_of_ours_is_no_answer(body, status):
    with pytest.raises(ValueError, match=f"{status}, no content type. that is not an agent's"):
        await answers.refusal(answer(body, status=status))


async def test_only_its_code_says_that_a_payload_is_not_known():
    known = await answers.refusal(answer(b'{"code": "payload_not_found"}', status=404))
    assert isinstance(known, NoSuchPayload)
    for status, code in ((404, b"no_such_route"), (410, b"payload_not_found")):
        other = await answers.refusal(answer(b'{"code": "%s"}' % code, status=status))
        assert isinstance(other, RefusedByAgent)


@pytest.mark.parametrize(
    ("status", "code", "header", "final", "wait_s"),
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
    found = await answers.refusal(
        answer(b'{"code": "%s", "message": "no"}' % code.encode(), status=status, **headers)
    )
    assert isinstance(found, RefusedByAgent)
    assert (found.code, str(found)) == (code, "no")
    assert (found.final, found.retry_after_s) == (final, wait_s)


async def test_a_document_is_not_read_beyond_what_one_can_have():
    body = b'{"status": "ok", "message": "%s"}' % (b"x" * (1 << 20))
    with pytest.raises(ValueError, match="not an agent's"):
        await answers.document(answer(body), AgentHealth)


@pytest.mark.parametrize(
    ("said", "ahead_s"),
    [(0, 0.0), (-1, 0.0), (1, 0.0), (3, 0.0), (4, 1.0), (-3, -2.0), (259_200, 259_197.0)],
)
def test_a_clock_is_wrong_by_what_neither_the_way_nor_whole_seconds_explain(
    said: int, ahead_s: float
) -> None:
    """Asked at 0 s, answered at 3 s."""
    at = 1_700_000_000
    date = formatdate(at + said, usegmt=True)
    found = answers.clock_ahead_s(answer(Date=date), at * SECOND, (at + 3) * SECOND)
    assert found == ahead_s


@pytest.mark.parametrize("said", [{}, {"Date": ""}, {"Date": "soon"}, {"Date": "9" * 5_000}])
def test_an_agent_may_say_any_date(said: dict[str, str]) -> None:
    given: Any = said
    assert answers.clock_ahead_s(answer(**given), 0, 0) is None
