"""What is kept of an attempt's commands, and its bounds."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from client_agent.output.live import (
    MAX_NOTICE_BYTES,
    MAX_NOTICES,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUTS,
    LiveOutput,
)
from shared.clock import iso
from shared.wire import LiveDoc, Progress
from tests.kit.clock import START, SimClock


def said(*lines: str, end: bool = True) -> LiveDoc:
    output = LiveOutput(SimClock())
    output.on_output("stdout", "".join(f"{line}\n" for line in lines).encode())
    if end:
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
        "::warning::hot",
    )
    assert (doc.progress, doc.message) == (Progress(current=2, total=3), "two")
    assert doc.output == {"a": "2"}
    (notice,) = doc.notices
    assert (notice.level, notice.text, notice.at) == ("warning", "hot", iso(START))
    assert doc.heartbeat_at == iso(START)


def test_a_notice_keeps_its_fields_and_an_event_its_name() -> None:
    doc = said("::notice page=3::x", "::event name=pages.done,page=4::y")
    assert [(one.event, one.level, one.text, one.fields) for one in doc.notices] == [
        ("", "notice", "x", {"page": "3"}),
        ("pages.done", "info", "y", {"page": "4"}),
    ]


def test_a_value_that_is_json_is_named_as_long_as_it_is() -> None:
    lines = ["::output name=b,type=json::[1]", "::output name=a,type=json::2"]
    assert (said(*lines).output, said(*lines).json_outputs) == ({"b": "[1]", "a": "2"}, ["a", "b"])
    assert said(*lines, "::output name=b::[1]").json_outputs == ["a"]


def test_fields_count_as_the_text_does() -> None:
    doc = said(*(f"::notice a={'v' * 1000},b={'v' * 1000}::" for _ in range(MAX_NOTICES)))
    assert len(doc.notices) == MAX_NOTICE_BYTES // 2002 + 1
    assert "the rest is only in the log" in doc.notices[-1].text


def test_a_last_line_without_an_end_counts_once_the_stream_has_ended() -> None:
    output = LiveOutput(SimClock())
    output.on_output("stdout", b"::output name=score::0.9")
    assert output.doc().output == {}
    output.on_output("stdout", b"3")
    output.end()
    assert output.doc().output == {"score": "0.93"}


def test_only_stdout_has_commands() -> None:
    output = LiveOutput(SimClock())
    output.on_output("stderr", b"::output name=a::1\n")
    assert (output.doc().output, output.doc().stderr_bytes) == ({}, 19)


async def test_every_output_is_a_sign_of_life() -> None:
    clock = SimClock()
    output = LiveOutput(clock)
    assert output.doc().heartbeat_at is None
    await clock.advance(5)
    output.on_output("stderr", b".")
    await clock.advance(5)
    assert (output.last_sign, output.doc().heartbeat_at) == (5.0, iso(START + 5_000_000))


def test_what_is_malformed_is_one_notice_that_names_the_first() -> None:
    doc = said("::progress value=x::", "::output::1", "::notice::after", "::unknown::")
    first, after = texts(doc)
    assert first.startswith("a line was ignored: ::progress value=x:: (value is not")
    assert after == "after"
    assert doc.notices[0].level == "warning"


def test_notices_have_a_limit_and_the_last_one_says_so() -> None:
    doc = said(*(f"::notice::{n}" for n in range(MAX_NOTICES + 50)))
    assert texts(doc)[:MAX_NOTICES] == [str(n) for n in range(MAX_NOTICES)]
    assert texts(doc)[MAX_NOTICES:] == ["more than 100 notices: the rest is only in the log"]


def test_the_largest_document_fits_into_a_line_that_a_server_reads() -> None:
    hostile = '"' * 4000
    doc = said(
        *(f"::notice::{hostile}" for _ in range(MAX_NOTICES)),
        *("::notice::" + "\U0001f600" * 1024 for _ in range(MAX_NOTICES)),
        *(f"::output name={'n' * 60}{n}::{hostile}" for n in range(MAX_OUTPUTS)),
    )
    assert sum(len(notice.text.encode()) for notice in doc.notices[:-2]) <= MAX_NOTICE_BYTES
    assert 1 << 16 < len(doc.model_dump_json().encode()) < 1 << 18


def test_outputs_have_a_limit_of_names_and_those_known_can_still_change() -> None:
    names = [f"n{n}" for n in range(MAX_OUTPUTS + 2)]
    doc = said(*(f"::output name={name}::1" for name in names), "::output name=n0::2")
    assert list(doc.output) == names[:MAX_OUTPUTS]
    assert doc.output["n0"] == "2"
    assert texts(doc) == ["output n100 is ignored: there are 100 names"]


def sized(doc: LiveDoc) -> int:
    return sum(len(name) + len(value.encode()) for name, value in doc.output.items())


def test_outputs_have_a_limit_of_bytes_which_counts_what_is_there_now() -> None:
    large = "ä" * 2048
    many: Iterable[str] = (f"::output name={n:02}::{large}" for n in range(20))
    doc = said(*many, *(f"::output name=00::{n}" for n in range(50)), f"::output name=99::{large}")
    assert sized(doc) <= MAX_OUTPUT_BYTES
    assert (doc.output["00"], doc.output["99"]) == ("49", large)
    assert texts(doc) == ["output 15 is ignored: all may have 65536 bytes together"]


_LINE = st.sampled_from(
    [
        *("::progress value=1::a", "::notice::x", "::output name=a::1", "::output name=b::2"),
        *("plain", "", "::", "::bad::", "::retry-later after=5m::busy", "::heartbeat::"),
    ]
)


@given(st.lists(_LINE, max_size=40), st.integers(1, 50))
def test_any_split_gives_the_same_document(lines: list[str], size: int) -> None:
    data = "\n".join(lines).encode()
    whole, split = LiveOutput(SimClock()), LiveOutput(SimClock())
    whole.on_output("stdout", data)
    for at in range(0, len(data), size):
        split.on_output("stdout", data[at : at + size])
    whole.end()
    split.end()
    assert (split.doc(), split.retry_later) == (whole.doc(), whole.retry_later)


def test_who_says_nothing_leaves_nothing() -> None:
    output = LiveOutput(SimClock())
    output.on_output("stdout", b"hello\n::1 localhost\n")
    output.end()
    assert output.doc_if_any() is None


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
