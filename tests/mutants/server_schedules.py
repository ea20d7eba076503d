"""Schedules: one job for each time. Actions on many jobs."""

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
        "server/domain/upload_fields.py",
        "return tags if len(tags) <= MAX_TAGS else",
        "return tags if True else",
        "tests/contract/store/test_tags.py::"
        "test_a_job_has_thirty_two_tags_at_most_however_they_come",
    ),
    _of(
        "a time makes no job while the one before has not ended",
        _STORE,
        'if open_job["id"] is not None:',
        "if False:",
        "a_time_is_skipped_while_a_job_of_it_has_not_ended",
    ),
    _of(
        "a rehearsal makes no jobs of schedules",
        _STAGE,
        "if self._is_rehearsal:",
        "if False:",
        "a_rehearsal_makes_no_jobs_of_schedules",
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
        'if await bundles.forget_reference(tx, row["bundle_file"]):',
        "if False:",
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
        "a schedule that can make no job goes on with its next time",
        _STAGE,
        "except FerrymanError as problem:  # the settings have changed since",
        "except ZeroDivisionError as problem:",
        "a_schedule_that_can_make_no_job_says_why_and_goes_on",
    ),
    _of(
        "a schedule is its user's alone",
        _STAGE,
        "or not visible.has(self._known[number])",
        "",
        "a_schedule_is_its_users_alone",
    ),
    _of(
        "a time that comes twice is due once",
        "server/domain/schedules.py",
        "if at > after:",
        "if at:",
        "tests/unit/server/domain/test_cron.py::test_a_time_that_comes_twice_is_due_the_first_time",
    ),
    _of(
        "a backup holds the bundles of schedules",
        "server/store/stored_rows.py",
        "bundle_digest FROM schedules",
        "bundle_digest FROM schedules WHERE 0",
        "tests/contract/test_backup.py::test_a_bundle_that_only_a_schedule_has_is_in_the_backup",
    ),
)
