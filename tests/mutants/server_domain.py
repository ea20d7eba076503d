"""What the server decides: retries, endings."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_RETRY: Final = "server/domain/retry.py"
_ENDING: Final = "server/domain/ending.py"
_DOMAIN: Final = "tests/unit/server/domain/test_"


def retry(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"{_DOMAIN}retry.py::test_{test}" for test in tests)
    return Mutant("retry", protection, _RETRY, old, new, names)


def outcome(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"{_DOMAIN}outcome.py::test_{test}" for test in tests)
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
        "job.infra_used, job.retries_used + 1)",
        "job.infra_used, job.retries_used)",
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
        "now + round(service.expires_after_s * SECOND)",
        "job.created_at + round(service.expires_after_s * SECOND)",
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
    outcome(
        "a job that is queued again has not started",
        '        "started_at": None,\n',
        "",
        _AGAIN,
    ),
    outcome(
        "a retry waits for its delay",
        "now + delay if delay else 0",
        "0",
        _AGAIN,
    ),
    outcome(
        "a job that is to be cancelled is not queued again",
        '    if job.cancel_requested_at is not None:\n        message = f"cancelled',
        '    if False:\n        message = f"cancelled',
        "a_job_that_is_to_be_cancelled_is_not_queued_again",
    ),
    outcome(
        "a job without budget fails",
        "if again is None and job.cancel_requested_at is None:",
        "if False:",
        "an_interrupted_attempt_is_tried_again_while_there_is_budget",
    ),
)
