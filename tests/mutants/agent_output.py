"""What run.sh says while it runs: commands, live values, silence, trying later, followed logs."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import BOX, Mutant, of

_OUTPUT: Final = "tests/unit/client_agent/output/test_"
_ATTEMPTS: Final = "tests/unit/client_agent/run/test_live_attempts.py::test_"
_LOGS: Final = "tests/contract/test_agent_logs.py::test_"
_CAPTURE: Final = f"{BOX}process/test_log_capture.py::test_"

MUTANTS: Final[tuple[Mutant, ...]] = (
    of(
        "output",
        "a line that is too long takes no memory",
        "output/live.py",
        "line is not None and len(line) <= MAX_LINE and line[:2]",
        "line is not None and line[:2]",
        f"{_OUTPUT}lines.py::test_the_start_of_a_line_that_is_too_long_is_not_kept",
    ),
    of(
        "output",
        "a command that is split over reads is put together",
        "output/live.py",
        "else self._begun + data)",
        "else data)",
        f"{_OUTPUT}lines.py::test_any_split_gives_the_same_lines",
        f"{_OUTPUT}lines.py::test_single_bytes_give_the_same_lines",
    ),
    of(
        "output",
        "numbers are finite and not too large",
        "output/commands.py",
        "if not 0 <= number <= MAX_NUMBER:",
        "if number < 0:",
        f"{_OUTPUT}commands.py::test_what_is_wrong_is_said",
    ),
    of(
        "output",
        "a key that is not understood is said",
        "output/commands.py",
        "if not (_NAME.fullmatch(key) if keys is None else key in keys):",
        "if False:",
        f"{_OUTPUT}commands.py::test_what_is_wrong_is_said",
    ),
    Mutant(
        "output",
        "JSON has a depth that every reader takes",
        "shared/json_text.py",
        "    if not left:\n",
        "    if False:\n",
        (f"{_OUTPUT}commands.py::test_what_is_wrong_is_said",),
    ),
    of(
        "output",
        "the meta of a job is in no result",
        "run/unpack.py",
        "        return frozenset({fingerprint(META, os.fstat(fd))})",
        "        return NOTHING",
        "tests/e2e/test_meta.py::test_run_sh_finds_the_meta_of_its_upload_in_a_file_that_no_result_has",
    ),
    of(
        "output",
        "all output values together have a limit",
        "output/live.py",
        "elif self._output_bytes + size > MAX_OUTPUT_BYTES:",
        "elif False:",
        f"{_OUTPUT}live.py::test_outputs_have_a_limit_of_bytes_which_counts_what_is_there_now",
    ),
    of(
        "output",
        "notices have a limit",
        "output/live.py",
        "if self._given == MAX_NOTICES:",
        "if False:",
        f"{_OUTPUT}live.py::test_notices_have_a_limit_and_the_last_one_says_so",
    ),
    of(
        "output",
        "values are reported at most twice a second",
        "output/outputs.py",
        "        due = max(due, self._last.get(payload_id, due - REPORT_S) + REPORT_S)\n",
        "",
        f"{_ATTEMPTS}values_are_reported_at_most_twice_a_second_and_only_the_latest",
    ),
    of(
        "output",
        "no report says that it runs once it may have ended",
        "output/outputs.py",
        "for kept in (self._running, self._reported, self._last, self._due):",
        "for kept in (self._last,):",
        f"{_ATTEMPTS}no_report_says_that_it_runs_once_it_may_have_ended",
    ),
    of(
        "output",
        "the values at the end are stored",
        "run/outcomes.py",
        "replace(outcome, live=output.doc_if_any())",
        "outcome",
        f"{_ATTEMPTS}a_running_payload_has_its_live_values_and_keeps_them_at_its_end",
    ),
    of(
        "output",
        "a limit or a cancel is not tried later",
        "run/outcomes.py",
        "if asked is None or not by_itself:",
        "if asked is None:",
        f"{_ATTEMPTS}a_limit_or_a_cancel_is_not_tried_later",
    ),
    of(
        "output",
        "silence is counted from the start of run.sh",
        "output/live.py",
        "    output.start()\n    process.go()\n",
        "    process.go()\n",
        f"{_ATTEMPTS}the_time_before_its_start_is_no_silence",
    ),
    of(
        "output",
        "what the agent does not read is no silence",
        "output/live.py",
        "if process.output_paused:",
        "if False:",
        f"{_ATTEMPTS}what_the_agent_does_not_read_is_no_silence",
    ),
    of(
        "output",
        "a flood of commands is read more slowly",
        "sandbox/process/log_capture.py",
        "pause_s = max(PAUSE_S, self._lines * LINE_PAUSE_S)",
        "pause_s = PAUSE_S",
        f"{_CAPTURE}many_lines_for_the_listener_are_read_more_slowly_and_none_is_lost",
    ),
    of(
        "output",
        "a log is that of one attempt",
        "api/requests.py",
        'if request.query.get("key") not in (None, payload.key):',
        "if False:",
        f"{_LOGS}logs_of_what_is_unknown_or_has_ended_are_not_here",
    ),
    of(
        "output",
        "who follows a log gets it to its end",
        "output/live.py",
        "        self.ended = True\n        for event in self._followers:\n            event.set()\n",
        "        self.ended = True\n",
        f"{_LOGS}who_follows_a_quiet_log_hears_of_the_end_at_once",
    ),
)
