"""Numbers and waits that requests ask for."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant


def _of(module: str, protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"tests/unit/server/test_{module}.py::test_{test}" for test in tests)
    return Mutant("params", protection, f"server/http/{module}.py", old, new, names)


def of(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return _of("params", protection, old, new, *tests)


def wait(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return _of("requested_job", protection, old, new, *tests)


_NO_TIME: Final = "what_is_no_time_is_refused_by_its_name"

MUTANTS: Final = (
    of("nan is no time", "if not 0 <= value < math.inf", "if value < 0", _NO_TIME),
    of("a time is bounded in length", "if len(text) <= _MAX_LENGTH else -1.0", "", _NO_TIME),
    of(
        "nobody waits longer than two minutes",
        "return min(value, MAX_WAIT_S)",
        "return value",
        "seconds_are_numbers_up_to_two_minutes",
    ),
    of(
        "an id is one that a job can have",
        "whole_number(text, most=MAX_ID)",
        "whole_number(text, most=MAX_ID + 1)",
        "what_is_no_job_is_not_found",
    ),
    wait(
        "a wait for the end goes on through other states",
        "job.ended or (not until_ended and seen is not None and job.state != seen)",
        "job.ended or (seen is not None and job.state != seen)",
        "a_wait_for_the_end_sleeps_through_other_states_and_its_time_runs_on",
    ),
    wait(
        "a wait ends when the server stops",
        " or context.watch.closing:",
        ":",
        "a_wait_ends_when_the_server_stops",
    ),
    wait(
        "a wait ends when its time is over",
        "left <= 0 or ",
        "",
        "a_wait_for_the_end_sleeps_through_other_states_and_its_time_runs_on",
    ),
)
