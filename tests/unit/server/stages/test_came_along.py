"""Results that came with an agent's report."""

from __future__ import annotations

import hashlib

from server.stages import came_along
from server.stages.came_along import CameAlong
from shared.wire import PayloadDoc, PayloadState, ResultInfo

CONTENT = b"content"


def payload(number: int, content: bytes = CONTENT) -> PayloadDoc:
    result = ResultInfo(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return PayloadDoc(id=number, status=PayloadState.COMPLETED, result=result)


def test_each_is_taken_once_and_only_as_announced() -> None:
    came = CameAlong()
    came.put("node", 1, CONTENT)
    assert came.has("node", payload(1))
    assert not came.has("other", payload(1))
    assert came.take("node", payload(1)) == CONTENT
    assert came.take("node", payload(1)) is None
    for damaged in (b"CONTENT", CONTENT + b"x", b""):
        came.put("node", 2, damaged)
        assert came.take("node", payload(2)) is None
    came.put("node", 3, CONTENT)
    assert came.take("node", payload(3).model_copy(update={"result": None})) is None


def test_what_is_too_much_for_one_agent_is_let_go(monkeypatch) -> None:
    monkeypatch.setattr(came_along, "_MAX_BYTES", 2 * len(CONTENT))
    came = CameAlong()
    for number in (1, 2, 3):
        came.put("node", number, CONTENT)
    came.put("other", 1, CONTENT)
    kept = [came.has("node", payload(number)) for number in (1, 2, 3)]
    assert (kept, came.has("other", payload(1))) == ([True, True, False], True)
    came.put("node", 2, CONTENT)  # in place of the first
    assert came.take("node", payload(1)) == CONTENT
    came.put("node", 3, CONTENT)
    assert came.has("node", payload(3)), "room comes back"
    came.forget_agent("node")
    assert not came.has("node", payload(3))
    assert came.has("other", payload(1))
    came.forget_agent(None)
    assert not came.has("other", payload(1))
