"""What the server decides: retries, endings."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RETRY: Final = "server/domain/retry.py"
_ENDING: Final = "server/domain/ending.py"
_DOMAIN: Final = "tests/unit/server/domain/test_"
_TIMES: Final = "tests/contract/test_job_times_http.py::test_"
_REASONS: Final = "tests/contract/test_retry_reasons_http.py::test_"


def retry(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"{_DOMAIN}retry.py::test_{test}" for test in tests)
    return Mutant("retry", protection, _RETRY, old, new, names)


def outcome(protection: str, old: str, new: str, *tests: str, of: str = "outcome") -> Mutant:
    names = tuple(f"{_DOMAIN}{of}.py::test_{test}" for test in tests)
    return Mutant("outcome", protection, _ENDING, old, new, names)


_LONGER: Final = "each_retry_waits_longer_and_the_last_delay_repeats_until_none_are_left"
_BUDGET: Final = "an_interruption_has_a_budget_of_its_own_and_waits_longer_each_time"
_AGAIN: Final = "a_job_that_is_queued_again_belongs_to_no_agent_and_counts_what_it_used"

MUTANTS: Final = (
    retry(
        "the last delay of a retry repeats",
        "delays[min(used, len(delays) - 1)]",
        "delays[used % len(delays)]",
        _LONGER,
    ),
    retry(
        "retries are counted",
        "delay_s(rules, job.retries_used, uniform), job.retries_used + 1",
        "delay_s(rules, job.retries_used, uniform), job.retries_used",
        _LONGER,
    ),
    retry(
        "retries end",
        "job.retries_used >= rules.retries or",
        "job.retries_used > rules.retries or",
        _LONGER,
    ),
    retry(
        "only the named reasons are retried",
        " or not names & rules.retry_on",
        "",
        "a_failure_is_retried_for_the_reasons_and_exit_codes_that_the_service_names",
    ),
    retry(
        "exit codes can be named",
        'names = {str(reason), f"exit:{exit_code}"}',
        "names = {str(reason)}",
        "a_failure_is_retried_for_the_reasons_and_exit_codes_that_the_service_names",
    ),
    retry(
        "interruptions wait longer each time",
        "_INFRA_DELAYS_S[min(job.infra_used, len(_INFRA_DELAYS_S) - 1)]",
        "_INFRA_DELAYS_S[0]",
        _BUDGET,
    ),
    retry(
        "the budget of interruptions ends",
        "job.infra_used >= service.infra_retries",
        "job.infra_used > service.infra_retries",
        _BUDGET,
        "with_no_infra_retries_no_bundle_is_started_twice",
    ),
    outcome(
        "results expire by the end of their job",
        "expires_at(job, service, now)",
        "expires_at(job, service, job.created_at)",
        "success_says_when_it_ended_and_when_it_expires",
    ),
    outcome(
        "a job that is queued again belongs to no agent",
        '        "agent": None,\n',
        "",
        _AGAIN,
    ),
    outcome(
        "a job that is queued again has no payload",
        '        "payload_id": None,\n',
        "",
        _AGAIN,
    ),
    Mutant(
        "outcome",
        "a job keeps its first start",
        "server/domain/outcome.py",
        "job.started_at or at",
        "at",
        (f"{_TIMES}a_job_has_the_first_start_and_each_attempt_its_own",),
    ),
    Mutant(
        "document",
        "a job that has completed has its progress full",
        "server/http/documents.py",
        "said.total or said.current",
        "said.current",
        (f"{_TIMES}a_completed_job_has_its_progress_full",),
    ),
    Mutant(
        "document",
        "a try that failed is in the history with its reason",
        "server/domain/jobs.py",
        "reason=move.reason,",
        "reason=None,",
        (f"{_TIMES}a_try_that_failed_is_in_the_history_with_its_reason",),
    ),
    outcome(
        "a retry waits for its delay",
        "now + delay if delay else 0",
        "0",
        _AGAIN,
    ),
    outcome(
        "a job that is to be cancelled is not queued again",
        "    if job.cancel_requested_at is not None:\n        return end(",
        "    if False:\n        return end(",
        "a_job_that_is_to_be_cancelled_is_not_queued_again",
    ),
    outcome(
        "a job without budget fails",
        "if again is None and job.cancel_requested_at is None:",
        "if False:",
        "an_interrupted_attempt_is_tried_again_while_there_is_budget",
    ),
    Mutant(
        "retry",
        "a failure with retries left says why it is not tried again",
        _RETRY,
        "    if left <= 0:\n",
        "    if left:\n",
        (f"{_REASONS}a_failure_with_retries_left_says_why_it_was_not_tried_again",),
    ),
    Mutant(
        "retry",
        "what would be the same next time cannot be asked for",
        "server/domain/retry_policy.py",
        "if retried and text in NEVER:",
        "if False:",
        (f"{_REASONS}a_reason_that_is_never_retried_is_refused",),
    ),
    Mutant(
        "document",
        "a document shows the times of its service",
        "server/http/documents.py",
        "    if service is not None:  # what holds",
        "    if False:  # what holds",
        (f"{_TIMES}a_document_shows_the_times_of_the_service_where_the_upload_gave_none",),
    ),
    Mutant(
        "retry",
        "an upload hears which reasons its list leaves out",
        "server/domain/upload_fields.py",
        "        if without:\n",
        "        if False:\n",
        (f"{_REASONS}the_answer_to_an_upload_says_what_its_list_leaves_out",),
    ),
    retry(
        "a job asks to be tried later so many times only",
        "if job.later_used >= service.retry_later_limit:",
        "if False:",
        "a_job_asks_to_be_tried_later_as_often_as_its_service_allows",
    ),
    outcome(
        "the queue timeout of a job that is tried later goes on",
        "    if again.waits_on:\n",
        "    if False:\n",
        "a_job_that_asks_to_be_tried_later_keeps_its_retries_and_its_place",
        of="attempt_end",
    ),
    outcome(
        "only failures for good are dead letters",
        "if to is JobState.FAILED and service.dead_letter and job.parent_id is None:",
        "if service.dead_letter and job.parent_id is None:",
        "a_failure_for_good_is_a_dead_letter_with_a_time_of_its_own",
        of="attempt_end",
    ),
    Mutant(
        "outcome",
        "a time of an agent is taken as so long after its intake",
        "server/domain/outcome.py",
        "        at = job.submitted_at + at - from_iso(payload.created_at)\n",
        "        pass\n",
        (f"{_DOMAIN}attempt_end.py::test_an_agents_clock_does_not_matter",),
    ),
    Mutant(
        "outcome",
        "a time of an agent is never in the future",
        "server/domain/outcome.py",
        "return min(now, max(since, at))",
        "return max(since, at)",
        (f"{_DOMAIN}attempt_end.py::test_no_step_is_before_another_or_in_the_future",),
    ),
    Mutant(
        "outcome",
        "a resubmitted attempt is counted nowhere",
        "server/domain/outcome.py",
        'service.on_shutdown == "resubmit"',
        "False",
        (f"{_DOMAIN}attempt_end.py::test_a_resubmitted_attempt_is_counted_nowhere",),
    ),
    Mutant(
        "outcome",
        "a job that a stopping agent ended is not tried again",
        "server/domain/outcome.py",
        'service.on_shutdown == "stop"',
        "False",
        (f"{_DOMAIN}attempt_end.py::test_a_shutdown_ends_the_job_where_its_service_says_stop",),
    ),
)
