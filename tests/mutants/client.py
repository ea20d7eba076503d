"""What SDK and command line promise to those who use them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_TESTS: Final = "tests/unit/ferryman/test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(
        "client", protection, f"ferryman/{file}", old, new, tuple(_TESTS + t for t in tests)
    )


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "client",
        "ferryman dev refuses agents of the settings that it cannot start",
        "ferryman/dev.py",
        "    if len(here) != 1:",
        "    if not here:",
        (
            "tests/e2e/test_dev.py::test_"
            "agents_of_the_settings_that_it_cannot_start_are_refused_by_name",
        ),
    ),
    # ------------------------------------------------------------------ uploads
    _of(
        "a repeated upload has the key of the first",
        "upload.py",
        '"Idempotency-Key": self._key,',
        '"Idempotency-Key": f"{self._key}{id(object())}{self._transport.clock.monotonic()}",',
        "submit.py::test_a_lost_answer_is_asked_for_again_under_the_same_key",
    ),
    _of(
        "a lost answer is looked up",
        "upload.py",
        "if self._sent_all and self._fresh_key:",
        "if False:",
        "lost_answers.py::test_a_job_that_is_there_is_found_and_the_bundle_is_sent_once",
    ),
    _of(
        "only a key of our own is looked up",
        "upload.py",
        "if self._sent_all and self._fresh_key:",
        "if self._sent_all:",
        "lost_answers.py::test_a_key_that_the_caller_chose_may_be_another_bundles_so_the_server_compares",
    ),
    _of(
        "a slow server is given time",
        "upload.py",
        "(self._transport.timeout if self._timed_out else 0)",
        "0",
        "lost_answers.py::test_a_server_that_is_still_at_work_is_given_time",
    ),
    _of(
        "a large upload can be refused before it is sent",
        "upload.py",
        "expect_continue=self._form.size > BATCH,",
        "ask_first=False,",
        "submit.py::test_a_refusal_before_the_body_saves_sending_it",
    ),
    _of(
        "a file that changes is not sent as something between",
        "upload.py",
        "    if info.st_size != part.size or now != part.identity:",
        "    if False:",
        "submit.py::test_a_file_that_changes_while_it_is_sent_is_an_error_and_not_sent_again",
    ),
    _of(
        "a string is one tag",
        "upload.py",
        "[tags] if isinstance(tags, str) else list(tags)",
        "list(tags)",
        "submit.py::test_a_string_is_one_tag_and_numbers_have_no_exponent",
    ),
    _of(
        "links do not send what was not named",
        "bundle.py",
        "if not target.is_relative_to(root):",
        "if False:",
        "bundle.py::test_links_out_to_folders_and_to_nowhere_are_refused",
    ),
    _of(
        "pipes are not opened",
        "bundle.py",
        "if not stat.S_ISREG(info.st_mode):",
        "if stat.S_ISDIR(info.st_mode):",
        "bundle.py::test_pipes_and_sockets_are_refused_without_opening_them",
    ),
    _of(
        "names that no server takes",
        "bundle.py",
        "if _UNSAFE.search(name):",
        "if False:",
        "bundle.py::test_unsafe_names_are_refused",
    ),
    _of(
        "and no others",
        "bundle.py",
        "|(^|/)\\.{0,2}(/|$)",
        "|(^|/)\\.{0,3}(/|$)",
        "bundle.py::test_names_that_only_other_systems_mind_are_left_to_the_server",
    ),
    # ------------------------------------------------------------------ the connection
    _of(
        "a server that is away is tried again",
        "transport.py",
        "if now + pause - away_since > self.retry_for:",
        "if True:",
        "following.py::test_waiting_survives_a_restart_of_the_server",
    ),
    _of(
        "tries end",
        "transport.py",
        "if now + pause - away_since > self.retry_for:",
        "if now + pause - away_since > 100 * self.retry_for:",
        "submit.py::test_tries_end_after_retry_for",
    ),
    _of(
        "another web server is no refusal",
        "transport.py",
        "if answer.status not in _PROXY_STATUSES:",
        "if False:",
        "cli_refusals.py::test_another_web_server_is_76",
    ),
    _of(
        "a proxy's words are passed on",
        "transport.py",
        "frozenset({401, 403, 413, 429})",
        "frozenset({401, 403, 429})",
        "cli_refusals.py::test_a_proxys_own_words_are_passed_on",
    ),
    _of(
        "a token that no header can carry",
        "transport.py",
        "if not _VISIBLE.fullmatch(token):",
        "if False:",
        "cli_refusals.py::test_a_token_that_no_header_can_carry_is_bad_usage",
    ),
    _of(
        "the environment's proxy, but not for this machine",
        "transport.py",
        "if is_this_machine(host) or",
        "if",
        "submit.py::test_a_proxy_of_the_environment_is_used_but_not_for_this_machine",
    ),
    _of(
        "errors can be pickled",
        "errors.py",
        "return _unpickled, (type(self), self.args, self.__dict__)",
        "return super().__reduce__()",
        "errors.py::test_every_error_comes_back_from_pickle_as_it_was",
        "errors.py::test_an_error_of_a_process_pool_reaches_its_caller",
    ),
    # ------------------------------------------------------------------ results
    _of(
        "what arrived is what was sent",
        "download.py",
        "if self._expected not in {None, got}:",
        "if False:",
        "download.py::test_a_damaged_file_is_fetched_once_more",
        "download.py::test_a_file_that_stays_damaged_leaves_nothing_behind",
    ),
    _of(
        "a half file is removed",
        "download.py",
        "            self._partial.unlink(missing_ok=True)\n",
        "",
        "download.py::test_a_file_that_stays_damaged_leaves_nothing_behind",
    ),
    _of(
        "a download goes on where it broke off",
        "download.py",
        'headers = {"Range": f"bytes={self._received}-", "If-Range": self._etag}',
        "await self._restart()",
        "download.py::test_a_broken_download_goes_on_where_it_broke_off",
    ),
    _of(
        "two files are not joined",
        "download.py",
        '"If-Range": self._etag',
        '"X-If-Range": self._etag',
        "download.py::test_another_file_under_the_same_address_starts_anew",
    ),
    _of(
        "a page is no result",
        "download.py",
        "if media not in {None, answer.content_type}:",
        "if False:",
        "download.py::test_a_page_is_no_result",
    ),
    # ------------------------------------------------------------------ the command line
    _of(
        "a job's own exit code",
        "cli/exits.py",
        "return job.exit_code & 0xFF or FAILED",
        "return FAILED",
        "cli.py::test_the_exit_code_of_a_job",
    ),
    _of(
        "nothing a job writes steers the terminal",
        "cli/show.py",
        'c if c.isprintable() or c in "\\n\\t" else',
        "c if True else",
        "cli_refusals.py::test_nothing_a_job_writes_steers_the_terminal",
        "cli.py::test_waiting_shows_states_and_times_on_stderr_and_takes_the_jobs_exit_code",
    ),
    _of(
        "why a job waits",
        "cli/follow.py",
        'if reason not in {"", last_reason}:',
        "if False:",
        "cli.py::test_waiting_says_once_why_a_job_waits",
    ),
    _of(
        "the ID stays on a narrow terminal",
        "cli/show.py",
        "min_width=widths[at] if at in kept else None,",
        "",
        "cli.py::test_a_narrow_terminal_cuts_messages_before_numbers",
    ),
    _of(
        "an attempt that has not ended may yet have a result",
        "transport.py",
        "NotReady if problem.code in _NOT_YET else NoResult",
        "NoResult",
        "attempts.py::test_what_an_attempt_left_is_saved_under_its_number",
        "attempts.py::test_the_log_of_an_attempt_that_waits_comes_with_the_command_for_what_there_is",
    ),
    _of(
        "attempt 0 is not the job",
        "client.py",
        "        if attempt is not None:\n            name, query",
        "        if attempt:\n            name, query",
        "attempts.py::test_what_an_attempt_left_is_saved_under_its_number",
    ),
    _of(
        "a running attempt does not hide the logs of the one before",
        "follow.py",
        "reversed(with_logs or attempts)",
        "reversed(attempts)",
        "attempts.py::test_the_log_is_that_of_the_latest_attempt_that_has_one",
        "attempts.py::test_logs_of_an_earlier_attempt_are_said_to_be_so",
    ),
    _of(
        "a job that ended without an attempt gets none",
        "follow.py",
        "NoResult if job.ended else NotReady",
        "NotReady",
        "attempts.py::test_why_there_is_no_log_is_an_error_of_its_own_kind",
    ),
    _of(
        "a proxy's page is no log",
        "follow.py",
        'if answer.content_type != "text/plain":',
        "if False:",
        "attempts.py::test_a_page_is_no_log",
    ),
    _of(
        "no log controls the terminal",
        "cli/results.py",
        "show.printable(text) if sys.stdout.isatty() else",
        "",
        "attempts.py::test_logs_do_not_control_a_terminal",
    ),
    _of(
        "a log in a file is as the job wrote it",
        "cli/results.py",
        "else text.encode()",
        "else text",
        "attempts.py::test_logs_are_printed_as_they_are_where_nobody_looks",
    ),
    _of(
        "a list that was cut says so",
        "cli/jobs.py",
        "    if more:\n",
        "    if False:\n",
        "cli.py::test_a_list_that_is_cut_says_so",
    ),
    _of(
        "the server may be named before the command",
        "cli/__init__.py",
        "words = command_first(sys.argv[1:])",
        "words = sys.argv[1:]",
        "cli.py::test_which_server_may_be_said_before_the_command",
    ),
    _of(
        "a folder's own modules are not taken for ours",
        "cli/programs.py",
        '[sys.executable, "-P", "-m", module, *arguments]',
        '[sys.executable, "-m", module, *arguments]',
        "cli_refusals.py::test_programs_get_every_argument_and_take_the_place_of_this_process",
    ),
    _of(
        "what is missing is said",
        "cli/programs.py",
        "    if missing:\n",
        "    if False:\n",
        "cli_refusals.py::test_without_the_extra_a_program_says_what_to_install",
    ),
    # ------------------------------------------------------------------ results and many jobs
    _of(
        "an own CA is trusted in place of the system's",
        "transport.py",
        "ssl.create_default_context(cafile=ca_file)",
        "ssl.create_default_context()",
        "connection.py::test_an_own_ca_is_trusted_and_no_other_one",
    ),
    _of(
        "a result writes nothing outside its folder",
        "download.py",
        'part in ("", ".", "..") or ',
        "",
        "results.py::test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written",
    ),
    _of(
        "on Windows, too",
        "download.py",
        'if windows and (":" in part or not part.strip(" .")):',
        "if False:",
        "results.py::test_on_windows_more_names_lead_elsewhere",
    ),
    _of(
        "a callback of a synchronous client does not wait for itself",
        "sync.py",
        "        if threading.current_thread() is self._thread:\n            why",
        "        if False:\n            why",
        "following.py::test_a_callback_of_a_synchronous_client_cannot_call_it",
    ),
    _of(
        "a name is not taken for another one",
        "upload.py",
        """set('%"\\\\').isdisjoint(filename)""",
        "True",
        "submit.py::test_names_fields_and_contents_arrive_as_they_are",
    ),
    _of(
        "what failed is taken out of an open file again",
        "download.py",
        "        self._file.seek(self._start)\n        self._file.truncate()",
        "        self._file.seek(self._start)",
        "file_objects.py::test_what_failed_leaves_an_open_file_as_it_was",
    ),
    _of(
        "so many uploads at once and no more",
        "follow.py",
        "if len(running) >= at_once:",
        "if len(running) > at_once:",
        "submit_many.py::test_a_bundle_runs_with_each_input_side_by_side",
    ),
    _of(
        "who stops early ends the uploads",
        "follow.py",
        "            task.cancel()\n",
        "            pass\n",
        "submit_many.py::test_who_stops_early_ends_what_still_runs",
    ),
    _of(
        "waits keep no other request waiting",
        "transport.py",
        "session = self._held_session if hold_s else self._session",
        "session = self._session",
        "following.py::test_waiting_for_many_jobs_keeps_nobody_else_waiting",
    ),
    _of(
        "a limit of requests is waited for",
        "transport.py",
        '"rate_limited", ',
        "",
        "submit.py::test_a_limit_of_requests_is_waited_for_but_not_for_longer_than_asked",
    ),
)
