"""When jobs are sent or given up, why they wait, and what the end of an attempt stores."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SEND: Final = "server/stages/send.py"
_WAITING: Final = "server/stages/waiting.py"
_END: Final = "server/domain/outcome.py"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"tests/contract/test_dispatch.py::test_{test}" for test in tests)
    return Mutant("send", protection, file, old, new, names)


def outcome(protection: str, old: str, new: str, *tests: str, file: str = _END) -> Mutant:
    names = tuple(f"tests/unit/server/domain/test_outcome.py::test_{test}" for test in tests)
    return Mutant("outcome", protection, file, old, new, names)


_TOO_LONG: Final = "a_job_that_waits_too_long_fails_with_the_reason"
_PLACE: Final = "a_job_shows_its_position_and_why_it_waits"
_FACTS: Final = "what_an_attempt_used_and_said_is_kept_with_it"

MUTANTS: Final = (
    Mutant(
        "dispatch",
        "a job that comes while the store is asked what is queued is sent at once",
        "server/stages/hints.py",
        "if look >= self._looks}",
        "if False}",
        (
            "tests/unit/server/stages/test_hints.py::test_a_job_that_comes_during_a_look_is_not_forgotten",
        ),
    ),
    Mutant(
        "dispatch",
        "what another server has claimed does not count as queued for ever",
        "server/stages/hints.py",
        "        for service in self._queued.keys() - found:",
        "        for service in ():",
        (
            "tests/unit/server/stages/test_hints.py::test_what_another_server_claimed_is_forgotten_at_a_look",
        ),
    ),
    Mutant(
        "dispatch",
        "a retry that comes due between two looks waits for none",
        "server/stages/hints.py",
        "                self._delayed[job.id] = job.not_before\n",
        "                pass\n",
        ("tests/unit/server/stages/test_hints.py::test_a_job_that_came_due_is_told_of_once",),
    ),
    Mutant(
        "dispatch",
        "the Sender is woken when a slot is free and jobs wait",
        "server/loops/wakeups.py",
        "        if self.hints.queued():",
        "        if False:",
        (
            "tests/unit/server/test_wakeups.py::test_the_sender_is_woken_when_there_may_be_something_to_send",
        ),
    ),
    of(
        "queue_timeout is kept",
        _SEND,
        "moved += await self._give_up_overdue(service)",
        "pass",
        _TOO_LONG,
    ),
    of(
        "without a queue_timeout a job waits for ever",
        _SEND,
        "if most_s else None",
        "if True else None",
        _TOO_LONG,
    ),
    of(
        "a waiting job shows its position",
        _WAITING,
        "position = 1 + before.get(job.id, 0)",
        "position = 1",
        _PLACE,
    ),
    of(
        "a waiting job shows that the quota of its user is used",
        _WAITING,
        "if mine >= (most := service.runs_of(job.user_id)):",
        "if (most := 0):",
        _PLACE,
    ),
    of(
        "a waiting job shows that the quota of its service is used",
        _WAITING,
        "if all_users >= (most := service.max_runs):",
        "if (most := 0):",
        _PLACE,
    ),
    of(
        "a waiting job shows that its service is paused",
        _WAITING,
        "if service.paused:",
        "if False:",
        "a_paused_service_is_claimed_by_nobody_and_its_jobs_say_so",
    ),
    of(
        "a paused service is not asked for",
        _SEND,
        "if service is None or service.paused:",
        "if service is None:",
        "a_paused_service_is_claimed_by_nobody_and_its_jobs_say_so",
    ),
    of(
        "a waiting job shows when it is tried again",
        _WAITING,
        "if job.not_before > now:",
        "if False:",
        "a_job_that_is_to_be_tried_again_shows_when_and_is_sent_then",
    ),
    of(
        "retries that are left are counted",
        "server/http/documents.py",
        "(rules.retries if rules else 0) - job.retries_used",
        "(rules.retries if rules else 0)",
        "a_job_that_is_to_be_tried_again_shows_when_and_is_sent_then",
    ),
    outcome("the exit code is kept", '        "exit_code": payload.exit_code,\n', "", _FACTS),
    outcome("the usage is kept", '        "usage": payload.usage,\n', "", _FACTS),
    outcome(
        "the enforcement is kept",
        '        "enforcement": payload.enforcement,\n',
        "",
        _FACTS,
    ),
    outcome(
        "an attempt keeps what it used and said",
        "facts | _facts(payload)",
        "facts",
        "what_an_attempt_used_and_said_is_kept_with_it",
    ),
    outcome(
        "a job shows when it started, not when that was received",
        "    at = started_at(job, payload, now) if started else now\n",
        "    at = now\n",
        "every_step_on_the_way_is_made_with_its_time",
        file="server/domain/outcome.py",
    ),
)
