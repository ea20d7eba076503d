from __future__ import annotations

import pytest

from client_agent.collect.result import last_lines


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"no newline", "no newline"),
        (b"a\r\nb\r\n", "a\nb"),
        (b"over\rwrite", "over\\rwrite"),
        (b"\x1b[31mred\x1b[0m\a", "\\x1b[31mred\\x1b[0m\\x07"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("‮evil\u200b".encode(), "\\u202eevil\\u200b"),
        (b"\xff\xfe\x00", "��\\x00"),
        ("tab\tand µ".encode(), "tab\tand µ"),
    ],
)
def test_the_end_of_a_log_shows_nothing_that_acts_on_a_terminal(log, shown):
    assert last_lines(log) == shown


def test_the_end_of_a_log_is_its_last_lines_whole():
    lines = [f"line {number}" for number in range(1000)]
    assert last_lines("\n".join(lines).encode()).split("\n") == lines[-20:]


@pytest.mark.parametrize("log", [b"x" * 100_000, b"\x01" * 100_000, b"\xff" * 100_000])
def test_the_end_of_a_log_is_short_whatever_it_holds(log):
    assert 0 < len(last_lines(log)) <= 4096
