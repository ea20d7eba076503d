"""What comes in as bytes: durations, sizes, names, forms, archives, and the space they take."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_UNIT: Final = "tests/unit/shared/"
_TEXTS: Final = f"{_UNIT}test_durations.py::test_"
_NAMES: Final = f"{_UNIT}files/test_names.py::test_"
_PORTABLE: Final = f"{_UNIT}files/test_portable.py::test_"
_UPLOADS: Final = "tests/contract/test_upload_http.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("intake", protection, file, old, new, tests)


_TEXT_MUTANTS: Final = (
    _of(
        "a long text is refused by its length alone",
        "shared/durations.py",
        "    if len(text) > MAX_LENGTH:\n        raise",
        "    if False:\n        raise",
        f"{_TEXTS}a_long_text_is_refused_by_its_length_alone",
    ),
    _of(
        "a duration matches as a whole",
        "shared/durations.py",
        "    match = _DURATION.fullmatch(text)",
        "    match = _DURATION.match(text)",
        f"{_TEXTS}anything_else_is_no_duration",
    ),
    _of(
        "a duration is bounded",
        "shared/durations.py",
        "    if not seconds <= LONGEST_S:",
        "    if False:",
        f"{_TEXTS}a_duration_that_no_clock_can_add_is_refused",
    ),
    _of(
        "a size matches as a whole",
        "shared/sizes.py",
        "    match = _SIZE.fullmatch(text)",
        "    match = _SIZE.match(text)",
        f"{_TEXTS}anything_else_is_no_size",
    ),
    _of(
        "a size is bounded",
        "shared/sizes.py",
        "    if size > LARGEST:",
        "    if False:",
        f"{_TEXTS}a_size_that_no_column_can_hold_is_refused",
    ),
    _of(
        "cpus is a plain number",
        "shared/limits.py",
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
        "shared/files/tars.py",
        '        if len(records.get(key, b"")) > _MAX_LONG_NAME:',
        "        if False:",
        f"{_UNIT}files/test_tars.py::test_a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "a name that only Linux can store is told",
        "shared/files/writer.py",
        "            not_portable.add(found.name, found.why)",
        "            pass",
        f"{_PORTABLE}a_bundle_keeps_such_names_and_says_so",
        f"{_UPLOADS}what_only_linux_can_store_is_taken_with_a_lasting_warning",
    ),
    _of(
        "names that differ only in case are told",
        "shared/files/portable.py",
        "            if spelled[depth] != here[depth]:",
        "            if False:",
        f"{_PORTABLE}names_that_differ_only_in_case_are_told",
    ),
    _of(
        "beyond ASCII, too",
        "shared/files/portable.py",
        "decomposed.casefold()",
        "decomposed",
        f"{_PORTABLE}names_that_differ_only_in_case_are_told",
    ),
    _of(
        "where names must be portable they are refused",
        "shared/files/writer.py",
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
        "server/api/documents.py",
        "[*found.upload_warnings, *found.warnings]",
        "list(found.warnings or found.upload_warnings)",
        "tests/contract/test_jobs_store.py::test_warnings_of_the_upload_outlast_those_of_attempts",
    ),
)

MUTANTS: Final = (*_TEXT_MUTANTS, *_NAME_MUTANTS)
