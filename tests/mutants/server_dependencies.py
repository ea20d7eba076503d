"""Jobs that wait for other jobs, children's bundles, and merged results."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_DEPENDENCIES: Final = "tests/contract/store/test_dependencies.py::test_"
_MERGE: Final = "tests/unit/shared/files/archives/test_merge.py::test_"
_MODEL: Final = "tests/stateful/test_dependencies.py::"
_FAN_OUT: Final = "tests/unit/server/stages/test_fan_out.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("dependencies", protection, file, old, new, tests)


def _store(protection: str, old: str, new: str, test: str) -> Mutant:
    return _of(protection, "server/store/dependencies.py", old, new, _DEPENDENCIES + test)


MUTANTS: Final = (
    _store(
        "a job waits for all that it depends on",
        "jobs.id AND dependencies.state != 'met'",
        "jobs.id AND dependencies.state = 'failed'",
        "a_job_starts_when_the_last_one_that_it_waits_for_completes",
    ),
    _store(
        "a failure is no completion",
        "job.state is JobState.COMPLETED, move.at)",
        "True, move.at)",
        "a_job_fails_when_one_that_it_waits_for_does_not_complete",
    ),
    _of(
        "what follows for others is in the transaction of the move",
        "server/store/dependencies.py",
        "    if job.ended and move.before not in states.ENDED:\n",
        "    if False:\n",
        f"{_MODEL}test_a_crash_at_any_step_starts_none_too_early_and_leaves_none_waiting",
    ),
    _of(
        "a job that waits for others is not sent",
        "server/store/queue.py",
        "not_before = 0 AND hold IS NULL",
        "not_before = 0",
        f"{_MODEL}test_a_crash_at_any_step_starts_none_too_early_and_leaves_none_waiting",
    ),
    _store(
        "a job that is retried looks at what it depends on",
        "        return await _look_again(tx, job)\n",
        "        return job\n",
        "a_job_that_is_retried_waits_again_for_what_is_not_complete",
    ),
    _store(
        "nobody learns that another user has a job",
        "IN ({names}) AND user_id = :user_id",
        "IN ({names}) AND :user_id = :user_id",
        "what_is_not_there_or_anothers_is_refused_in_the_same_words",
    ),
    _store(
        "only what completed counts as completed once it is cleaned",
        "             AND events.before = 'Completed'\n",
        "",
        "a_cleaned_job_has_completed_all_the_same",
    ),
    _of(
        "a result that is needed is not cleaned",
        "server/store/moves.py",
        'only_if += f" AND NOT {dependencies.RESULT_NEEDED}"',
        "pass",
        f"{_DEPENDENCIES}a_result_that_is_needed_is_not_cleaned",
    ),
    _of(
        "what is waited for is not forgotten",
        "server/store/retention.py",
        "    AND NOT {NEEDED}\n",
        "",
        f"{_DEPENDENCIES}what_is_waited_for_is_neither_deleted_nor_forgotten",
    ),
    _of(
        "jobs that wait for others are found through an index of their own",
        "server/store/migrations.py",
        "jobs_waiting ON jobs (state, hold, id)",
        "jobs_waiting ON jobs (name)",
        "tests/contract/test_store_cost.py"
        "::test_sweeps_and_lists_cost_the_same_however_much_there_is",
    ),
    _of(
        "children of an array get what their parent was to get",
        "server/store/children.py",
        "CASE WHEN child.array_index IS NULL THEN '[]' ELSE inputs_from END",
        "'[]'",
        f"{_DEPENDENCIES}the_children_of_an_array_get_what_their_parent_was_to_get",
    ),
    _of(
        "a merged ZIP has safe names only",
        "shared/files/archives/merge.py",
        'safe_path(prefix + entry.name.removesuffix("/" if entry.is_folder else ""))',
        'prefix + entry.name.removesuffix("/" if entry.is_folder else "")',
        f"{_MERGE}a_source_with_names_that_are_not_safe_is_refused",
    ),
    _of(
        "a merged ZIP is as long as was said",
        "shared/files/archives/merge.py",
        "        if waiting != length:\n",
        "        if False:\n",
        f"{_MERGE}a_source_that_is_another_one_by_now_ends_the_copy",
    ),
    _of(
        "dependencies are the caller's to see",
        "server/stages/accept.py",
        "if job.user_id != request.user_id or not visible.has(job):",
        "if job.user_id != request.user_id:",
        "tests/contract/test_dependencies_http.py::test_jobs_of_others_are_as_if_there_were_none",
    ),
    _of(
        "every child has a run.sh",
        "server/stages/deferral.py",
        "    if missing := sorted(folders - runnable):\n",
        "    if missing := []:\n",
        f"{_FAN_OUT}what_is_wrong_with_the_folders_is_said",
    ),
)
