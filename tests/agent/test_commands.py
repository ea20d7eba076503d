"""What each line means, and which lines mean nothing."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_agent.output.commands import (
    MAX_LATER_S,
    MAX_TEXT,
    AddNotice,
    Command,
    Heartbeat,
    Malformed,
    SetOutput,
    SetProgress,
    parse,
)
from client_agent.output.live import MAX_LINE, CommandLines
from shared.wire import Progress, RetryLater
from tests.kit.each import each


def progress(current: float, total: float | None = None, message: str = "") -> SetProgress:
    return SetProgress(Progress(current=current, total=total), message)


@each(
    ("line", "command"),
    [
        (b"::progress value=45,total=100::step 45 of 100", progress(45, 100, "step 45 of 100")),
        (b"::progress value=0.5::", progress(0.5)),
        (b"::progress  total = 1e3 , value = .5 ::a::b", progress(0.5, 1000, "a::b")),
        (b"::progress value=1,total=::", progress(1)),
        (b"::notice::text", AddNotice("notice", "text")),
        (
            b"::warning file=x,line = 3%2C4 ,::text",
            AddNotice("warning", "text", fields={"file": "x", "line": "3,4"}),
        ),
        (
            b"::event name=pages.done,page=3::third page",
            AddNotice("info", "third page", "pages.done", {"page": "3"}),
        ),
        (b"::event name=A_b.c-d.9::", AddNotice("info", "", "A_b.c-d.9")),
        (b"::error::", AddNotice("error", "")),
        (b"::heartbeat::", Heartbeat()),
        (b"::output name=score::0.93", SetOutput("score", "0.93")),
        (b"::output name=score,type=text::{}", SetOutput("score", "{}")),
        (
            b'::output name=score,type=json:: { "a" : [1, 2.5, null], "b": "\\u00e9"}',
            SetOutput("score", '{"a":[1,2.5,null],"b":"é"}', is_json=True),
        ),
        (b"::output name=a-b_c.d:: spaces stay ", SetOutput("a-b_c.d", " spaces stay ")),
        (b"::retry-later after=60s::GPU busy", RetryLater(after_s=60, message="GPU busy")),
        (b"::retry-later::", RetryLater(after_s=None)),
        (b"::retry-later after=3w::", RetryLater(after_s=MAX_LATER_S)),
        (b"::notice::a%0Ab%25c%250Ad%0d%zz", AddNotice("notice", "a\nb%c%0Ad\\r%zz")),
        (b"::notice::\xff \x1b[31m \xe2\x80\xae", AddNotice("notice", "� \\x1b[31m \\u202e")),
    ],
)
def test_a_command_is_understood(line: bytes, command: Command) -> None:
    assert parse(line) == command


@each("line", [b"::", b"::1 localhost", b":: a::", b"::Progress::", b"::group", b"::\xff::"])
def test_other_lines_are_text(line: bytes) -> None:
    assert parse(line) is None


@each(
    ("line", "why"),
    [
        (b"::progress value=45", "the second ::"),
        (b"::progress::", "value is not a number"),
        (b"::progress value=nan::", "value is not a number"),
        (b"::progress value=inf::", "value is not a number"),
        (b"::progress value=1e16::", "value is not a number"),
        (b"::progress value=1e999::", "value is not a number"),
        (b"::progress value=-1::", "value is not a number"),
        (b"::progress value=1_0::", "value is not a number"),
        ("::progress value=\u0661::".encode(), "value is not a number"),
        (b"::progress value=" + b"9" * 5000 + b"::", "value is not a number"),
        (b"::progress value=1,total=x::", "total is not a number"),
        (b"::output::1", "name is not"),
        (b"::output name=a b::1", "name is not"),
        (b"::output name=" + b"n" * 65 + b"::1", "name is not"),
        (b"::output name=a::" + b"v" * 4097, "more than 4096 bytes"),
        *(
            (f"::output name=a,type=json::{text}".encode(), why)
            for text, why in (
                ("{", "the value is not JSON: "),
                ("NaN", "NaN is not JSON"),
                ("1e999", "not JSON"),
                ('"\\ud800"', "half a character"),
                ("[" * 65 + "]" * 65, "nested too deeply"),
                ("[" * 9_000, "nested too deeply|not JSON"),
                (f'"{"v" * (16 << 10)}"', "more than 16384 bytes"),
            )
        ),
        (b"::output name=a,type=xml::1", "type is neither text nor json"),
        (b"::output name=a,typ=json::1", "there is no key typ"),
        (b"::progress value=1,of=3::", "there is no key of"),
        (b"::heartbeat now::", "there is no key now"),
        (b"::retry-later in=5m::", "there is no key in"),
        (b"::notice a b=1::", "there is no key a b"),
        (b"::notice " + b",".join(b"k%d=1" % n for n in range(17)) + b"::", "more than 16 keys"),
        *(
            (f"::event name={name}::".encode(), "name is not of dotted words")
            for name in ("", "done", "a..b", ".a", "a.", "a b.c", "job.done", "Job.x", "é.a")
        ),
        (b"::event name=ferryman.x::", "begins with job. or ferryman."),
        (b"::event name=a." + b"b" * 63 + b"::", "up to 64 characters"),
        (b"::retry-later after=soon::", "after is not a duration"),
        (b"::step value=1::", "there is no command step"),
    ],
)
def test_what_is_wrong_is_said(line: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        parse(line)


def test_a_message_is_cut() -> None:
    command = parse(b"::notice::" + b"\x01" * (MAX_LINE - 10))
    assert isinstance(command, AddNotice)
    assert len(command.text) == MAX_TEXT


@given(st.binary(max_size=300).map(lambda rest: b"::" + rest))
def test_no_line_breaks_it(line: bytes) -> None:
    try:
        command = parse(line)
    except Malformed as problem:
        assert str(problem)  # noqa: PT017 - either is right
    else:
        text = repr(command)
        assert "\0" not in text


@each(
    "head", [b"::progress value=", b"::progress ", b"::output name=", b"::notice::", b"::", b"::a "]
)
@each("filler", [b" ", b",", b"=", b"%", b":", b"9", b"\xff", b"%0A", b".e"])
def test_a_line_takes_time_as_it_is_long(head: bytes, filler: bytes) -> None:
    def least_s(length: int) -> float:
        """Of this thread, in the best of some tries."""
        line = (head + filler * length)[:length] + b"::"
        took = []
        for _ in range(5):
            began = time.thread_time()
            with contextlib.suppress(Malformed):
                parse(line)
            took.append(time.thread_time() - began)
        return min(took)

    short, long = least_s(MAX_LINE // 8), least_s(MAX_LINE)
    assert long < 30 * short + 0.001, "64 times is what a square takes"


# -- lines that may be commands are found, however the stream was split

_PIECES = st.sampled_from(
    [b":", b"::", b"\n", b"\r\n", b"\r", b"a", b" ", b"::a::b", b"\xff", b"x" * 20, b":" * MAX_LINE]
)


def lines_of(*pieces: bytes) -> list[bytes]:
    lines: list[bytes] = []
    reader = CommandLines(lines.append)
    counted = sum(map(reader.feed, pieces))
    before_end = len(lines)
    reader.end()
    assert counted == before_end
    return lines


def simply(data: bytes) -> list[bytes]:
    """The same, said in the simplest way."""
    lines = [line for line in data.split(b"\n") if len(line) <= MAX_LINE]
    return [line.removesuffix(b"\r") for line in lines if line.startswith(b"::")]


@given(st.lists(_PIECES, max_size=30), st.data())
def test_any_split_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=10).map(sorted))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*(part for part in parts if part)) == simply(whole)


def test_single_bytes_give_the_same_lines() -> None:
    data = b"a\n::b::\r\n::c::d\n:\n:: \nx::e::\n::last::"
    assert lines_of(*(data[i : i + 1] for i in range(len(data)))) == simply(data)
    assert simply(data) == [b"::b::", b"::c::d", b":: ", b"::last::"]


@each("end", [b"", b"\n"])
def test_a_line_of_the_longest_length_is_found_and_a_longer_one_is_not(end: bytes) -> None:
    longest = b"::" + b"x" * (MAX_LINE - 2)
    assert lines_of(longest + end) == [longest]
    assert lines_of(longest + b"y" + end) == []
    assert lines_of(longest, b"y", b"z" * 100_000, end or b"\n", b"::next::") == [b"::next::"]


def test_the_start_of_a_line_that_is_too_long_is_not_kept() -> None:
    reader = CommandLines(lambda _: None)
    for _ in range(10):
        reader.feed(b"::" + b"x" * 100_000)
    assert reader._begun is None
