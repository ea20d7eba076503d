"""Names, and archives that are uploaded: rule 5."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_FILES: Final = "tests/unit/shared/files/test_"
_NAMES: Final = f"{_FILES}names.py::test_"
_ZIPS: Final = "tests/unit/shared/files/archives/test_zip_directory.py::test_"
_TARS: Final = "tests/unit/shared/files/archives/test_tar_reader.py::test_"
_ARCHIVES: Final = "tests/unit/shared/files/bundles/test_expand.py::test_"
_REFUSED: Final = f"{_NAMES}names_that_are_dangerous_or_impossible_are_refused_with_the_reason"
_UPLOADS: Final = (
    "tests/contract/test_upload_http.py::test_what_is_refused_is_named_and_leaves_nothing"
)


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("5", protection, f"shared/files/{file}", old, new, tests)


ARCHIVES: Final[tuple[Mutant, ...]] = (
    _of(
        "absolute names are refused",
        "names.py",
        '    if name.startswith("/"):',
        "    if False:",
        _REFUSED,
    ),
    _of(
        "NUL, where `zipfile` cuts a name",
        "names.py",
        '        if c == "\\0":',
        "        if False:",
        _REFUSED,
    ),
    _of(
        "backslashes",
        "names.py",
        '        if c == "\\\\":\n            raise',
        "        if False:\n            raise",
        _REFUSED,
    ),
    _of(
        "control characters",
        "names.py",
        '    "Cc": "a control character",\n',
        "",
        _REFUSED,
    ),
    _of(
        "invisible and bidirectional characters",
        "names.py",
        '    "Cf": "an invisible format character",\n',
        "",
        _REFUSED,
    ),
    _of(
        "what is no UTF-8",
        "names.py",
        '    "Cs": "half of a surrogate pair",\n',
        "",
        _REFUSED,
    ),
    _of(
        "line separators",
        "names.py",
        '    "Zl": "a line separator",\n',
        "",
        _REFUSED,
    ),
    _of(
        "empty components",
        "names.py",
        '    if not component:\n        raise UnsafeName(name, "it has',
        '    if False:\n        raise UnsafeName(name, "it has',
        _REFUSED,
    ),
    _of(
        "`.` and `..`",
        "names.py",
        '    if component in {".", ".."}:',
        "    if False:",
        _REFUSED,
    ),
    _of(
        "long components",
        "names.py",
        "    if len(component) > MAX_COMPONENT_BYTES or",
        "    if False and",
        _REFUSED,
    ),
    _of(
        "long paths",
        "names.py",
        "    if len(name) > MAX_PATH_BYTES or",
        "    if False and",
        _REFUSED,
    ),
    _of(
        "deep paths",
        "names.py",
        "    if len(components) > MAX_DEPTH:",
        "    if False:",
        _REFUSED,
    ),
    _of(
        "names are composed",
        "names.py",
        '        name = unicodedata.normalize("NFC", name)',
        "        pass",
        f"{_NAMES}names_are_composed_so_that_one_file_has_one_name",
    ),
    _of(
        "a name that is there twice",
        "names.py",
        "        if path in self._paths:",
        "        if False:",
        f"{_NAMES}paths_that_cannot_lie_side_by_side_are_refused",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "a file that is a folder, too",
        "names.py",
        '            if file[-1] == "/" or not other.startswith(f"{file}/"):',
        "            if True:",
        f"{_NAMES}paths_that_cannot_lie_side_by_side_are_refused",
    ),
    _of(
        "uploaded ZIPs: symlinks",
        "archives/zip_directory.py",
        "    if kind == stat.S_IFLNK:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
        _UPLOADS,
    ),
    _of(
        "special files",
        "archives/zip_directory.py",
        "    if kind not in {0, stat.S_IFDIR if folder else stat.S_IFREG}:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "encrypted entries",
        "archives/zip_directory.py",
        "    if one.flags & (1 | 1 << 6 | 1 << 13) or one.method == 99:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "entries that overlap",
        "archives/zip_directory.py",
        "    if one.header < position:",
        "    if False:",
        f"{_ZIPS}entries_that_share_one_compressed_block_are_refused",
    ),
    _of(
        "bytes between entries",
        "archives/zip_directory.py",
        "    if one.header > position:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
        f"{_ZIPS}hidden_data_before_the_first_entry_is_refused",
    ),
    _of(
        "bytes behind the last",
        "archives/zip_directory.py",
        "    if position != first:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "bytes behind the archive",
        "archives/zip_directory.py",
        "    if end + _END.size + comment != size:",
        "    if False:",
        f"{_ZIPS}a_zip_that_is_two_things_at_once_is_refused",
    ),
    _of(
        "two names",
        "archives/zip_directory.py",
        "    if rest[:name_length] != one.raw:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "two methods",
        "archives/zip_directory.py",
        "    if (method, flags & 9) != (one.method, one.flags & 9):",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "two sizes",
        "archives/zip_directory.py",
        "        if (crc, *sizes) != (one.crc, one.size, one.packed):",
        "        if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "a table of contents that is too large",
        "archives/zip_directory.py",
        " or length > max(1, max_entries) * _MEAN_DIRECTORY_ENTRY",
        "",
        f"{_ZIPS}a_zip_whose_table_of_contents_is_huge_is_refused_before_it_is_read",
    ),
    _of(
        "real bytes are counted",
        "archives/zip_directory.py",
        "        if length > entry.size:",
        "        if False:",
        f"{_ZIPS}a_bomb_that_lies_about_its_size_is_stopped_at_that_size",
    ),
    _of(
        "and must be as many as declared",
        "archives/zip_directory.py",
        "    if length != entry.size:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "checksums",
        "archives/zip_directory.py",
        "    if crc != entry.crc:",
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "bytes behind compressed content",
        "archives/zip_directory.py",
        '    if engine.unused_data or next(packed, b""):',
        "    if False:",
        f"{_ZIPS}a_zip_entry_that_lies_or_is_no_file_is_refused_by_name",
    ),
    _of(
        "bombs that say so",
        "bundles/expand.py",
        "        self._check_ratio(sum(entry.size for entry in entries), packed)\n",
        "",
        f"{_ZIPS}a_bomb_that_says_so_is_refused_before_anything_is_unpacked",
    ),
    _of(
        "bombs in gzip",
        "bundles/expand.py",
        "            self._check_ratio(total, self._size)\n",
        "",
        f"{_TARS}a_gzip_bomb_is_stopped_early",
    ),
    _of(
        "more bytes than allowed",
        "bundles/expand.py",
        "        if self._content > self._max_bytes:",
        "        if False:",
        f"{_ARCHIVES}folders_and_what_is_left_out_are_bounded_too",
    ),
    _of(
        "uploaded tars: links and devices",
        "archives/tar_reader.py",
        "    if header.kind in _REFUSED_KINDS:",
        "    if False:",
        f"{_TARS}a_tar_member_that_is_no_file_is_refused_by_name",
    ),
    _of(
        "sparse files",
        "archives/tar_reader.py",
        '    if any(key.startswith((b"GNU.sparse.", b"SCHILY.realsize")) for key in records):',
        "    if False:",
        f"{_TARS}a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "damaged headers",
        "archives/tar_reader.py",
        "    if sum(block) - sum(block[148:156]) + 8 * 0x20 != declared:",
        "    if False:",
        f"{_TARS}a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "huge extended headers",
        "archives/tar_reader.py",
        "        if self._left > (_MAX_PAX if is_pax else _MAX_LONG_NAME):",
        "        if False:",
        f"{_TARS}a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "names that are given twice",
        "archives/tar_reader.py",
        "    if extended.name is not None:\n        raise",
        "    if False:\n        raise",
        f"{_TARS}a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "names and sizes for every file",
        "archives/tar_reader.py",
        '    for key in (b"path", b"size", b"linkpath") if for_all else ():',
        "    for key in ():",
        f"{_TARS}a_tar_that_plays_tricks_is_refused",
    ),
    _of(
        "what follows the end",
        "archives/tar_reader.py",
        "            if padding > _MAX_PADDING or rest.count(0) != len(rest):",
        "            if False:",
        f"{_TARS}a_tar_that_plays_tricks_is_refused",
    ),
)
