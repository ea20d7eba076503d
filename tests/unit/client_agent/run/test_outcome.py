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


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"no newline", "no newline"),
        (b"a\r\nb\r\n", "a\nb"),
        (b"over\rwrite", "over\\rwrite"),
        (b"\x1b[31mred\x1b[0m\a", "\\x1b[31mred\\x1b[0m\\x07"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("‮evil\u200b".encode(), "\\u202eevil\\u200b"),
        (b"\xff\xfe\x00", "��\\x00"),
        ("tab\tand µ".encode(), "tab\tand µ"),
    ],
)
def test_the_end_of_a_log_shows_nothing_that_acts_on_a_terminal(log, shown):
    assert outcome.last_lines(log) == shown


def test_the_end_of_a_log_is_its_last_lines_whole():
    lines = [f"line {number}" for number in range(1000)]
    assert outcome.last_lines("\n".join(lines).encode()).split("\n") == lines[-20:]


@pytest.mark.parametrize("log", [b"x" * 100_000, b"\x01" * 100_000, b"\xff" * 100_000])
def test_the_end_of_a_log_is_short_whatever_it_holds(log):
    assert 0 < len(outcome.last_lines(log)) <= 4096
