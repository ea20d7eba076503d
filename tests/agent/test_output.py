"""What a job says in lines of its output: which mean something, and what is kept of them."""

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_agent.output.commands import (
    MAX_LATER_S,
    MAX_TEXT,
    AddNotice,
    Heartbeat,
    Malformed,
    SetOutput,
    SetProgress,
    parse,
)
from client_agent.output.live import (
    MAX_LINE,
    MAX_NOTICE_BYTES,
    MAX_NOTICES,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUTS,
    CommandLines,
    LiveOutput,
)
from shared.clock import iso
from shared.wire import LiveDoc, Progress, RetryLater
from tests.kit.clock import START, SimClock
from tests.kit.each import each


def progress(current: float, total: float | None = None, message: str = "") -> SetProgress:
    return SetProgress(Progress(current=current, total=total), message)


CUT = b"\x01" * (MAX_LINE - 10), ("\\x01" * MAX_TEXT)[:MAX_TEXT]
COMMANDS: list[tuple[bytes, Any]] = [
    (b"::progress value=45,total=100::step 45 of 100", progress(45, 100, "step 45 of 100")),
    (b"::progress value=0.5::", progress(0.5)),
    (b"::progress  total = 1e3 , value = .5 ::a::b", progress(0.5, 1000, "a::b")),
    (b"::progress value=1,total=::", progress(1)),
    (b"::notice::text", AddNotice("notice", "text")),
    (b"::warning a=x,b = 3%2C4 ,::t", AddNotice("warning", "t", fields={"a": "x", "b": "3,4"})),
    (b"::event name=pages.done,n=3::third", AddNotice("info", "third", "pages.done", {"n": "3"})),
    (b"::event name=A_b.c-d.9::", AddNotice("info", "", "A_b.c-d.9")),
    (b"::error::", AddNotice("error", "")),
    (b"::heartbeat::", Heartbeat()),
    (b"::output name=score::0.93", SetOutput("score", "0.93")),
    (b"::output name=score,type=text::{}", SetOutput("score", "{}")),
    (b"::output name=score::\x1b[31m", SetOutput("score", "\\x1b[31m")),
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
    (b"::notice::" + CUT[0], AddNotice("notice", CUT[1])),
    # other lines are text
    *((line, None) for line in (b"::", b"::1 localhost", b":: a::", b"::Progress::", b"::group")),
    (b"::\xff::", None),
]


@each("line, command", COMMANDS)
def test_what_a_line_means(line: bytes, command: Any) -> None:
    assert parse(line) == command


@each(
    "line, why",
    [
        (b"::progress value=45", "the second ::"),
        (b"::progress::", "value is not a number"),
        *(
            (b"::progress value=" + text + b"::", "value is not a number")
            for text in (b"nan", b"inf", b"1e16", b"1e999", b"-1", b"1_0", b"9" * 5000)
        ),
        ("::progress value=\u0661::".encode(), "value is not a number"),
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


@given(st.binary(max_size=300).map(lambda rest: b"::" + rest))
def test_no_line_breaks_it(line: bytes) -> None:
    try:
        command = parse(line)
    except Malformed as problem:
        assert str(problem)  # noqa: PT017 - either is right
    else:
        assert "\0" not in repr(command)


@each("head", [b"::progress value=", b"::progress ", b"::output name=", b"::notice::", b"::"])
def test_a_line_takes_steps_as_it_is_long(head) -> None:
    """The square of a mebibyte of steps would not end in the time that a test has."""
    for filler in (b" ", b",", b"=", b"%", b":", b"9", b"\xff", b"%0A", b".e"):
        with contextlib.suppress(Malformed):
            parse(head + filler * (1 << 20) + b"::")


# -- lines that may be commands are found, however the stream was split

_PIECES = st.sampled_from(
    [b":", b"::", b"\n", b"\r\n", b"\r", b"a", b" ", b"::a::b", b"\xff", b"x" * 20, b":" * MAX_LINE]
)


def lines_of(*pieces: bytes) -> list[bytes]:
    lines: list[bytes] = []
    reader = CommandLines(lines.append)
    counted = sum(map(reader.feed, pieces))
    assert counted == len(lines)
    reader.end()
    return lines


@given(st.lists(_PIECES, max_size=30), st.data())
def test_any_split_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    simply = [line for line in whole.split(b"\n") if len(line) <= MAX_LINE]
    wanted = [line.removesuffix(b"\r") for line in simply if line.startswith(b"::")]
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=10).map(sorted))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*(part for part in parts if part)) == wanted
    if len(whole) <= 1_000:
        assert lines_of(*(whole[at : at + 1] for at in range(len(whole)))) == wanted


@each("end", [b"", b"\n"])
def test_a_line_of_the_longest_length_is_found_and_a_longer_one_is_not(end: bytes) -> None:
    longest = b"::" + b"x" * (MAX_LINE - 2)
    assert lines_of(longest + end) == [longest]
    assert lines_of(longest + b"y" + end) == []
    assert lines_of(longest, b"y", b"z" * 100_000, end or b"\n", b"::next::") == [b"::next::"]
    reader = CommandLines(lambda _: None)
    for _ in range(10):
        reader.feed(b"::" + b"x" * 100_000)
    assert reader._begun is None, "its start is not kept"


def said(*lines: str) -> LiveDoc:
    output = LiveOutput(SimClock())
    output.on_output("stdout", "".join(f"{line}\n" for line in lines).encode())
    output.end()
    return output.doc()


def texts(doc: LiveDoc) -> list[str]:
    return [notice.text for notice in doc.notices]


def test_the_latest_values_count() -> None:
    doc = said(
        "::progress value=1,total=3::one",
        "::output name=a::1",
        "hello",
        "::progress value=2,total=3::two",
        "::output name=a::2",
        "::warning page=3::hot",
        "::event name=pages.done,page=4::y",
    )
    assert (doc.progress, doc.message) == (Progress(current=2, total=3), "two")
    assert (doc.output, doc.heartbeat_at) == ({"a": "2"}, iso(START))
    lines = ["::output name=b,type=json::[1]", "::output name=a,type=json::2"]
    assert (said(*lines).output, said(*lines).json_outputs) == ({"b": "[1]", "a": "2"}, ["a", "b"])
    assert said(*lines, "::output name=b::[1]").json_outputs == ["a"], "as long as it is JSON"
    assert [(one.event, one.level, one.text, one.fields, one.at) for one in doc.notices] == [
        ("", "warning", "hot", {"page": "3"}, iso(START)),
        ("pages.done", "info", "y", {"page": "4"}, iso(START)),
    ]


async def test_only_stdout_has_commands_up_to_its_end_and_every_output_is_a_sign_of_life() -> None:
    clock = SimClock()
    output = LiveOutput(clock)
    assert output.doc().heartbeat_at is None
    await clock.advance(5)
    output.on_output("stderr", b"::output name=a::1\n")
    await clock.advance(5)
    assert (output.last_sign, output.doc().heartbeat_at) == (5.0, iso(START + 5_000_000))
    assert (output.doc().output, output.doc().stderr_bytes) == ({}, 19)
    for data in (b"::output name=score::0.9", b"3"):
        output.on_output("stdout", data)
    output.end()
    assert output.doc().output == {"score": "0.93"}


def test_what_is_malformed_is_one_notice_that_names_the_first() -> None:
    doc = said("::progress value=x::", "::output::1", "::notice::after", "::unknown::")
    first, after = texts(doc)
    assert first.startswith("a line was ignored: ::progress value=x:: (value is not")
    assert after == "after"
    assert doc.notices[0].level == "warning"
    (cut,) = texts(said(f"::unknown::{'x' * 200}"))
    assert f"{'x' * 69}… (there is" in cut, "what is left out is seen"


def test_notices_have_a_limit_and_the_last_one_says_so() -> None:
    doc = said(*(f"::notice::{n}" for n in range(MAX_NOTICES + 50)))
    assert texts(doc)[:MAX_NOTICES] == [str(n) for n in range(MAX_NOTICES)]
    assert texts(doc)[MAX_NOTICES:] == ["more than 100 notices: the rest is only in the log"]
    doc = said(*(f"::notice a={'v' * 1000},b={'v' * 1000}::" for _ in range(MAX_NOTICES)))
    assert len(doc.notices) == MAX_NOTICE_BYTES // 2002 + 1, "fields count as the text does"
    assert "the rest is only in the log" in doc.notices[-1].text


def test_the_largest_document_fits_into_a_line_that_a_server_reads() -> None:
    hostile = '"' * 4000
    doc = said(
        *(f"::notice::{hostile}" for _ in range(MAX_NOTICES)),
        *("::notice::" + "\U0001f600" * 1024 for _ in range(MAX_NOTICES)),
        *(f"::output name={'n' * 60}{n}::{hostile}" for n in range(MAX_OUTPUTS)),
    )
    assert sum(len(notice.text.encode()) for notice in doc.notices[:-2]) <= MAX_NOTICE_BYTES
    assert 1 << 16 < len(doc.model_dump_json().encode()) < 1 << 18


def test_outputs_have_limits_and_those_known_can_still_change() -> None:
    names = [f"n{n}" for n in range(MAX_OUTPUTS + 2)]
    doc = said(*(f"::output name={name}::1" for name in names), "::output name=n0::2")
    assert list(doc.output) == names[:MAX_OUTPUTS]
    assert doc.output["n0"] == "2"
    assert texts(doc) == ["output n100 is ignored: there are 100 names"]
    large = "ä" * 2048
    many: Iterable[str] = (f"::output name={n:02}::{large}" for n in range(20))
    doc = said(*many, *(f"::output name=00::{n}" for n in range(50)), f"::output name=99::{large}")
    sized = sum(len(name) + len(value.encode()) for name, value in doc.output.items())
    assert sized <= MAX_OUTPUT_BYTES, "what is there now"
    assert (doc.output["00"], doc.output["99"]) == ("49", large)
    assert texts(doc) == ["output 15 is ignored: all may have 65536 bytes together"]


def test_changes_are_told_once_for_output_and_each_time_for_commands() -> None:
    changes: list[bool] = []
    output = LiveOutput(SimClock(), changes.append)
    output.start()
    for data in (b"a\n", b"b\n", b"::heartbeat::\n::heartbeat::\n", b"c\n"):
        output.on_output("stdout", data)
    assert changes == [False, True]
    output.doc()
    output.on_output("stderr", b"d\n")
    assert changes == [False, True, False]
    silent = LiveOutput(SimClock())
    silent.on_output("stdout", b"hello\n::1 localhost\n")
    silent.end()
    assert silent.doc_if_any() is None
