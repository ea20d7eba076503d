from __future__ import annotations

import pytest

from client_agent.run import outcomes
from client_agent.sandbox.base import Ended
from shared.wire import PayloadState, Reason, Usage

USAGE = Usage(wall_s=1.0)


@pytest.mark.parametrize(
    ("ended", "state", "interrupted"),
    [
        (Ended(0, None, "", USAGE), PayloadState.COMPLETED, False),
        (Ended(0, None, outcomes.CANCELLED, USAGE), PayloadState.KILLED, False),
        (Ended(None, None, outcomes.CANCELLED, USAGE), PayloadState.KILLED, False),
        (
            Ended(3, Reason.EXIT_CODE, "run.sh ended with exit code 3", USAGE),
            PayloadState.FAILED,
            False,
        ),
        (Ended(None, Reason.MEMORY_LIMIT, "m", USAGE), PayloadState.FAILED, False),
        (Ended(None, Reason.TIMEOUT, "m", USAGE), PayloadState.FAILED, False),
        (Ended(None, Reason.SANDBOX_ERROR, "m", USAGE), PayloadState.FAILED, True),
        (Ended(None, Reason.AGENT_ERROR, "m", USAGE, certain=False), PayloadState.FAILED, True),
        (Ended(0, Reason.SHUTDOWN, "m", USAGE), PayloadState.FAILED, True),
    ],
)
def test_the_end_that_the_sandbox_reports_becomes_the_outcome(ended, state, interrupted):
    outcome = outcomes.of(ended, 60, {})
    assert (outcome.state, outcome.reason, outcome.interrupted) == (
        state,
        ended.reason,
        interrupted,
    )
    assert (outcome.exit_code, outcome.usage) == (ended.exit_code, USAGE)


def test_an_exit_code_is_that_of_the_script_that_ran():
    ended = Ended(4, Reason.EXIT_CODE, "m", USAGE)
    assert outcomes.of(ended, 60, {}).message == "run.sh ended with exit code 4"
    assert outcomes.of(ended, 60, {}, "gather.sh").message == "gather.sh ended with exit code 4"


def test_limits_that_were_not_enforced_are_warnings():
    ended = Ended(0, None, "", USAGE, ("first",))
    enforcement = {"memory": "none", "isolation": "none", "network": "none"}
    first, *warnings = outcomes.of(ended, 60, enforcement).warnings
    assert first == "first"
    assert [warning.split(":")[0] for warning in warnings] == ["isolation", "network"]


def test_failures_of_the_agent_interrupt_and_those_of_the_bundle_do_not():
    faultless = {Reason.SANDBOX_ERROR, Reason.AGENT_ERROR, Reason.SHUTDOWN}
    for reason in Reason:
        assert outcomes.failed(reason, "m").interrupted == (reason in faultless)
