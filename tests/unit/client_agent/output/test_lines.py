"""Lines that may be commands are found, however the stream was split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_agent.output.live import MAX_LINE, CommandLines

_PIECES = st.sampled_from(
    [b":", b"::", b"\n", b"\r\n", b"\r", b"a", b" ", b"::a::b", b"\xff", b"x" * 20, b":" * MAX_LINE]
)


def found(*pieces: bytes) -> list[bytes]:
    lines: list[bytes] = []
    reader = CommandLines(lines.append)
    counted = sum(map(reader.feed, pieces))
    before_end = len(lines)
    reader.end()
    assert counted == before_end
    return lines


def expected(data: bytes) -> list[bytes]:
    """The same, said in the simplest way."""
    lines = [line for line in data.split(b"\n") if len(line) <= MAX_LINE]
    return [line.removesuffix(b"\r") for line in lines if line.startswith(b"::")]


@given(st.lists(_PIECES, max_size=30), st.data())
def test_any_split_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=10).map(sorted))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert found(*(part for part in parts if part)) == expected(whole)


def test_single_bytes_give_the_same_lines() -> None:
    data = b"a\n::b::\r\n::c::d\n:\n:: \nx::e::\n::last::"
    assert found(*(data[i : i + 1] for i in range(len(data)))) == expected(data)
    assert expected(data) == [b"::b::", b"::c::d", b":: ", b"::last::"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_of_the_longest_length_is_found_and_a_longer_one_is_not(end: bytes) -> None:
    longest = b"::" + b"x" * (MAX_LINE - 2)
    assert found(longest + end) == [longest]
    assert found(longest + b"y" + end) == []
    assert found(longest, b"y", b"z" * 100_000, end or b"\n", b"::next::") == [b"::next::"]


def test_the_start_of_a_line_that_is_too_long_is_not_kept() -> None:
    reader = CommandLines(lambda _: None)
    for _ in range(10):
        reader.feed(b"::" + b"x" * 100_000)
    assert reader._begun is None
