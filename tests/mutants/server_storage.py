"""Stored files: pending ones, orphans, ranges, durability."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SUITE: Final = "tests/contract/storage/test_"
_FOLDER: Final = "tests/unit/server/storage/test_folder.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("storage", protection, f"server/storage/{file}", old, new, tests)


def _both(test: str) -> tuple[str, str]:
    """Every storage fails."""
    return f"{_SUITE}{test}[folder]", f"{_SUITE}{test}[memory]"


MUTANTS: Final = (
    _of(
        "a file is pending before it can be listed",
        "base.py",
        "        storage._pending.add(name)\n",
        "",
        *_both("orphans.py::test_a_pending_file_is_no_orphan"),
    ),
    _of(
        "what another run that is alive has stored is no orphan",
        "base.py",
        "name not in self._pending and owner_of(name) not in others",
        "name not in self._pending",
        *_both("orphans.py::test_what_a_run_that_is_alive_stored_is_left_alone"),
        *_both("concurrency.py::test_sweeps_of_two_servers_take_nothing_from_uploads_under_way"),
    ),
    _of(
        "a run knows its own files, whatever its lease says",
        "base.py",
        "others = await running_servers() - {self._owner}",
        "others = await running_servers()",
        *_both("orphans.py::test_this_run_is_asked_about_its_own_files_not_its_lease"),
    ),
    _of(
        "rows are asked for last",
        "base.py",
        "        others = await running_servers() - {self._owner}\n",
        "        used = await in_use(names)\n"
        "        others = await running_servers() - {self._owner}\n"
        "        async def in_use(_): return used\n",
        *_both("orphans.py::test_a_row_that_is_written_during_the_sweep_counts"),
    ),
    _of(
        "a row keeps its file",
        "base.py",
        "[name for name in candidates if name not in used]",
        "candidates",
        *_both("orphans.py::test_a_file_with_a_row_stays_and_one_without_goes"),
    ),
    _of(
        "an error deletes what no row refers to",
        "base.py",
        "            await files.discard()\n            raise\n",
        "            raise\n",
        *_both("deletion.py::test_an_error_deletes_what_is_pending_only"),
    ),
    _of(
        "a cancellation does not: the row may yet come",
        "base.py",
        "        except Exception:\n",
        "        except BaseException:\n",
        *_both("crashes.py::test_a_cancelled_write_may_still_come_so_its_file_stays"),
    ),
    _of(
        "a file is whole and durable when its name is given out",
        "folder.py",
        "durable.replace(path, final)",
        "path.replace(final)",
        f"{_FOLDER}content_then_name_then_folders_are_durable",
    ),
    _of(
        "a new folder for files is durable",
        "folder.py",
        "        durable.fsync_folder(final.parent.parent)\n",
        "",
        f"{_FOLDER}content_then_name_then_folders_are_durable",
    ),
    _of(
        "links are not followed",
        "folder.py",
        "entry.is_dir(follow_symlinks=False)",
        "entry.is_dir()",
        f"{_FOLDER}what_a_link_leads_to_is_not_listed",
    ),
    _of(
        "only names that it has given are the storage's",
        "folder.py",
        "NAME.fullmatch(name) and name.startswith(prefix)",
        "NAME.fullmatch(name)",
        f"{_SUITE}listing.py::test_what_somebody_else_put_there_is_not_listed[folder]",
    ),
    _of(
        "the list goes on behind the name",
        "folder.py",
        "if name > after and",
        "if",
        f"{_SUITE}listing.py::test_the_list_goes_on_behind_any_name[folder]",
    ),
    _of(
        "a range ends before its end",
        "stream.py",
        "max(0, min(_CHUNK, self._end - self._at))",
        "_CHUNK",
        f"{_SUITE}put_and_open.py::test_the_range_ends_before_its_end[folder-3-7-10]",
        f"{_SUITE}put_and_open.py::test_ranges_over_chunks_make_up_the_file[folder]",
    ),
    _of(
        "and begins at its start",
        "stream.py",
        "self._at, self._end = start,",
        "self._at, self._end = 0,",
        f"{_SUITE}put_and_open.py::test_the_range_ends_before_its_end[folder-3-7-10]",
    ),
    Mutant(
        "storage",
        "a scratch file that is made for somebody who has gone is removed",
        "shared/files/opened.py",
        "        self._gone()\n",
        "",
        (
            "tests/contract/storage/test_crashes.py::"
            "test_a_scratch_file_that_is_made_for_a_caller_who_was_cancelled_is_not_left[False]",
        ),
    ),
    Mutant(
        "storage",
        "a file that is opened for somebody who has gone is closed",
        "shared/files/opened.py",
        "        if left:\n",
        "        if not left:\n",
        (
            "tests/unit/shared/files/test_opened.py::"
            "test_a_file_that_is_opened_for_somebody_who_has_gone_is_closed",
            "tests/unit/shared/files/test_opened.py::"
            "test_it_is_closed_even_if_the_loop_ends_meanwhile",
        ),
    ),
    _of(
        "a write that is cancelled ends before its file is closed",
        "scratch.py",
        "await to_end(partial(self._append, file.fileno(), chunk))",
        "await asyncio.to_thread(self._append, file.fileno(), chunk)",
        f"{_FOLDER}a_write_that_is_cancelled_lands_in_no_other_file",
    ),
    Mutant(
        "storage",
        "a result that is fetched for somebody who has gone is removed",
        "server/agents/answers.py",
        'lambda: to.path.open("wb"), gone)',
        'lambda: to.path.open("wb"))',
        (
            "tests/contract/storage/test_crashes.py::"
            "test_a_scratch_file_that_is_made_for_a_caller_who_was_cancelled_is_not_left[True]",
        ),
    ),
    _of(
        "a file that was read to its end is closed",
        "stream.py",
        "        if self._at >= self._end:\n            self.close()\n",
        "",
        f"{_FOLDER}a_small_file_is_closed_before_it_is_sent",
    ),
    _of(
        "scratch files of a run that is alive stay",
        "scratch.py",
        " if owner_of(name) not in running]",
        "]",
        *_both("crashes.py::test_scratch_files_go_with_their_run"),
    ),
    _of(
        "those of a dead one go",
        "scratch.py",
        " if owner_of(name) not in running]",
        " if False]",
        *_both("crashes.py::test_scratch_files_go_with_their_run"),
    ),
)
