"""Attempts and bundles as records of their own."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_ATTEMPTS: Final = "tests/contract/store/test_attempts.py::test_"
_LEASES: Final = "tests/contract/store/test_leases.py::test_"
_CRASHES: Final = (
    "tests/stateful/test_crash_points.py::test_a_crash_at_any_step_of_many_at_once_loses_none"
)
_BUNDLES: Final = "tests/contract/store/test_bundles.py::test_"


def _attempts(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"{_ATTEMPTS}{test}" for test in tests)
    return Mutant("attempts", protection, "server/store/attempts.py", old, new, names)


def _bundles(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(test if "::" in test else f"{_BUNDLES}{test}" for test in tests)
    return Mutant("bundles", protection, "server/store/bundles.py", old, new, names)


MUTANTS: Final = (
    _attempts(
        "an attempt that no agent took leaves none",
        "job.state is JobState.QUEUED and not move.reason:",
        "False:",
        "an_attempt_that_no_agent_took_leaves_none",
    ),
    _attempts(
        "an attempt that is followed by another has failed",
        '        values["state"] = JobState.FAILED\n',
        "        pass\n",
        "what_an_attempt_left_is_kept_when_another_one_follows",
    ),
    _attempts(
        "a late result does not replace another",
        "AND result_file IS NULL\n",
        "\n",
        "a_result_that_comes_late_is_its_attempts_and_no_others",
    ),
    _attempts(
        "a result comes after its attempt",
        "        AND ended_at IS NOT NULL\n        AND EXISTS",
        "        AND EXISTS",
        "a_result_that_comes_late_is_its_attempts_and_no_others",
    ),
    _attempts(
        "a late result of a cleaned job is not kept",
        "AND state != 'Cleaned')",
        ")",
        "files_of_cleaned_jobs_are_nobodys",
    ),
    _attempts(
        "an earlier attempt's result is not the job's",
        "WHERE id = :job_id AND attempt = :number AND ended_at IS NOT NULL",
        "WHERE id = :job_id",
        "a_result_that_comes_late_is_its_attempts_and_no_others",
    ),
    Mutant(
        "leases",
        "a job is not inserted for a server that was taken for dead",
        "server/store/inserts.py",
        '{f"WHERE {leases.HELD}" if lease is not None else ""}',
        "",
        (f"{_LEASES}a_server_that_was_taken_for_dead_inserts_no_job_with_its_file",),
    ),
    Mutant(
        "bulk",
        "results that are stored together are committed when a job refers to them",
        "server/stages/small_results.py",
        "        if any(moved):\n            pending.commit()\n",
        "",
        (_CRASHES,),
    ),
    Mutant(
        "bulk",
        "each of several results has its own place in the file",
        "server/stages/small_results.py",
        "fetched.sha256, offset)",
        "fetched.sha256, 0)",
        (_CRASHES,),
    ),
    Mutant(
        "bulk",
        "a result that was damaged among others is fetched alone",
        "server/agents/results.py",
        "if whole and head.size else None",
        "if head.size else None",
        (
            "tests/contract/test_bulk_client.py::test_what_is_damaged_or_gone_is_missing_from_the_others",
        ),
    ),
    _bundles(
        "a file of several results is kept while one of them is",
        "released - await _with_results(tx, released)",
        "released",
        f"{_ATTEMPTS}a_file_with_several_results_goes_with_the_last_job_that_has_one",
    ),
    _bundles(
        "an insert that is refused counts no reference",
        'await tx.rows("UPDATE bundles SET refs = refs - 1 WHERE file = :file", {"file": file})\n'
        '    gone = await tx.rows(\n        "DELETE FROM bundles WHERE file = :file AND refs <= 0',
        'gone = await tx.rows(\n        "DELETE FROM bundles WHERE file = :file AND refs <= 0',
        f"{_LEASES}a_server_that_was_taken_for_dead_inserts_no_job_with_its_file",
    ),
    Mutant(
        "bundles",
        "a bundle whose like was removed a moment ago is stored",
        "server/stages/accept.py",
        "                pass  # it was removed",
        "                raise  # it was removed",
        (
            "tests/contract/test_upload_http.py"
            "::test_an_upload_whose_content_was_removed_a_moment_ago_is_stored",
        ),
    ),
    _bundles(
        "a job refers to no bundle that is gone",
        "if shared else None",
        'if shared else Bundle("gone", 1, "d")',
        "a_bundle_without_a_file_of_its_own_shares_one_or_is_refused",
    ),
    _bundles(
        "a file that another job has stays",
        'if not left or left[0]["refs"] <= 0:',
        "if True:",
        "a_shared_file_goes_with_the_last_job_that_has_it",
    ),
    _bundles(
        "a file that nobody has goes",
        'if not left or left[0]["refs"] <= 0:',
        "if False:",
        "a_shared_file_goes_with_the_last_job_that_has_it",
    ),
    _bundles(
        "damaged bytes are shared no more",
        "UPDATE bundles SET shared = 0 WHERE",
        "UPDATE bundles SET shared = 1 WHERE",
        "damaged_bytes_are_shared_no_more",
    ),
)
