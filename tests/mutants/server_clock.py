"""The clock that does not jump."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_FILE: Final = "shared/steady_clock.py"
_TESTS: Final = "tests/unit/shared/test_steady_clock.py::test_"

MUTANTS: Final = (
    Mutant(
        "clock",
        "a jump is not followed",
        _FILE,
        "max(-most, min(most, behind))",
        "behind",
        (f"{_TESTS}a_jump_of_the_machines_clock_passes_no_time",),
    ),
    Mutant(
        "clock",
        "small corrections are followed",
        _FILE,
        "self._now += passed + max(-most, min(most, behind))",
        "self._now += passed",
        (f"{_TESTS}small_corrections_of_the_machines_clock_are_followed",),
    ),
    Mutant(
        "clock",
        "a restart goes on where the clock was",
        _FILE,
        "return now + round(passed * SECOND)",
        "return None",
        (f"{_TESTS}a_restart_after_a_jump_goes_on_as_before",),
    ),
    Mutant(
        "clock",
        "a restart counts the time in between",
        _FILE,
        "return now + round(passed * SECOND)",
        "return now",
        (f"{_TESTS}the_time_that_the_process_was_stopped_counts",),
    ),
    Mutant(
        "clock",
        "a start of the machine with a clock that is behind does not set time back",
        _FILE,
        "return max(now, machine.now())",
        "return machine.now()",
        (
            f"{_TESTS}after_a_start_of_the_machine_its_clock_is_taken_unless_it_is_behind"
            "[-86400.0-0.0]",
        ),
    ),
    Mutant(
        "clock",
        "the server goes by it",
        "server/data_folder.py",
        "clock = PersistentClock(table.data_dir, machine)",
        "clock = machine",
        ("tests/contract/test_clock_jumps.py::test_the_server_cleans_nothing_after_a_jump",),
    ),
    Mutant(
        "clock",
        "the agent goes by it",
        "client_agent/app.py",
        "clock = PersistentClock(settings.data_dir, machine_clock)",
        "clock = machine_clock",
        ("tests/contract/test_clock_jumps.py::test_the_agent_removes_no_result_after_a_jump",),
    ),
)
