"""The numbers of charts: counted once each, kept as long as they should be, for operators."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_UNIT: Final = "tests/unit/server/domain/test_statistics.py::test_"
_DOMAIN: Final = "server/domain/statistics.py"
_STAGE: Final = "server/stages/statistics.py"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("statistics", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "what could not be written for the charts is written later",
        _STAGE,
        "                self._counts.add(at, service, counts)\n            raise",
        "                pass\n            raise",
        "tests/unit/server/stages/test_statistics.py::"
        "test_what_could_not_be_written_is_written_later",
    ),
    _of(
        "buckets are deleted when their time has come",
        "server/store/statistics.py",
        'await tx.rows("DELETE FROM statistics WHERE at < :before", {"before": before})',
        "pass",
        "tests/contract/store/test_statistics.py::test_buckets_are_deleted_when_their_time_has_come",
    ),
    _of(
        "an attempt whose agent was away does not start twice",
        _DOMAIN,
        "and not seen_running:",
        "and move.at:",
        f"{_UNIT}an_attempt_whose_agent_was_away_does_not_start_twice",
    ),
    _of(
        "a clock that was set back makes no time negative",
        _DOMAIN,
        'waited = max(0, move.facts["started_at"] - since)',
        'waited = move.facts["started_at"] - since',
        f"{_UNIT}a_clock_that_was_set_back_makes_no_time_negative",
    ),
    _of(
        "the charts are for operators",
        "server/web/operators/charts.py",
        'PageRoute("GET", "/charts", Area.AGENTS,',
        'PageRoute("GET", "/charts", Area.JOBS,',
        "tests/contract/test_charts_pages.py::test_it_is_for_operators",
    ),
)
