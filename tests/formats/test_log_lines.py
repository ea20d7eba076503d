"""What programs write for terminals, as HTML."""

from __future__ import annotations

import re
import sys
from html import unescape
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.web.job.lines import CLASSES, PLAIN, nearest, render, stripped, style_after
from tests.kit.each import each

_TAG = re.compile(r"<[^>]*>")
_SPAN = re.compile(r'<span class="([a-z0-9 ]+)">')
_COMPLETE = st.sampled_from(
    ["\x1b[31m", "\x1b[1;7m", "\x1b[0m", "\x1b[2K", "\x1b]8;;http://x\x1b\\", "\x1bPq\x1b\\"]
)
_WORDS = re.split(" ", "[31m 1;3 m 38;5; 38;2;1;2;3m 48:2::9:9:9m <script> </span> &lt; 7m text")
_HALF = st.sampled_from([*_WORDS, *'\x1b"\r\n\x07\x9b\u202e\t', "\x1b[", "\x1bP", "\x1b]"])
_PIECES = st.one_of(_COMPLETE, _HALF)
ANY = st.lists(st.one_of(_PIECES, st.text(max_size=5))).map("".join)


@each(
    ("text", "html"),
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
def test_colours_are_classes_and_all_else_is_left_out(text, html):
    assert str(render(text)[0]) == html


def test_a_style_goes_on_behind_the_end_of_a_line():
    _, style = render("\x1b[1;31mone")
    assert str(render("two", style)[0]) == '<span class="b f1">two</span>'
    assert render("\x1b[0mthree", style) == ("three", PLAIN)


@given(ANY)
def test_nothing_but_spans_with_known_classes_is_made(text):
    html = str(render(text)[0])
    for tag in _TAG.findall(html):
        span = _SPAN.fullmatch(tag)
        assert tag == "</span>" or (span is not None and set(span[1].split()) <= CLASSES)
    assert html.count("<span ") == html.count("</span>")
    assert "\x1b" not in html


_SEEN = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]), max_size=5)


@given(st.lists(st.tuples(_COMPLETE, _SEEN)))
def test_text_is_neither_lost_nor_made(pairs):
    text = "".join(sequence + seen for sequence, seen in pairs)
    seen = "".join(seen for _, seen in pairs)
    assert unescape(_TAG.sub("", str(render(text)[0]))) == seen
    assert stripped(text) == seen


@given(ANY, ANY)
def test_the_style_behind_text_is_the_same_whether_it_is_shown_or_not(one, two):
    style = render(one)[1]
    assert style == style_after(one, PLAIN)
    assert render(two, style)[1] == style_after(two, style)


@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_every_colour_has_a_nearest_one(colour):
    assert 0 <= nearest(*colour) <= 15


@each(
    "part",
    [
        "\x1b[31mx",
        "\x1b]8;;",
        "\x1b[1;1;1",
        f"\x1b[{'1;' * 50}m",
        "\x1bP",
        "\r",
        "\x1b[ !",
        "x\x00",
    ],
)
def test_it_takes_time_in_proportion_to_the_text(part):
    small, large = steps(part * 300), steps(part * 1200)
    assert large < 5 * small


def steps(text: str) -> int:
    """Lines of Python that run; what its pattern does it does once for each place."""
    count = 0

    def trace(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        render(text)
    finally:
        sys.settrace(before)
    return count
