from __future__ import annotations

import pytest

from client_agent.run import outcome
from client_agent.sandbox.base import Ended
from shared.wire import PayloadState, Reason, Usage

S = PayloadState
USAGE = Usage(wall_s=1.0)


@pytest.mark.parametrize(
    ("ended", "state", "interrupted"),
    [
        (Ended(0, None, "", USAGE), S.COMPLETED, False),
        (Ended(0, None, outcome.CANCELLED, USAGE), S.KILLED, False),
        (Ended(None, None, outcome.CANCELLED, USAGE), S.KILLED, False),
        (Ended(3, Reason.EXIT_CODE, "run.sh ended with exit code 3", USAGE), S.FAILED, False),
        (Ended(None, Reason.MEMORY_LIMIT, "m", USAGE), S.FAILED, False),
        (Ended(None, Reason.TIMEOUT, "m", USAGE), S.FAILED, False),
        (Ended(None, Reason.SANDBOX_ERROR, "m", USAGE), S.FAILED, True),
        (Ended(None, Reason.AGENT_ERROR, "m", USAGE, certain=False), S.FAILED, True),
        (Ended(0, Reason.SHUTDOWN, "m", USAGE), S.FAILED, True),
    ],
)
def test_how_it_ended_becomes_what_is_written_down(ended, state, interrupted):
    told = outcome.of(ended, 60, {})
    assert (told.state, told.reason, told.interrupted) == (state, ended.reason, interrupted)
    assert (told.exit_code, told.usage) == (ended.exit_code, USAGE)


def test_what_was_open_is_told_on_the_job():
    ended = Ended(0, None, "", USAGE, ("first",))
    enforcement = {"memory": "none", "isolation": "none", "network": "none"}
    first, *opened = outcome.of(ended, 60, enforcement).warnings
    assert first == "first"
    assert [warning.split(":")[0] for warning in opened] == ["isolation", "network"]


def test_only_the_bundles_own_failures_are_its_fault():
    faultless = {Reason.SANDBOX_ERROR, Reason.AGENT_ERROR, Reason.SHUTDOWN}
    for reason in Reason:
        assert outcome.failed(reason, "m").interrupted == (reason in faultless)
