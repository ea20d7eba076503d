"""What a page of a failed job says that one can do."""

from __future__ import annotations

from server.web.job.shown import ADVICE
from shared.wire import Reason


def test_every_reason_says_what_to_do():
    assert set(ADVICE) == set(Reason)
    for text in ADVICE.values():
        assert text.endswith(".")
