"""What users ask for of jobs: retries by hand, deletes; and how long jobs wait."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_REQUESTS: Final = "tests/unit/server/stages/test_requests.py::test_"
_TIMES: Final = "tests/unit/server/stages/test_waiting_times.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("requests", protection, f"server/{file}", old, new, tests)


MUTANTS: Final = (
    _of(
        "a job whose files are gone is not retried",
        "domain/ending.py",
        "if job.state is JobState.CLEANED or (job.ended and job.bundle is None):",
        "if False:",
        f"{_REQUESTS}what_cannot_be_retried_is_refused_with_the_reason[Cleaned-bundle_gone]",
    ),
    _of(
        "a new run has fresh retries",
        "domain/ending.py",
        '    "retries_used": 0,\n',
        "",
        f"{_REQUESTS}a_new_run_has_fresh_retries",
    ),
    _of(
        "a new run shows no result of the former one",
        "domain/ending.py",
        '    "result": None,\n',
        "",
        f"{_REQUESTS}a_retried_job_begins_a_new_run_and_its_history_goes_on",
    ),
    _of(
        "a retried job does not expire while it waits",
        "domain/ending.py",
        '    "expires_at": None,\n    "dead_letter": False,\n',
        '    "dead_letter": False,\n',
        f"{_REQUESTS}a_retried_job_begins_a_new_run_and_its_history_goes_on",
    ),
    _of(
        "a job is retried by who may see it only",
        "stages/by_hand.py",
        "await read_job(self._jobs, principal, job_id)\n            service",
        "await self._jobs.get(job_id)\n            service",
        f"{_REQUESTS}a_retry_needs_a_service_and_room_in_the_queue_and_the_right_to_see_the_job",
    ),
    _of(
        "a retry by hand counts against the jobs that may wait",
        "store/requests.py",
        "if queued + again > most_queued:",
        "if False:",
        f"{_REQUESTS}a_retry_needs_a_service_and_room_in_the_queue_and_the_right_to_see_the_job",
    ),
    _of(
        "the end of a job that no agent reported is in the log, too",
        "store/jobs.py",
        "        if job is not None:\n            self._moved(move, job)\n",
        "        if job is not None:\n            self._changed(job)\n",
        "tests/contract/test_accounting_log.py"
        "::test_each_attempt_and_each_end_is_one_line_that_can_be_charged_and_explained",
    ),
    _of(
        "a delete keeps a job that had not ended",
        "stages/by_hand.py",
        "            return await self._cancel(principal, job_id, patience_s)\n",
        "            await self._cancel(principal, job_id, patience_s)\n"
        "        return await self.forget(principal, job_id)\n",
        f"{_REQUESTS}a_job_that_has_not_ended_is_cancelled_by_a_delete_and_deleted_by_the_next",
    ),
    _of(
        "what could not be deleted at once is deleted later",
        "stages/clean.py",
        "deleted = await self._delete()",
        "deleted = 0",
        f"{_REQUESTS}a_job_whose_agent_is_away_is_forgotten_when_it_has_died_and_after_a_restart",
    ),
    _of(
        "a job has a queue timeout of its own",
        "store/queue.py",
        'f"queue_timeout_s > 0 AND {_DEADLINE} <= :now"',
        '"1 = 0"',
        f"{_TIMES}a_job_has_a_queue_timeout_of_its_own_up_to_its_services",
    ),
    _of(
        "the delay of a retry is no time in the queue",
        "domain/ending.py",
        "waits_since: Micros | None = now + delay if delay else None",
        "waits_since: Micros | None = None",
        f"{_TIMES}the_delay_of_a_retry_is_no_time_in_the_queue",
    ),
)
