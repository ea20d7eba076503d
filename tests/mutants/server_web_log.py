"""The log of a job as a page."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PAGES: Final = "tests/contract/test_job_log_pages.py::test_"
_WINDOW: Final = "tests/unit/server/web/job/test_log_window.py::test_"
_ANSI: Final = "tests/unit/server/web/job/test_ansi.py::test_"


def _mutant(protection: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant("pages", protection, f"server/web/job/{file}", old, new, (test,))


MUTANTS: Final = (
    _mutant(
        "a line of a log is text, whatever it holds",
        "lines.py",
        "        return escape(text), style\n",
        "        return Markup(text), style\n",
        f"{_PAGES}hostile_lines_are_text",
    ),
    _mutant(
        "a line of a log with colours is text, whatever it holds",
        "lines.py",
        'text = escape("".join(pieces))',
        'text = Markup("".join(pieces))',
        f"{_ANSI}nothing_but_spans_with_known_classes_is_made",
    ),
    _mutant(
        "parameters of a command in a log are text",
        "lines.py",
        'f"{word} {values}".rstrip()',
        'Markup(f"{word} {values}".rstrip())',
        f"{_PAGES}hostile_lines_are_text",
    ),
    _mutant(
        "characters that turn text around are shown, not followed",
        "lines.py",
        '    r"|[\\u202a-\\u202e\\u2066-\\u2069]"  # turn text around\n',
        "",
        f"{_ANSI}colours_are_classes_and_all_else_is_left_out",
    ),
    _mutant(
        "a log is followed by those who may see its job",
        "log.py",
        "job = await requested_job(request, context)\n            attempt",
        'job = await context.jobs.get(int(request.match_info["id"]))\n            attempt',
        f"{_PAGES}other_users_see_no_log",
    ),
    _mutant(
        "after a break a log goes on where its last line begins",
        "log.py",
        '{"offset": offset - lines.length,',
        '{"offset": offset,',
        f"{_PAGES}a_page_follows_the_log_without_losing_or_repeating_lines",
    ),
    _mutant(
        "followers of a log full of colours do not keep the server from answering others",
        "log.py",
        "await context.reads.run(_event, lines, data, stream, here, offset)",
        "_event(lines, data, stream, here, offset)",
        f"{_PAGES}lines_that_are_followed_are_not_made_on_the_event_loop",
    ),
    _mutant(
        "of a huge line a little is shown",
        "lines.py",
        "cut = _whole_characters(line, SHOWN)",
        "cut = len(line)",
        f"{_WINDOW}a_long_line_says_how_much_is_not_shown",
    ),
    _mutant(
        "of a line that does not end little is kept",
        "lines.py",
        "                del self._line[_KEPT:]\n",
        "",
        f"{_WINDOW}a_long_line_says_how_much_is_not_shown",
    ),
    _mutant(
        "a window reads little of a large log",
        "window.py",
        "log.piece(start, min(log.counted, start + _BYTES))",
        "log.piece(start, log.counted)",
        f"{_WINDOW}a_window_reads_little_of_a_large_log",
    ),
    _mutant(
        "one request counts the lines of so many bytes",
        "window.py",
        "stop = min(self.size, self.index.size + most)",
        "stop = self.size",
        f"{_WINDOW}counting_goes_on_where_it_was",
    ),
    _mutant(
        "one search reads so many bytes",
        "window.py",
        "stop = min(log.counted, start + _SEARCHED)",
        "stop = log.counted",
        f"{_WINDOW}a_search_reads_so_many_bytes_at_once",
    ),
    _mutant(
        "one caller searches once at a time",
        "log.py",
        "context.reads.searches.turn() if text else nullcontext()",
        "nullcontext()",
        "tests/contract/test_reads_http.py::test_one_search_of_a_caller_runs_at_a_time",
    ),
    _mutant(
        "what is remembered of logs is bounded",
        "window.py",
        "        while len(self._kept) > _LOGS:\n            self._kept.popitem(last=False)\n",
        "",
        f"{_WINDOW}few_logs_are_remembered",
    ),
    _mutant(
        "what is remembered of unpackers is bounded",
        "window.py",
        "        while len(self._states) > _UNPACKED:\n"
        "            self._states.popitem(last=False)\n",
        "",
        "tests/unit/server/web/job/test_log_stored.py::test_states_are_kept_of_few_logs",
    ),
    _mutant(
        "a log that is not the one that was counted is refused",
        "window.py",
        "            if found < 0:\n",
        "            if False:\n",
        f"{_WINDOW}a_log_that_is_not_the_one_that_was_counted_is_refused",
    ),
    _mutant(
        "a window full of colours does not keep the server from answering others",
        "window.py",
        "await log.run(_rows, lines, data, most)",
        "_rows(lines, data, most)",
        f"{_WINDOW}lines_of_many_colours_are_not_made_on_the_event_loop",
    ),
)
