"""What is shown of a file."""

from __future__ import annotations

import html
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.web.job.content import (
    MAX_COLUMNS,
    MAX_ROWS,
    hex_rows,
    is_binary,
    read_table,
    read_text,
    visible,
)
from server.web.job.files import folder_of, folder_page, prefix_of
from shared.files.archives.zip_index import ListedFile


def whole(data: bytes, window: int) -> tuple[list[str], int]:
    """All windows of a file, one behind another, and how many there are."""
    found: list[str] = []
    at = count = 0
    encoding = ""
    while at < len(data):
        text = read_text(
            data[at : at + window], at, at_end=at + window >= len(data), encoding=encoding
        )
        assert text.stop > at
        found += [html.unescape(re.sub("<[^>]*>", "", line)) for line in text.lines]
        at, encoding, count = text.stop, text.encoding, count + 1
    assert at == len(data)
    return found, count


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just("\n"), max_size=400))
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_windows_of_a_text_together_are_the_text(encoding: str, text: str) -> None:
    lines, _ = whole(text.encode(encoding), 64)
    # A line that is longer than half of a window is shown in several pieces.
    assert "".join(lines) == text.replace("\n", "").removeprefix("\ufeff")


def test_windows_end_with_lines_where_they_can() -> None:
    text = "".join(f"line {number} ü\n" for number in range(500))
    lines, count = whole(text.encode(), 1_000)
    assert lines == text.splitlines()
    assert count > 5


@given(st.binary(max_size=300))
def test_whatever_the_bytes_are_they_can_be_shown(data: bytes) -> None:
    whole(data, 50)
    is_binary(data)
    assert len(hex_rows(data)) == (len(data) + 15) // 16
    table = read_table(data.decode("latin-1"), at_end=True)
    assert len(table.rows) <= MAX_ROWS
    assert len(table.numbers) <= MAX_COLUMNS


def test_what_is_not_seen_is_shown_as_its_number() -> None:
    for odd in "\u202e\u2066\u200b\ufeff\x00\x1b\x7f\x85\u2028\ud800\U000e0041":
        shown = str(visible(f"<a{odd}b>"))
        assert odd not in shown
        assert f"\\u{{{ord(odd):x}}}" in shown
        assert shown.startswith("&lt;a")
    assert visible("plain ü 中") == "plain ü 中"


@given(
    st.lists(st.text("ab/", min_size=1, max_size=6).filter(lambda one: not one.endswith("/"))),
    st.sampled_from(["", "a", "/", "a/b", "a//"]),
    st.integers(1, 4),
)
def test_the_pages_of_a_folder_together_have_all_that_is_in_it(
    paths: list[str], folder: str, most: int
) -> None:
    prefix = prefix_of(folder)
    assert prefix_of(folder_of(prefix)) == prefix
    listed = [ListedFile(one, 1, 0) for one in dict.fromkeys(paths)]
    folders, files, after = [], [], ""
    while True:
        page = folder_page(listed, prefix, "", after, most)
        folders += [(one.name, one.files) for one in page.folders]
        files += [one.path for one in page.files]
        assert len(page.folders) + len(page.files) <= most
        if page.after is None:
            break
        after = page.after
    inside = [one.path[len(prefix) :] for one in listed if one.path.startswith(prefix)]
    below: dict[str, int] = {}
    for one in inside:
        if "/" in one:
            below[one.partition("/")[0]] = below.get(one.partition("/")[0], 0) + 1
    assert folders == sorted(below.items())
    assert files == sorted(prefix + one for one in inside if "/" not in one)


def test_a_cell_with_many_blanks_in_it_costs_no_more_than_another() -> None:
    row = "1" + " " * 100_000 + "x"
    began = time.thread_time()
    table = read_table(f"a\n{row}\n{row}\n", at_end=True)
    assert time.thread_time() - began < 1  # blanks tried in all divisions take minutes
    assert table.numbers == [False]


def test_a_text_of_characters_that_are_not_seen_is_shown_at_once() -> None:
    data = ("a\u200b" * 16_384).encode()
    began = time.thread_time()
    text = read_text(data, 0, at_end=True)
    assert time.thread_time() - began < 1
    assert text.lines[0].count('<span class="odd">\\u{200b}</span>') == 16_384
