"""What running jobs say, and who may follow it."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "tests/contract/store/test_live.py::test_"
_STAGE: Final = "tests/unit/server/stages/test_progress.py::test_"
_EVENTS: Final = "tests/contract/test_events_http.py::test_"
_LOGS: Final = "tests/contract/test_logs_http.py::test_"
_HISTORY: Final = "tests/unit/server/domain/test_history.py::test_"


def _mutant(protection: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant("live", protection, f"server/{file}", old, new, (test,))


MUTANTS: Final = (
    _mutant(
        "only the agent that has the attempt reports it",
        "store/events.py",
        "AND agent = :agent ",
        "",
        f"{_STORE}nothing_is_written_about_what_does_not_run_there",
    ),
    _mutant(
        "a report under a lost lease is refused",
        "store/events.py",
        " AND {leases.HELD} RETURNING",
        " RETURNING",
        f"{_STORE}nothing_is_written_about_what_does_not_run_there",
    ),
    _mutant(
        "a report is about an attempt that runs",
        "store/events.py",
        " AND state = 'Running'",
        "",
        f"{_STORE}nothing_is_written_about_what_does_not_run_there",
    ),
    _mutant(
        "a notice is one event, however often it is reported",
        "store/events.py",
        "unwritten = (*live.notices[notices:], *outputs)",
        "unwritten = (*live.notices, *outputs)",
        f"{_STORE}what_was_said_before_is_no_event_again",
    ),
    _mutant(
        "no event of run.sh has the name of one of ours",
        "domain/live.py",
        "one.event if OWN_EVENT.fullmatch(one.event) else",
        "one.event or",
        f"{_EVENTS}what_run_sh_names_and_gives_as_json_is_stored_as_given",
    ),
    _mutant(
        "an event of run.sh is one, however often it is reported",
        "store/events.py",
        " OR event NOT LIKE 'job.%'",
        "",
        f"{_EVENTS}what_run_sh_names_and_gives_as_json_is_stored_as_given",
    ),
    _mutant(
        "folding a send that failed leaves other events alone",
        "store/moves.py",
        " AND before IS NOT NULL",
        "",
        f"{_STORE}sends_that_fail_alike_are_folded_around_other_events",
    ),
    _mutant(
        "an end that was reported is not replaced by a report from before it",
        "domain/outcome.py",
        "    if known.status in ENDED:\n        return False\n",
        "",
        f"{_STAGE}a_report_after_the_end_changes_nothing",
    ),
    _mutant(
        "events about progress get fewer with time",
        "domain/live.py",
        "max(_EVERY_S, age_s / _SLOWER)",
        "_EVERY_S",
        f"{_STAGE}events_about_progress_stay_few",
    ),
    _mutant(
        "an agent's numbers are numbers",
        "domain/live.py",
        "math.isfinite(one)",
        "one is not None",
        f"{_STAGE}an_agent_may_report_anything",
    ),
    _mutant(
        "what the agent lists after an absence is compared with the job",
        "stages/get.py",
        "        self.progress.forget_agent(agent.name)\n",
        "",
        f"{_STAGE}a_job_that_was_unknown_runs_again_by_what_its_agent_lists",
    ),
    _mutant(
        "a page of all events looks at a bounded number",
        "store/events.py",
        "WHERE seq > :after ORDER BY seq LIMIT :slice",
        "WHERE seq > :after ORDER BY seq",
        f"{_EVENTS}a_page_of_all_events_looks_at_a_bounded_number",
    ),
    _mutant(
        "a caller sees events of its own jobs only",
        "stages/read.py",
        "return await jobs.all_events(visible, after, limit)",
        "return await jobs.all_events(where, after, limit)",
        "tests/contract/test_access.py::test_events_are_shown_to_who_may_see_their_job",
    ),
    _mutant(
        "open streams are bounded",
        "http/event_stream.py",
        "with context.waiting(request), changes as changed:",
        "with changes as changed:",
        f"{_EVENTS}open_streams_are_counted_as_waits",
    ),
    _mutant(
        "a log is followed into its result",
        "http/logs.py",
        "if offset < stored.size:",
        "if offset == 0:",
        f"{_LOGS}a_followed_log_goes_on_from_the_agent_into_the_result",
    ),
    _mutant(
        "an offset behind the end is refused",
        "api/logs.py",
        "if start > size:",
        "if start > size + 1:",
        f"{_LOGS}what_cannot_be_shown_is_refused_with_a_reason",
    ),
    _mutant(
        "a clock that was set back makes no time negative",
        "domain/jobs.py",
        "max(0, end - move.at)",
        "(end - move.at)",
        f"{_HISTORY}a_clock_that_was_set_back_makes_no_time_negative",
    ),
)
