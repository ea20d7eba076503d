"""Schedules: one job for each time, and what overlaps or was missed. Actions on many jobs."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "server/store/schedules.py"
_STAGE: Final = "server/stages/schedules.py"
_TESTS: Final = "tests/contract/test_schedules.py::test_"
_CRASHES: Final = (
    "tests/stateful/test_crash_points.py::test_a_crash_at_any_step_of_a_schedule_makes_no_job_twice"
)


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(test if "::" in test else f"{_TESTS}{test}" for test in tests)
    return Mutant("schedules", protection, file, old, new, names)


MUTANTS: Final = (
    _of(
        "an action on many jobs sees what its caller may see",
        "server/stages/bulk.py",
        "case BulkAction.CANCEL:\n                await read_job(self._jobs, principal, job_id)\n",
        "case BulkAction.CANCEL:\n",
        "tests/contract/test_bulk_http.py::test_what_somebody_may_not_see_is_not_there",
    ),
    _of(
        "an action on all jobs is said in so many words",
        "server/api/bulk.py",
        'if bool(given) is (asked.get("all") is True):',
        "if False:",
        "tests/contract/test_bulk_http.py::test_what_is_wrong_is_named_and_nothing_is_done",
    ),
    _of(
        "a job has no more tags than it may have, however they come",
        "server/domain/tags.py",
        "return tags if len(tags) <= MAX_TAGS else",
        "return tags if True else",
        "tests/contract/store/test_tags.py::"
        "test_a_job_has_thirty_two_tags_at_most_however_they_come",
    ),
    _of(
        "a time makes one job, however many servers see it",
        _STORE,
        "AND next_at = :seen AND (next_at <= :now OR pending = 1)",
        "",
        "two_servers_make_one_job_for_each_time",
    ),
    _of(
        "the next job waits until the former one is dead",
        _STORE,
        'if open_jobs and overlap == "replace":',
        "if False:",
        "replace_cancels_the_former_job_before_it_makes_the_next",
    ),
    _of(
        "a job that was to replace another is not forgotten by a crash",
        _STORE,
        "SELECT * FROM schedules WHERE pending = 1 AND paused = 0 AND NOT EXISTS (",
        "SELECT * FROM schedules WHERE pending = 2 AND paused = 0 AND NOT EXISTS (",
        "replace_cancels_the_former_job_before_it_makes_the_next",
    ),
    _of(
        "a schedule keeps its bundle",
        "server/store/inserts.py",
        "bundle = await bundles.refer_again(tx, new.bundle)",
        "bundle = new.bundle",
        _CRASHES,
    ),
    _of(
        "a bundle goes with its schedule",
        _STORE,
        "if await bundles.forget_reference(tx, file)",
        "if False",
        "a_bundle_that_only_a_schedule_has_is_kept_and_removed_with_it",
    ),
    _of(
        "a schedule's bundle counts among what its user stores",
        "server/store/inserts.py",
        "SELECT coalesce(sum(bundle_size), 0) FROM schedules WHERE user_id = :user_id",
        "SELECT 0",
        "a_bundle_that_only_a_schedule_has_is_kept_and_removed_with_it",
    ),
    _of(
        "times that were missed make no job, unless that was asked for",
        _STAGE,
        'if late_s <= LATE_S or schedule.timing.missed == "run_once":',
        "if True:",
        "times_of_a_downtime_make_one_job_or_none",
    ),
    _of(
        "a schedule that can make no job goes on with its next time",
        _STAGE,
        "except FerrymanError as problem:  # the settings have changed since",
        "except ZeroDivisionError as problem:",
        "a_schedule_that_can_make_no_job_says_why_and_goes_on",
    ),
    _of(
        "a schedule is its user's alone",
        _STAGE,
        "if not visible.has(schedule):",
        "if False:",
        "a_schedule_is_its_users_alone",
    ),
    _of(
        "a time that comes twice is due once",
        "server/domain/cron.py",
        "if at > after:",
        "if at:",
        "tests/unit/server/domain/test_cron.py::test_a_time_that_comes_twice_is_due_the_first_time",
    ),
    _of(
        "a backup holds the bundles of schedules",
        "server/store/copies.py",
        '_SCHEDULED if _has_table(connection, "schedules") else ""',
        '""',
        "tests/contract/test_backup.py::test_a_bundle_that_only_a_schedule_has_is_in_the_backup",
    ),
)
