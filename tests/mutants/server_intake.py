"""What comes in as bytes: durations, sizes, names, forms, archives, and the space they take."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_UNIT: Final = "tests/unit/shared/"
_TEXTS: Final = f"{_UNIT}units/test_durations.py::test_"
_NAMES: Final = f"{_UNIT}files/test_names.py::test_"
_PORTABLE: Final = f"{_UNIT}files/test_portable.py::test_"
_UPLOADS: Final = "tests/contract/test_upload_http.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("intake", protection, file, old, new, tests)


_TEXT_MUTANTS: Final = (
    _of(
        "an upload says that no agent offers its service",
        "server/stages/accept.py",
        "        if self._fleet.offered(name):",
        "        if True:",
        "tests/contract/test_fleet.py::test_"
        "a_service_that_no_agent_offers_is_named_to_its_user_and_to_operators",
    ),
    _of(
        "a long text is refused by its length alone",
        "ferryman/units.py",
        "    if len(text) > MAX_LENGTH:\n        raise",
        "    if False:\n        raise",
        f"{_TEXTS}a_long_text_is_refused_by_its_length_alone",
    ),
    _of(
        "a duration matches as a whole",
        "ferryman/units.py",
        "    match = _DURATION.fullmatch(text)",
        "    match = _DURATION.match(text)",
        f"{_TEXTS}anything_else_is_no_duration",
    ),
    _of(
        "a duration is bounded",
        "ferryman/units.py",
        "    if not seconds <= LONGEST_S:",
        "    if False:",
        f"{_TEXTS}a_duration_that_no_clock_can_add_is_refused",
    ),
    _of(
        "a size matches as a whole",
        "ferryman/units.py",
        "    match = _SIZE.fullmatch(text)",
        "    match = _SIZE.match(text)",
        f"{_TEXTS}anything_else_is_no_size",
    ),
    _of(
        "a size is bounded",
        "ferryman/units.py",
        "    if size > LARGEST:",
        "    if False:",
        f"{_TEXTS}a_size_that_no_column_can_hold_is_refused",
    ),
    _of(
        "cpus is a plain number",
        "shared/settings/limits.py",
        'if not re.fullmatch(r"[0-9]{1,9}(\\.[0-9]+)?|\\.[0-9]+", text):',
        "if False:",
        f"{_TEXTS}what_is_no_plain_number_is_no_count",
    ),
)

_NAME_MUTANTS: Final = (
    _of(
        "a name's length is looked at before it is composed",
        "shared/files/names.py",
        "    if len(name) > 2 * MAX_PATH_BYTES:",
        "    if False:",
        f"{_NAMES}a_name_that_is_too_long_is_refused_unread",
    ),
    _of(
        "and the runs of its combining marks",
        "shared/files/names.py",
        "        if marks > _MAX_MARKS:",
        "        if False:",
        f"{_NAMES}combining_marks_are_counted_before_they_are_composed",
    ),
    _of(
        "a pax header's path is bounded",
        "shared/files/archives/tar_reader.py",
        '        if len(records.get(key, b"")) > _MAX_LONG_NAME:',
        "        if False:",
        f"{_UNIT}files/archives/test_tar_reader.py::test_a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "a name that only Linux can store is a warning",
        "shared/files/bundles/writer.py",
        "            not_portable.add(unportable.name, unportable.why)",
        "            pass",
        f"{_PORTABLE}a_bundle_keeps_such_names_and_says_so",
        f"{_UPLOADS}what_only_linux_can_store_is_taken_with_a_lasting_warning",
    ),
    _of(
        "names that differ only in case are a warning",
        "shared/files/names.py",
        "            if spelled[depth] != here[depth]:",
        "            if False:",
        f"{_PORTABLE}names_that_differ_only_in_case_are_reported",
    ),
    _of(
        "beyond ASCII, too",
        "shared/files/names.py",
        "decomposed.casefold()",
        "decomposed",
        f"{_PORTABLE}names_that_differ_only_in_case_are_reported",
    ),
    _of(
        "where names must be portable they are refused",
        "shared/files/bundles/writer.py",
        "            if self._portable:",
        "            if False:",
        f"{_PORTABLE}where_names_must_be_portable_they_are_refused",
    ),
    _of(
        "the operator's word on names",
        "server/app.py",
        'portable=table.names == "portable"',
        "portable=False",
        f"{_UPLOADS}an_operator_may_refuse_them",
    ),
    _of(
        "warnings of the upload outlast those of attempts",
        "server/http/documents.py",
        "[*job.upload_warnings, *job.warnings]",
        "list(job.warnings or job.upload_warnings)",
        "tests/contract/store/test_jobs.py::test_warnings_of_the_upload_outlast_those_of_attempts",
    ),
)

_STAGED: Final = "tests/unit/shared/files/test_staged_file.py::test_"
_SPACE: Final = "tests/unit/server/storage/test_space.py::test_"
_LIMITS: Final = "tests/contract/test_upload_limits.py::test_"
_FIELDS: Final = "tests/unit/server/domain/test_upload_fields.py::test_"
_SNAPSHOTS: Final = "tests/unit/server/test_snapshots.py::test_"

_SPACE_MUTANTS: Final = (
    _of(
        "a disk that does not answer holds up nobody else",
        "server/storage/space.py",
        "        free = self._free()\n        with self._lock:\n",
        "        with self._lock:\n            free = self._free()\n",
        f"{_LIMITS}a_disk_that_does_not_say_what_is_free_holds_up_nobody_else",
    ),
    _of(
        "a full disk that has room again takes uploads",
        "server/storage/scratch.py",
        "            await asyncio.wait([self._measuring], timeout=_PATIENCE_S)\n"
        "            if not self._measuring.done():\n"
        "                return None  # whoever writes asks the disk, too\n",
        "",
        f"{_LIMITS}a_disk_with_room_again_takes_uploads_at_once",
    ),
    _of(
        "what a slow disk said before refuses nothing",
        "server/storage/scratch.py",
        "if not self._measuring.done():",
        "if False:",
        "tests/unit/server/storage/test_folder.py::"
        "test_what_a_slow_disk_said_before_refuses_nothing",
    ),
    _of(
        "what is granted and not written counts as used",
        "server/storage/space.py",
        "- (self._granted - self._written_before)",
        "",
        f"{_SPACE}what_is_granted_to_one_is_not_there_for_another",
        f"{_SPACE}however_writers_take_turns_min_free_is_kept",
    ),
    _of(
        "a reservation that ends gives back what it holds",
        "server/storage/space.py",
        "            self._space._granted -= self.held\n",
        "",
        f"{_SPACE}what_a_writer_does_not_use_is_given_back_when_it_ends",
    ),
    _of(
        "a small file holds no more than it has written",
        "server/storage/space.py",
        "missing + min(self._taken, _MOST_AHEAD)",
        "missing + _MOST_AHEAD",
        f"{_SPACE}a_small_file_holds_no_more_than_it_has_written",
    ),
    _of(
        "uploads ask before they write",
        "shared/files/staged_file.py",
        "            self._reserve(len(data))",
        "            pass",
        f"{_LIMITS}uploads_that_fit_one_by_one_do_not_fill_the_disk_together",
        f"{_LIMITS}an_archive_stops_expanding_before_the_disk_is_full",
    ),
    _of(
        "of large files, too",
        "shared/files/staged_file.py",
        "            self._reserve(BLOCK)",
        "            pass",
        f"{_STAGED}space_is_asked_for_before_each_write_and_after_the_one_before",
    ),
    _of(
        "a block that the disk did not take is no part of a sealed file",
        "shared/files/staged_file.py",
        "            if problem.errno not in _NOT_HERE:\n                raise\n            done = 0",
        "            done = 0",
        f"{_STAGED}a_disk_that_fills_up_meanwhile_is_an_error_before_the_file_is_whole",
    ),
    _of(
        "a block that was written in part is completed",
        "shared/files/staged_file.py",
        "                _write_at(self._fd, missing, self._written - len(missing))",
        "                pass",
        f"{_STAGED}a_block_that_is_written_in_part_is_completed",
        f"{_STAGED}a_file_system_that_cannot_bypass_the_cache_is_written_through_it",
    ),
    _of(
        "so do results",
        "server/agents/answers.py",
        "        to.reserve(len(some))",
        "            pass",
        f"{_LIMITS}a_result_that_does_not_fit_is_not_fetched_to_the_end",
    ),
)

_UPLOAD_MUTANTS: Final = (
    _of(
        "uploads at once, in all",
        "server/http/reads.py",
        "        if len(self._in_flight) >= AT_ONCE:",
        "        if False:",
        f"{_LIMITS}only_so_many_uploads_at_once",
    ),
    _of(
        "uploads at once, of one user",
        "server/http/reads.py",
        "        if self._of_user[user] >= most:",
        "        if False:",
        f"{_LIMITS}only_so_many_uploads_at_once",
    ),
    _of(
        "an upload that stalls is cut off",
        "server/http/reads.py",
        "        if self._came >= LEAST_RATE * waited:",
        "        if True:",
        f"{_LIMITS}an_upload_that_stalls_is_cut_off_and_leaves_nothing",
    ),
    _of(
        "one that is slow but steady is not",
        "server/http/reads.py",
        "            self._came += len(chunk)",
        "            pass",
        f"{_LIMITS}an_upload_that_is_slow_but_steady_goes_on",
    ),
    _of(
        "archives have threads of their own",
        "shared/multipart/receive.py",
        "        if not self._expands:",
        "        if True:",
        f"{_LIMITS}archives_wait_for_each_other_and_nobody_for_them",
    ),
    _of(
        "one archive of each user at once",
        "server/http/reads.py",
        "            async with user_lock.lock, self._room:",
        "            async with self._room:",
        f"{_LIMITS}archives_wait_for_each_other_and_nobody_for_them",
    ),
    _of(
        "an upload that stalls holds little memory",
        "shared/multipart/receive.py",
        "min(BATCH, max(FIRST_BATCH, self._written // _GROWTH))",
        "BATCH",
        "tests/unit/shared/multipart/test_threads.py::test_an_upload_that_stalls_holds_little_memory",
    ),
    _of(
        "nor the chunk that came last",
        "shared/multipart/receive.py",
        "            del chunk  #",
        "            #",
        "tests/unit/shared/multipart/test_threads.py::"
        "test_the_chunk_before_is_not_held_while_the_next_is_waited_for",
    ),
    _of(
        "a delimiter that begins at the end of a chunk is found",
        "shared/multipart/parser.py",
        "        if last >= 0 and self._delimiter.startswith(chunk[last:]):",
        "        if False:",
        "tests/unit/shared/multipart/test_receive.py::"
        "test_a_delimiter_is_found_wherever_chunks_are_cut",
    ),
    _of(
        "a form of many parts lets others have their turn",
        "shared/multipart/receive.py",
        "            await yield_to_loop()",
        "            pass",
        "tests/unit/shared/multipart/test_work.py::test_a_form_of_many_parts_lets_other_tasks_run",
    ),
    _of(
        "of many such forms one at a time",
        "shared/multipart/receive.py",
        "        async with threads.parsing or nullcontext():",
        "        async with nullcontext():",
        "tests/unit/shared/multipart/test_work.py::"
        "test_of_many_such_forms_one_is_parsed_between_two_turns_of_others",
    ),
    _of(
        "a bundle over the disk limit is refused",
        "server/stages/accept.py",
        "    if bundle.bytes > request.limits.disk:",
        "    if False:",
        f"{_LIMITS}a_bundle_over_the_services_disk_is_refused_before_it_has_come",
    ),
    _of(
        "unknown fields are refused",
        "server/domain/upload_fields.py",
        "        case _ if name not in (*NEEDED, HEADER):",
        "        case _ if False:",
        f"{_FIELDS}an_unknown_field_is_refused_with_the_nearest_name",
    ),
    _of(
        "empty optional fields count as left out",
        "server/domain/upload_fields.py",
        "    if name in _MAY_BE_EMPTY and not value:",
        "    if False:",
        f"{_FIELDS}optional_fields_that_are_empty_count_as_left_out",
    ),
    _of(
        "a limit that was lowered is a warning",
        "server/domain/upload_fields.py",
        "        if name in values and not no_limit and (values[name] > most or _is_unlimited(name, values)):",
        "        if False:",
        f"{_FIELDS}what_is_more_than_the_service_allows_is_cut_with_a_warning",
    ),
    _of(
        "a timeout names who set its limit",
        "server/domain/ending.py",
        "own, most = job.timeout_s, service.timeout_s",
        "own, most = 0.0, 0.0",
        "tests/unit/server/domain/test_outcome.py::test_a_wall_time_limit_is_reported_with_who_set_it",
    ),
    _of(
        "requests at the same time share a snapshot",
        "server/http/reads.py",
        "        if mine and (mine[-1].may_be_shared(now) or len(mine) >= MAX_OF_JOB):",
        "        if False:",
        f"{_SNAPSHOTS}all_who_ask_at_once_get_one_snapshot",
    ),
    _of(
        "unread snapshots do not add up",
        "server/http/reads.py",
        " or len(mine) >= MAX_OF_JOB):",
        "):",
        f"{_SNAPSHOTS}unread_snapshots_of_a_job_do_not_add_up",
    ),
    _of(
        "not many snapshots of all jobs",
        "server/http/reads.py",
        "if len(callers) >= MAX_SNAPSHOTS or",
        "if",
        f"{_SNAPSHOTS}there_are_not_many_of_all_jobs",
    ),
    _of(
        "one caller's snapshots leave room for those of others",
        "server/http/reads.py",
        " or of_caller >= MAX_OF_CALLER:",
        ":",
        f"{_SNAPSHOTS}one_caller_leaves_room_for_others",
    ),
)

MUTANTS: Final = (*_TEXT_MUTANTS, *_NAME_MUTANTS, *_SPACE_MUTANTS, *_UPLOAD_MUTANTS)
