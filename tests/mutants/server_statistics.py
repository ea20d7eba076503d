"""The numbers of charts: counted once each, kept as long as they should be, for operators."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "tests/contract/store/test_statistics.py::test_"
_SQL: Final = "server/store/statistics.py"
_DOMAIN: Final = "server/domain/statistics.py"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("statistics", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "what somebody else has counted meanwhile is not counted again",
        _SQL,
        'if (cursor["seq"], cursor["changes"]) != read_at:',
        'if cursor["seq"] is None:',
        f"{_STORE}another_who_counts_at_the_same_time_makes_nothing_count_twice",
        f"{_STORE}a_job_deleted_between_reading_and_writing_is_counted_once",
    ),
    _of(
        "a job that is counted as it is deleted is known to have been",
        _SQL,
        "SET changes = changes + 1",
        "SET changes = changes",
        f"{_STORE}a_job_deleted_between_reading_and_writing_is_counted_once",
    ),
    _of(
        "a job that is deleted is counted",
        "server/store/retention.py",
        "        await count_before_deletion(tx, names, params)\n",
        "",
        f"{_STORE}what_is_counted_is_what_the_events_say",
        f"{_STORE}a_server_that_dies_while_it_deletes_jobs_loses_nothing",
    ),
    _of(
        "buckets are deleted when their time has come",
        _SQL,
        "before = at - resolution.kept_s * SECOND",
        "before = 0",
        f"{_STORE}buckets_are_deleted_when_their_time_has_come",
    ),
    _of(
        "any number of services makes a bounded number of buckets",
        _SQL,
        "full = len(known) > _MOST_SERVICES and service not in known",
        "full = False",
        f"{_STORE}services_beyond_a_hundred_are_counted_together",
    ),
    _of(
        "an attempt whose agent was away does not start twice",
        _DOMAIN,
        "if one.started_at is not None:",
        "if one.at < 0:",
        f"{_STORE}what_is_counted_is_what_the_events_say",
    ),
    _of(
        "a clock that was set back makes no time negative",
        _DOMAIN,
        "took = max(0, took)",
        "took = took + 0",
        f"{_STORE}what_is_counted_is_what_the_events_say",
    ),
    _of(
        "the numbers of the server are for operators",
        "server/api/statistics.py",
        "Area.AGENTS",
        "Area.JOBS",
        "tests/contract/test_statistics_http.py::test_they_are_for_operators",
    ),
    _of(
        "the charts are for operators",
        "server/web/operators/charts.py",
        'PageRoute("GET", "/charts", Area.AGENTS,',
        'PageRoute("GET", "/charts", Area.JOBS,',
        "tests/contract/test_charts_pages.py::test_it_is_for_operators",
    ),
)
