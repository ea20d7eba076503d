"""Which requests both programs accept, from where, and how fast."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PROBES: Final = "tests/contract/test_probes_http.py::test_"
_FRONT: Final = "tests/contract/test_front.py::test_"
_SLOW: Final = "tests/unit/shared/http/test_deadlines.py::test_"
_COUNT: Final = "tests/unit/shared/http/test_connections.py::test_"
_SET: Final = "tests/unit/shared/http/test_settings.py::test_"
_HTTP: Final = "shared/http/"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("gate", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "answers that a caller does not read are bounded",
        f"{_HTTP}protocol.py",
        "if mine + size > self._of_one:",
        "if False:",
        "tests/unit/shared/http/test_unread.py::"
        "test_a_caller_gets_no_more_than_it_may_leave_unread",
    ),
    _of(
        "answers that nobody reads are bounded in all",
        f"{_HTTP}protocol.py",
        "elif self._of.total() + size > self._of_all:",
        "elif False:",
        "tests/unit/shared/http/test_unread.py::"
        "test_all_together_get_one_answer_each_above_what_they_may_leave_unread",
    ),
    _of(
        "who has read all of its answers gets another one, whatever others leave unread",
        f"{_HTTP}protocol.py",
        "        if not mine:\n            return\n",
        "",
        "tests/unit/shared/http/test_unread.py::"
        "test_all_together_get_one_answer_each_above_what_they_may_leave_unread",
    ),
    _of(
        "an answer that was sent is not counted any more",
        f"{_HTTP}protocol.py",
        "                release()\n",
        "                pass\n",
        "tests/contract/test_reads_http.py::test_answers_that_are_not_read_are_bounded",
    ),
    _of(
        "what strangers ask for at once is made once",
        "server/api/openapi.py",
        "functools.cache(self._make)",
        "self._make",
        "tests/contract/test_openapi.py::"
        "test_it_is_made_once_for_all_who_ask_and_holds_up_no_upload",
    ),
    _of(
        "whoever issues many links gets no more than one share",
        "shared/principals.py",
        "return self.issuer or f",
        "return f",
        "tests/contract/test_reads_http.py::test_reads_of_one_user_do_not_hold_up_those_of_another",
    ),
    _of(
        "what strangers send moves no cursor",
        "shared/logs.py",
        "            event[name] = _escaped(value)\n",
        "            event[name] = value\n",
        "tests/unit/shared/test_logs.py::"
        "test_what_callers_send_neither_forges_lines_nor_moves_the_cursor",
    ),
    _of(
        "a name that somebody else points here is not answered",
        f"{_HTTP}middleware.py",
        "            self._check_host(request)\n",
        "",
        f"{_FRONT}a_name_that_somebody_else_points_here_is_not_answered",
    ),
    _of(
        "a stranger's page changes nothing",
        f"{_HTTP}middleware.py",
        "            self._check_origin(request)\n",
        "",
        f"{_FRONT}a_strangers_page_changes_nothing",
    ),
    _of(
        "an origin that only begins like a trusted one is foreign",
        f"{_HTTP}origins.py",
        "normal_origin(origin) in self._allowed else None",
        "any(origin.startswith(str(one)) for one in self._allowed) else None",
        f"{_FRONT}other_pages_are_refused_at_the_preflight",
    ),
    _of(
        "no codec that takes long decodes what strangers send",
        f"{_HTTP}request_body.py",
        'if name.lower().startswith("charset") and text.lower() not in _CHARSETS:',
        "if False:",
        f"{_FRONT}texts_come_in_three_charsets_and_no_other_one_is_looked_up",
        f"{_FRONT}a_charset_that_takes_long_to_decode_is_refused_unread",
    ),
    _of(
        "a parser of mail reads no long content type",
        f"{_HTTP}request_body.py",
        'if len(header) > _LONGEST_TYPE or not _TYPE.fullmatch(header) or "=?" in header:',
        "if False:",
        f"{_FRONT}a_content_type_that_is_dear_to_read_is_refused",
        "tests/unit/shared/http/test_request_body.py::test_what_is_dear_to_read_is_refused",
    ),
    _of(
        "programs get no pages",
        "server/http/problems.py",
        '"application/xhtml+xml" in headers.get("Accept", "")',
        '"text/html" in headers.get("Accept", "")',
        "tests/contract/test_browsers.py::test_programs_get_no_pages_whatever_they_accept",
    ),
    _of(
        "no field is read that is longer than it may be",
        "server/domain/upload_fields.py",
        "        check_length(name, text)\n",
        "",
        "tests/contract/test_upload_http.py::test_a_field_has_a_length",
    ),
    _of(
        "a body of JSON has no more values than a route takes",
        "server/http/params.py",
        "        _count(found)\n",
        "",
        "tests/contract/test_costly_requests.py::test_bodies_in_json",
    ),
    _of(
        "a form that is no text is refused",
        "server/web/routes.py",
        "except UnicodeDecodeError:",
        "except ZeroDivisionError:",
        "tests/contract/test_costly_requests.py::test_forms_of_pages",
    ),
    _of(
        "a form for strangers is small",
        "server/web/routes.py",
        "            _check_length(request)\n",
        "            pass\n",
        f"{_FRONT}a_form_for_strangers_is_small_and_says_how_long_it_is",
    ),
    _of(
        "a token is asked for",
        f"{_HTTP}middleware.py",
        "if not request[PRINCIPAL].authenticated and not is_open:",
        "if False:",
        f"{_FRONT}who_shows_no_token_is_not_let_in",
    ),
    _of(
        "a token for metrics is good for nothing else",
        f"{_HTTP}middleware.py",
        "if request[PRINCIPAL].role is Role.METRICS and not (safe and (is_open or path == METRICS)):",
        "if False:",
        "tests/contract/test_reload_agent.py::"
        "test_a_token_for_metrics_reads_metrics_and_is_refused_everywhere_else",
    ),
    _of(
        "whoever reads metrics cannot log in",
        "server/web/login.py",
        "if not found.authenticated or found.role is Role.METRICS:",
        "if not found.authenticated:",
        "tests/contract/test_login_pages.py::"
        "test_a_wrong_token_is_refused_with_the_reason_beside_the_field",
    ),
    _of(
        "Expect is answered after the guard, not before",
        f"{_HTTP}listener.py",
        "request_factory=hide_expect(server.request_factory)",
        "request_factory=server.request_factory",
        "tests/contract/test_upload_http.py::"
        "test_what_is_known_from_the_head_is_refused_before_the_body",
    ),
    _of(
        "short tokens are refused",
        "shared/settings/secrets.py",
        "if len(text) < MIN_LENGTH:",
        "if False:",
        f"{_SET}a_token_that_can_be_guessed_is_refused_at_start",
    ),
    _of(
        "a file of tokens without a token is refused",
        "shared/settings/secrets.py",
        "if not read:",
        "if False:",
        f"{_SET}a_file_without_tokens_is_refused_at_start",
    ),
    _of(
        "the server's file of tokens counts",
        "shared/settings/secrets.py",
        "found += read",
        "pass",
        f"{_SET}tokens_come_from_both_places",
    ),
    _of(
        "an agent's file of a token counts",
        "server/settings/agents.py",
        "return text.split()[0]",
        "return None",
        f"{_SET}the_token_for_an_agent_comes_from_its_file",
    ),
    _of(
        "a compressed body is not taken",
        f"{_HTTP}request_body.py",
        'if encoding not in ("", "identity"):',
        "if False:",
        f"{_FRONT}a_compressed_body_is_not_taken",
    ),
    _of(
        "every answer has its id",
        f"{_HTTP}middleware.py",
        "response.headers[ID_HEADER] = request.get(REQUEST_ID) or new_request_id()",
        "pass",
        f"{_FRONT}every_answer_has_an_id_of_its_own_and_so_has_its_line_in_the_log",
    ),
    _of(
        "an answer that broke off is not followed by another in its place",
        f"{_HTTP}middleware.py",
        "if request.writer.output_size:",
        "if False:",
        "tests/contract/test_attempts_http.py::"
        "test_a_log_that_cannot_be_unpacked_is_refused_or_ends_its_connection",
    ),
    _of(
        "refusals in the log are limited",
        f"{_HTTP}request_log.py",
        "count = self._denied.due() if limited else 0\n",
        "count = 0\n",
        f"{_FRONT}a_flood_of_refusals_does_not_fill_the_log",
    ),
    _of(
        "numbers of strangers are bounded",
        f"{_HTTP}numbers.py",
        " or len(text) > 64:\n        return None\n    digits = text.lstrip"
        '("0") or "0"\n    if len(digits) > _DIGITS:',
        ":\n        return None\n    digits = text\n    if False:",
        f"{_FRONT}numbers_that_are_none_are_refused",
    ),
    _of(
        "health is shown to callers with a token only",
        "server/api/server_status.py",
        "if request[PRINCIPAL].authenticated:",
        "if True:",
        f"{_FRONT}without_a_token_health_shows_only_whether_all_is_well[server]",
    ),
    _of(
        "agents and what is wrong are shown to operators only",
        "server/api/server_status.py",
        "    if may_use(request[PRINCIPAL], Area.AGENTS):",
        "    if request[PRINCIPAL].authenticated:",
        f"{_PROBES}users_see_neither_agents_nor_what_is_wrong",
    ),
    _of(
        "what is wrong with an agent's database is shown to operators only",
        "client_agent/api/routes.py",
        '"ok" if health.database == "ok" else "error"',
        "health.database",
        f"{_PROBES}a_failure_of_the_database_is_a_reason_and_its_words_are_the_operators[agent]",
    ),
    _of(
        "a server that stops is not ready",
        "server/api/server_status.py",
        "if context.watch.closing:",
        "if False:",
        f"{_PROBES}a_server_without_an_agent_that_answers_takes_uploads",
    ),
    _of(
        "an agent's health is shown to callers with a token only",
        "client_agent/api/routes.py",
        "if not request[PRINCIPAL].authenticated:",
        "if False:",
        f"{_FRONT}without_a_token_health_shows_only_whether_all_is_well[agent]",
    ),
    _of(
        "a head has a deadline",
        f"{_HTTP}protocol.py",
        "        self._head_timer = None\n        if self._waiter is None",
        "        return\n        if self._waiter is None",
        f"{_SLOW}a_head_that_does_not_come_in_time_ends_the_connection",
        f"{_SLOW}the_second_head_has_its_deadline_too",
    ),
    _of(
        "a reader that stops is cut off",
        f"{_HTTP}protocol.py",
        "        super().pause_writing()\n        self._watch_peer()",
        "        super().pause_writing()",
        f"{_SLOW}a_reader_that_stops_is_cut_off",
    ),
    _of(
        "costly bytes leave the others their turn",
        f"{_HTTP}protocol.py",
        "                self._pause_reading(self._table.throttle.pause_s(began + spent, spent))\n",
        "",
        f"{_SLOW}bytes_that_are_costly_to_read_do_not_hold_up_others",
    ),
    _of(
        "all costly readers share one part of the time",
        f"{_HTTP}connections.py",
        "self._free_at = max(self._free_at, now) + 4 * spent",
        "self._free_at = now + 4 * spent",
        f"{_COUNT}costly_reading_gets_a_quarter_of_the_time_all_together",
    ),
    _of(
        "a connection at rest is read again",
        f"{_HTTP}protocol.py",
        "        self._reading_pause = None\n        if not (self._reading",
        "        return\n        if not (self._reading",
        f"{_SLOW}a_paused_connection_is_read_again_afterwards",
    ),
    _of(
        "the kernel keeps little for a reader who reads nothing",
        f"{_HTTP}protocol.py",
        "            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LARGE)\n",
        "",
        f"{_SLOW}a_reader_that_stops_is_cut_off",
    ),
    _of(
        "the wait of somebody who is gone ends",
        f"{_HTTP}protocol.py",
        "        for task in self._long_polls:\n            task.cancel()\n",
        "",
        f"{_SLOW}a_wait_ends_when_its_caller_is_gone",
    ),
    _of(
        "the answer to a refused upload arrives",
        f"{_HTTP}protocol.py",
        "await self._linger(request)",
        "self._close = True",
        f"{_SLOW}the_rest_of_a_refused_body_is_dropped_and_the_answer_still_arrives",
    ),
    _of(
        "of a refused upload without a token nothing more is read",
        f"{_HTTP}protocol.py",
        "transport.pause_reading()",
        "transport.resume_reading()",
        f"{_SLOW}without_a_token_not_even_the_rest_is_read",
    ),
    _of(
        "the peer with most idle connections loses one",
        f"{_HTTP}connections.py",
        "max(self._idle, key=lambda peer: len(self._idle[peer]))",
        "min(self._idle, key=lambda peer: len(self._idle[peer]))",
        f"{_COUNT}the_oldest_idle_connection_of_the_peer_with_most_is_closed",
    ),
    _of(
        "an address has no more than its share",
        f"{_HTTP}connections.py",
        "if not is_loopback(peer) and self._count[peer] >= self.limits.per_peer:",
        "if False:",
        f"{_COUNT}an_address_at_its_limit_loses_an_idle_connection_of_its_own",
        f"{_COUNT}an_address_at_its_limit_without_an_idle_one_gets_no_more",
    ),
    _of(
        "requests under way leave connections for others",
        f"{_HTTP}middleware.py",
        "if self._handling >= self._limits.requests:",
        "if False:",
        f"{_FRONT}more_requests_than_fit_are_sent_away_and_health_is_not",
    ),
    _of(
        "waits are limited",
        f"{_HTTP}middleware.py",
        "if full or self._waits[caller] >= self._limits.waits_per_caller:",
        "if False:",
        f"{_FRONT}more_waits_than_fit_are_sent_away",
    ),
    _of(
        "a disk that hangs does not hang /health",
        "shared/probe.py",
        "not await wait_for(self._done, TIMEOUT_S, self._clock)",
        "not await self._done.wait()",
        "tests/unit/shared/test_probe.py::test_a_check_that_hangs_is_itself_the_problem",
    ),
    _of(
        "If-Match is heeded",
        f"{_HTTP}file_response.py",
        "if request.if_match is not None and (etag is None or not _matches(request.if_match, etag)):",
        "if False:",
        "tests/unit/shared/http/test_file_response.py::test_conditions_and_ranges",
    ),
    _of(
        "the last nought bytes are none",
        f"{_HTTP}file_response.py",
        "return size, size  # the last",
        "return None  # the last",
        "tests/unit/shared/http/test_file_response.py::test_conditions_and_ranges",
    ),
    _of(
        "a repeated trouble does not fill the log",
        "shared/log_folding.py",
        "            raise structlog.DropEvent\n",
        "            pass\n",
        "tests/unit/shared/test_log_folding.py::test_the_first_line_comes_at_once_and_the_next_ones_more_and_more_seldom",
    ),
    _of(
        "keys that an agent lists without end do not fill the log",
        "shared/log_folding.py",
        '    "payload.stale": ("agent",),\n',
        "",
        "tests/unit/shared/test_log_folding.py::test_an_agent_that_lists_keys_without_end_does_not_fill_the_log",
    ),
    _of(
        "troubles that are remembered are limited",
        "shared/log_folding.py",
        "while len(self._open) > REMEMBERED:",
        "while False:",
        "tests/unit/shared/test_log_folding.py::test_only_so_many_troubles_are_remembered",
    ),
    _of(
        "tracebacks show no values",
        "shared/logs.py",
        "exception_formatter=_plain_traceback,",
        "",
        "tests/unit/shared/test_logs.py::test_a_traceback_shows_no_values",
    ),
    _of(
        "a failure of the database is shown",
        "server/health.py",
        "if failure is not None:",
        "if False:",
        f"{_FRONT}a_failure_of_the_database_is_reported_until_it_is_over",
    ),
    _of(
        "whoever goes away leaves no traceback",
        "server/http/problems.py",
        "except (web.HTTPRedirection, ConnectionError):",
        "except web.HTTPRedirection:",
        f"{_FRONT}a_download_that_is_broken_off_is_one_line_without_a_traceback",
    ),
    _of(
        "a hangup ends nothing",
        "server/lifecycle.py",
        "    loop.add_signal_handler(signal.SIGHUP, hangup.set)\n",
        "",
        "tests/process/test_start_and_signals.py::test_a_hangup_ends_nothing[server-settings.reloaded]",
    ),
    _of(
        "a defect is no mistake in the settings",
        "server/__main__.py",
        "except SettingsError as problem:",
        "except (SettingsError, ValueError) as problem:",
        "tests/process/test_start_and_signals.py::test_a_defect_at_the_start_shows_where_it_is",
    ),
    _of(
        "a browser's form is sent on",
        "server/api/upload.py",
        "if wants_page(request):",
        "if False:",
        "tests/contract/test_browsers.py::test_a_plain_form_is_sent_on_to_its_job",
    ),
    _of(
        "the path of a proxy is in Location",
        "server/api/upload.py",
        '{"Location": f"{context.url_prefix}/api',
        '{"Location": f"/api',
        "tests/contract/test_browsers.py::test_behind_a_proxy_with_a_path_everything_works",
    ),
    _of(
        "a full database is 507",
        "server/http/problems.py",
        "HTTPStatus.INSUFFICIENT_STORAGE if problem.full else 503",
        "503",
        f"{_FRONT}a_full_database_is_507_and_another_failure_503",
    ),
)
