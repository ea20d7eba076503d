"""Results that came with an agent's report."""

from __future__ import annotations

import hashlib

from server.stages import reported_results
from server.stages.reported_results import ReportedResults
from shared.wire import PayloadDoc, PayloadState, ResultInfo

CONTENT = b"content"


def payload(number: int, content: bytes = CONTENT) -> PayloadDoc:
    result = ResultInfo(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return PayloadDoc(id=number, status=PayloadState.COMPLETED, result=result)


def test_each_is_taken_once_and_only_as_announced() -> None:
    reported = ReportedResults()
    reported.put("node", 1, CONTENT)
    assert reported.has("node", payload(1))
    assert not reported.has("other", payload(1))
    assert reported.take("node", payload(1)) == CONTENT
    assert reported.take("node", payload(1)) is None
    for damaged in (b"CONTENT", CONTENT + b"x", b""):
        reported.put("node", 2, damaged)
        assert reported.take("node", payload(2)) is None
    reported.put("node", 3, CONTENT)
    assert reported.take("node", payload(3).model_copy(update={"result": None})) is None


def test_what_is_too_much_for_one_agent_is_let_go(monkeypatch) -> None:
    monkeypatch.setattr(reported_results, "_MAX_BYTES", 2 * len(CONTENT))
    reported = ReportedResults()
    for number in (1, 2, 3):
        reported.put("node", number, CONTENT)
    reported.put("other", 1, CONTENT)
    kept = [reported.has("node", payload(number)) for number in (1, 2, 3)]
    assert (kept, reported.has("other", payload(1))) == ([True, True, False], True)
    reported.put("node", 2, CONTENT)  # in place of the first
    assert reported.take("node", payload(1)) == CONTENT
    reported.put("node", 3, CONTENT)
    assert reported.has("node", payload(3)), "room comes back"
    reported.forget_agent("node")
    assert not reported.has("node", payload(3))
    assert reported.has("other", payload(1))
    reported.forget_agent(None)
    assert not reported.has("other", payload(1))
