"""Text that jobs wrote, as HTML: logs, with what is meant for terminals, and files."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.web.job import content
from server.web.job.files import folder_of, folder_page, prefix_of
from server.web.job.lines import CLASSES, PLAIN, render, stripped, style_after
from shared.files.archives.zip_reader import ListedFile
from tests.kit.each import each

_TAG = re.compile(r"<[^>]*>")
_SPAN = re.compile(r'<span class="([a-z0-9 ]+)">')
_SEQUENCES = ["[31m", "[1;7m", "[0m", "[2K", "]8;;http://x\x1b\\", "Pq\x1b\\"]
_COMPLETE = st.sampled_from([f"\x1b{one}" for one in _SEQUENCES])
_WORDS = re.split(" ", "[31m 1;3 m 38;5; 38;2;1;2;3m 48:2::9:9:9m <script> </span> &lt; 7m text")
_HALF = st.sampled_from([*_WORDS, *'\x1b"\r\n\x07\x9b\u202e\t', "\x1b[", "\x1bP", "\x1b]"])
_PIECES = st.one_of(_COMPLETE, _HALF)
ANY = st.lists(st.one_of(_PIECES, st.text(max_size=5))).map("".join)


@each(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", '<span class="f1">red</span>'),
        ("\x1b[1;4;91;100mx", '<span class="b u f9 g8">x</span>'),
        ("\x1b[2md\x1b[22mn", '<span class="d">d</span>n'),
        ("\x1b[31;42;7mx", '<span class="f2 g1">x</span>'),
        ("\x1b[7mx\x1b[27my", '<span class="r">x</span>y'),
        ("\x1b[31;7mx", '<span class="g1">x</span>'),
        ("\x1b[mx", "x"),
        ("\x1b[38;5;9mx", '<span class="f9">x</span>'),
        ("\x1b[38;5;196mx\x1b[39my", '<span class="f1">x</span>y'),
        ("\x1b[48;5;21mx\x1b[49my", '<span class="g4">x</span>y'),
        ("\x1b[38;2;0;200;0mx", '<span class="f2">x</span>'),
        ("\x1b[38:2::0:0:255mx", '<span class="f4">x</span>'),
        ("\x1b[4:3mx\x1b[4:0my", '<span class="u">x</span>y'),
        ("\x1b[38;5;300mx", "x"),
        ("\x1b[38;2;1mx", "x"),
        ("\x1b[999999999;1mx", '<span class="b">x</span>'),
        ("a\x1b[2Kb\x1b[10;20Hc\x1b[?25ld", "abcd"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ends", "0;never ends"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x1b(Bx\x1b=y", "xy"),
        ("x\x1b", "x"),
        ("x\x1b[31", "x31"),
        ("\x00\x07\x08\x7f\x9b", "\u2400\u2421\ufffd"),
        ("<b>&\"'", "&lt;b&gt;&amp;&#34;&#39;"),
        ("a\u202eb\u2066", "a\\u{202e}b\\u{2066}"),
        ("\x1b[31m<i>", '<span class="f1">&lt;i&gt;</span>'),
        ("\x1b[31m\x1b[32m", ""),
        ("\x1b[31ma\x1b[31mb", '<span class="f1">ab</span>'),
    ],
)
def test_colours_are_classes_and_all_else_is_left_out(text, shown):
    assert str(render(text)[0]) == shown


def test_a_style_goes_on_behind_the_end_of_a_line():
    _, style = render("\x1b[1;31mone")
    assert str(render("two", style)[0]) == '<span class="b f1">two</span>'
    assert render("\x1b[0mthree", style) == ("three", PLAIN)


@given(ANY)
def test_nothing_but_spans_with_known_classes_is_made(text):
    made = str(render(text)[0])
    for tag in _TAG.findall(made):
        span = _SPAN.fullmatch(tag)
        assert tag == "</span>" or (span is not None and set(span[1].split()) <= CLASSES)
    assert made.count("<span ") == made.count("</span>")
    assert "\x1b" not in made


_SEEN = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]), max_size=5)


@given(st.lists(st.tuples(_COMPLETE, _SEEN)))
def test_text_is_neither_lost_nor_made(pairs):
    text = "".join(sequence + seen for sequence, seen in pairs)
    seen = "".join(seen for _, seen in pairs)
    assert html.unescape(_TAG.sub("", str(render(text)[0]))) == seen
    assert stripped(text) == seen


@given(ANY, ANY)
def test_the_style_behind_text_is_the_same_whether_it_is_shown_or_not(one, two):
    style = render(one)[1]
    assert style == style_after(one, PLAIN)
    assert render(two, style)[1] == style_after(two, style)


def whole(data: bytes, window: int) -> tuple[list[str], int]:
    """All windows of a file, one behind another, and how many there are."""
    found: list[str] = []
    at = count = 0
    encoding = ""
    while at < len(data):
        end = at + window
        text = content.read_text(data[at:end], at, at_end=end >= len(data), encoding=encoding)
        assert text.stop > at
        found += [html.unescape(_TAG.sub("", line)) for line in text.lines]
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
    assert (lines, count > 5) == (text.splitlines(), True)


@given(st.binary(max_size=300))
def test_whatever_the_bytes_are_they_can_be_shown(data: bytes) -> None:
    whole(data, 50)
    content.is_binary(data)
    assert len(content.hex_rows(data)) == (len(data) + 15) // 16
    table = content.read_table(data.decode("latin-1"), at_end=True)
    assert len(table.rows) <= content.MAX_ROWS
    assert len(table.numbers) <= content.MAX_COLUMNS


def test_what_is_not_seen_is_shown_as_its_number() -> None:
    for odd in "\u202e\u2066\u200b\ufeff\x00\x1b\x7f\x85\u2028\ud800\U000e0041":
        shown = str(content.visible(f"<a{odd}b>"))
        assert odd not in shown
        assert f"\\u{{{ord(odd):x}}}" in shown
        assert shown.startswith("&lt;a")
    assert content.visible("plain ü 中") == "plain ü 中"


@given(
    st.lists(st.text("ab/", min_size=1, max_size=6).filter(lambda one: not one.endswith("/"))),
    st.sampled_from(["", "a", "/", "a/b", "a//"]),
    st.integers(1, 4),
)
def test_the_pages_of_a_folder_together_have_all_that_is_in_it(paths, folder, most):
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
