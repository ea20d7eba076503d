"""What the pages of a job's files keep from whoever looks at them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PAGES: Final = "tests/contract/test_files_pages.py::test_"
_API: Final = "tests/contract/test_files_http.py::test_"


def _mutant(protection: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant("dashboard", protection, f"server/{file}", old, new, (test,))


_READS: Final = "tests/unit/server/test_reads.py::test_"


MUTANTS: Final = (
    _mutant(
        "one caller's reads of results do not hold up another's",
        "http/reads.py",
        "        async with self._each.turn(), self._free:\n",
        "        async with self._free:\n",
        f"{_READS}what_one_caller_reads_does_not_hold_up_another",
    ),
    _mutant(
        "of all callers' reads few hold the interpreter at once",
        "http/reads.py",
        "_THREADS: Final = 2",
        "_THREADS: Final = 50",
        f"{_READS}two_read_at_once_whoever_they_are",
    ),
    _mutant(
        "a caller that leaves keeps its place until its thread is done",
        "http/reads.py",
        "await to_end(partial(work, *args, **kwargs), self._threads)",
        "await asyncio.get_running_loop().run_in_executor(\n"
        "                self._threads, partial(work, *args, **kwargs)\n"
        "            )",
        f"{_READS}who_leaves_has_its_place_until_its_thread_is_done",
    ),
    _mutant(
        "the names in results that are kept in memory are bounded",
        "http/reads.py",
        "            self._names.popitem(last=False)\n",
        "            break\n",
        f"{_READS}the_names_that_are_kept_are_bounded",
    ),
    _mutant(
        "the names in a large result are read once for all looks at it",
        "http/files.py",
        "        context.reads.keep(result.sha256, names)\n",
        "",
        f"{_PAGES}the_names_in_a_large_result_are_read_once",
    ),
    _mutant(
        "a log does not cost as much as its result has files",
        "http/logs.py",
        "    entry, _ = index.find(name)\n",
        "    entry = {one.name: index.find(one.name)[0] for one, _ in index.files()}.get(name)\n",
        "tests/contract/test_logs_http.py::"
        "test_a_log_costs_the_same_however_many_files_the_result_has",
    ),
    _mutant(
        "a page that a job has written is not held in memory for who does not read it",
        "web/job/preview.py",
        "        return await send_chunks(request, whole, _RENDERED_HEADERS, file.chunks)\n",
        "        data = await _read(file, 0, file.size)\n"
        "    return web.Response(body=data, headers=_RENDERED_HEADERS)\n",
        "tests/process/test_unread_answers.py::test_readers_of_large_contents_hold_little_memory",
    ),
    _mutant(
        "a page that a job has written is rendered where it can run nothing",
        "web/job/preview.py",
        "sandbox; default-src 'none'; img-src data:",
        "sandbox allow-scripts; default-src 'none'; img-src data:",
        f"{_PAGES}what_a_frame_renders_may_do_nothing_and_only_in_a_frame",
    ),
    _mutant(
        "what is rendered is shown in the frame of its page only",
        "web/job/preview.py",
        'if request.headers.get("Sec-Fetch-Dest", "iframe") != "iframe":',
        "if False:",
        f"{_PAGES}what_a_frame_renders_may_do_nothing_and_only_in_a_frame",
    ),
    _mutant(
        "only pages are rendered, no drawings",
        "web/job/preview.py",
        'if media_type(path) != "text/html" or file.size > _MOST_RENDERED:',
        "if file.size > _MOST_RENDERED:",
        f"{_PAGES}what_a_frame_renders_may_do_nothing_and_only_in_a_frame",
    ),
    _mutant(
        "the frame of a page that a job has written is sandboxed",
        "web/templates/job/files_preview.html",
        'sandbox=""',
        'sandbox="allow-same-origin"',
        f"{_PAGES}pictures_pages_and_documents_are_never_part_of_the_page",
    ),
    _mutant(
        "characters that turn text around are shown as their numbers",
        "web/job/content.py",
        "if _ODD.search(text) is None:",
        "if True:",
        f"{_PAGES}characters_of_a_text_are_shown_and_run_nothing",
    ),
    _mutant(
        "a page shows a bounded part of a line that never ends",
        "web/job/preview.py",
        "data = data[:WINDOW]",
        "data = data * 64",
        f"{_PAGES}a_window_in_a_gigabyte_of_one_line_costs_one_window",
    ),
    _mutant(
        "a table is cut to what a page can show",
        "web/job/content.py",
        "shown = min(columns, MAX_COLUMNS)",
        "shown = columns",
        f"{_PAGES}a_table_is_cut_to_what_a_page_can_show_and_its_cells_are_text",
    ),
    _mutant(
        "a table with one cell of blanks does not occupy the server for minutes",
        "web/job/content.py",
        r'(\d++([.,]\d*+)?|[.,]\d++)([eE][+-]?\d++)?\s*+%?\s*+"',
        r'(\d++([.,]\d*+)?|[.,]\d++)([eE][+-]?\d++)?\s*%?\s*"',
        "tests/unit/server/web/test_file_previews.py::test_"
        "a_cell_with_many_blanks_in_it_costs_no_more_than_another",
    ),
    _mutant(
        "parts of a path that browsers leave out do not lead to another page",
        "web/job/files.py",
        'odd = not _LOST.isdisjoint(path.split("/"))',
        "odd = False",
        f"{_PAGES}a_file_is_reached_whatever_it_is_called_and_its_name_is_only_text",
    ),
    _mutant(
        "a page cannot load a file of a job as its code",
        "domain/media_types.py",
        "return TEXT if found in _CODE else found",
        "return found",
        f"{_API}no_page_can_load_a_file_as_its_code",
    ),
)
