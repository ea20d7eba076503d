"""Which lines of a log a page shows, against reading everything; and any part of a stored log."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http import logs as http_logs
from server.http.logs import States, Unpacker
from server.web.job import lines as log_lines
from server.web.job import window as log_window
from server.web.job.lines import Lines
from server.web.job.window import (
    MOST,
    LineIndex,
    Log,
    LogIndexes,
    LogKey,
    search,
    window_around,
    window_from,
    window_to,
)
from shared.files.archives.zip_directory import ZipEntry
from shared.files.archives.zip_index import ZipIndex
from tests.kit.each import each

_PARTS = [b"\n", b"a", b"bc\n", b"x" * 9, b"\r", b"\r\n", b"\n\n", b"\xff", "é".encode()]
CONTENT = st.lists(st.sampled_from(_PARTS), max_size=60).map(b"".join)


class Bytes:
    """A log in memory; counts what is read of it."""

    def __init__(self, data: bytes, chunk: int = 7) -> None:
        self.data, self.chunk, self.read_bytes = data, chunk, 0

    async def read(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        for at in range(start, stop, self.chunk):
            piece = self.data[at : min(stop, at + self.chunk)]
            self.read_bytes += len(piece)
            yield piece

    def log(self, index: LineIndex | None = None) -> Log:
        return Log(len(self.data), self.read, index or LineIndex(), commands=True)


def naive(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Windows and steps so small that short logs have many."""
    monkeypatch.setattr(log_window, "_STEP", 8)
    monkeypatch.setattr(log_window, "_MOST", 6)
    monkeypatch.setattr(log_window, "LINES", 5)
    monkeypatch.setattr(log_window, "_BEFORE", 2)
    monkeypatch.setattr(log_window, "_BYTES", 40)
    monkeypatch.setattr(log_window, "SHOWN", 16)
    monkeypatch.setattr(log_lines, "SHOWN", 16)


def text_of(line: bytes) -> str:
    rows = Lines().feed(line + b"\n")
    return str(rows[0].text)


@given(CONTENT, st.integers(1, 70))
async def test_a_line_begins_where_it_does(data, line):
    log = Bytes(data).log()
    await log.count()
    lines = naive(data)
    assert log.index.lines == len(lines)
    if line <= log.index.ends + 1:
        starts = [0] + [at + 1 for at, byte in enumerate(data) if byte == 10]
        assert await log.start_of(line) == starts[line - 1]


@given(CONTENT, st.integers(1, 70), st.sampled_from(["around", "to", "from"]))
async def test_a_window_has_the_right_lines(data, line, way):
    log = Bytes(data).log()
    await log.count()
    lines = naive(data)
    windows = {"around": window_around, "to": window_to, "from": window_from}
    window = await windows[way](log, line)
    assert window.total == len(lines)
    if not lines:
        assert window.rows == []
        assert window.at_end
        return
    numbers = [row.number for row in window.rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert min(line, len(lines)) in numbers
    for row in window.rows:
        if len(lines[row.number - 1]) <= 16:
            assert (str(row.text), row.more) == (text_of(lines[row.number - 1]), 0)
    if way == "to":
        assert numbers[-1] == min(line, len(lines))
    starts = [0] + [at + 1 for at, byte in enumerate(data) if byte == 10]
    assert window.next_offset == starts[window.next_line - 1]
    assert window.next_line >= window.last


@given(CONTENT)
async def test_all_windows_together_are_the_log(data):
    log = Bytes(data).log()
    await log.count()
    seen, at = [], 1
    while at <= log.index.lines:
        window = await window_from(log, at)
        seen += [row.number for row in window.rows]
        at = window.last + 1
    assert seen == list(range(1, len(naive(data)) + 1))


async def test_a_window_reads_little_of_a_large_log(monkeypatch):
    monkeypatch.undo()
    source = Bytes(b"0123456789abcde\n" * 500_000, chunk=1 << 16)
    log = source.log()
    await log.count()
    source.read_bytes = 0
    for window in (await window_to(log, 10**9), await window_around(log, 250_000)):
        assert len(window.rows) == log_window.LINES
    assert source.read_bytes < 4 << 20


async def test_a_huge_line_is_cut_and_the_next_one_is_found(monkeypatch):
    monkeypatch.undo()
    source = Bytes(b"one\n" + b"x" * (3 << 20) + b"\nthree\n", chunk=1 << 16)
    log = source.log()
    await log.count()
    source.read_bytes = 0
    window = await window_from(log, 2)
    assert [(row.number, row.more) for row in window.rows] == [(2, (3 << 20) - log_lines.SHOWN)]
    assert (window.next_line, window.at_end) == (3, False)
    assert source.read_bytes < 1 << 20
    assert [row.number for row in (await window_to(log, 10**9)).rows] == [3]
    assert [row.number for row in (await window_from(log, 3)).rows] == [3]


async def test_a_huge_line_behind_others_is_shown(monkeypatch):
    monkeypatch.undo()
    log = Bytes(b"one\n" + b"x" * (3 << 20), chunk=1 << 16).log()
    await log.count()
    for window in (await window_around(log, 2), await window_from(log, 1)):
        assert [(row.number, row.more) for row in window.rows] == [
            (1, 0),
            (2, (3 << 20) - log_lines.SHOWN),
        ]
        assert window.at_end
        assert window.next_offset == 4


async def test_counting_goes_on_where_it_was():
    source = Bytes(b"ab\n" * 20)
    log = source.log()
    await log.count(most=10)
    assert (log.counted, log.index.lines) == (10, 4)
    await log.count(most=10)
    assert source.read_bytes <= 21 + source.chunk
    await log.count()
    assert (log.counted, log.index.lines) == (60, 20)


async def test_a_log_that_is_not_the_one_that_was_counted_is_refused():
    source = Bytes(b"ab\n" * 20)
    log = source.log()
    await log.count()
    source.data = b"x" * 60
    with pytest.raises(EOFError):
        await log.start_of(9)


def test_few_logs_are_remembered(monkeypatch):
    monkeypatch.setattr(log_window, "_LOGS", 2)
    indexes = LogIndexes()
    keys = [LogKey(number, 1, "stdout") for number in range(3)]
    first, second = indexes.of(keys[0], 0), indexes.of(keys[1], 0)
    assert indexes.of(keys[0], 0) is first
    indexes.of(keys[2], 0)
    assert indexes.of(keys[0], 0) is first
    assert indexes.of(keys[1], 0) is not second
    indexes.of(keys[0], 0)
    first.add(b"12345")
    assert indexes.of(keys[0], 5) is first
    assert indexes.of(keys[0], 4) is not first


@given(CONTENT, st.lists(st.integers(0, 200)))
def test_lines_are_the_same_however_the_bytes_were_split(data, cuts):
    whole, parts = Lines(commands=True), Lines(commands=True)
    rows = whole.feed(data)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    split = [row for a, b in pairwise(places) for row in parts.feed(data[a:b])]
    assert split == rows
    assert parts.unfinished() == whole.unfinished()
    assert (parts.number, parts.length) == (whole.number, whole.length)


def test_of_a_progress_bar_the_last_state_is_shown():
    lines = Lines()
    (row,) = lines.feed(b"10%\r\x1b[32m50%\r100%\r\n")
    assert str(row.text) == '<span class="f2">100%</span>'
    lines = Lines()
    for part in range(20_000):
        lines.feed(b"%6d%%\r" % part)
    now = lines.unfinished()
    assert now is not None
    assert (str(now.text), now.more) == (" 19999%", 0)


def test_a_long_line_says_how_much_is_not_shown():
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"\x1b[31m" + b"y" * 1000) == []
    assert lines.length == 100_500
    (row, after) = lines.feed(b"\nnext\n")
    assert row.more == 100_500 - log_lines.SHOWN
    assert str(after.text) == '<span class="f1">next</span>'


def test_a_character_is_not_cut(monkeypatch):
    monkeypatch.undo()
    (row,) = Lines().feed("é".encode() * 4000 + b"\n")
    assert "\ufffd" not in row.text
    (row,) = Lines().feed(b"x" + "é".encode() * 4000 + b"\n")
    assert "\ufffd" not in row.text


@each(
    ("line", "kind", "text"),
    [
        ("::error::no luck", "error", "Error</b> no luck"),
        ("::warning::<b>", "warning", "Warning</b> &lt;b&gt;"),
        ("::progress value=4,total=10::step", "progress", "Progress 4 of 10</b> step"),
        ("::output name=<i>::1", "output", "Output &lt;i&gt;</b> 1"),
        ("::nothing::x", "", "::nothing::x"),
        ("::error", "", "::error"),
        (" ::error::x", "", " ::error::x"),
    ],
)
def test_commands_are_marked(monkeypatch, line, kind, text):
    monkeypatch.undo()
    (row,) = Lines(commands=True).feed(line.encode() + b"\n")
    assert row.kind == kind
    assert str(row.text).endswith(text)
    (row,) = Lines().feed(line.encode() + b"\n")
    assert row.kind == ""


# -- searching


@given(CONTENT, st.sampled_from(["a", "BC", "x", "É", "xxx", "\u00ff"]), st.integers(1, 30))
async def test_every_line_with_the_text_is_found(data, text, line):
    log = Bytes(data).log()
    await log.count()
    lines = [one.decode("utf-8", "replace").lower() for one in naive(data)]
    first = min(line, max(1, len(lines)))
    wanted = [n for n, one in enumerate(lines, 1) if text.lower() in one and n >= first]
    found = await search(log, text, line)
    assert [one.line for one in found.matches] == wanted
    assert found.next_line is None


async def test_a_search_stops_and_goes_on(monkeypatch):
    monkeypatch.undo()
    log = Bytes(b"hit\nmiss\n" * 600, chunk=1 << 16).log()
    await log.count()
    found = await search(log, "HIT", 1)
    assert [one.line for one in found.matches] == list(range(1, 2 * MOST, 2))
    assert found.next_line == 2 * MOST
    rest = await search(log, "hit", found.next_line)
    assert [one.line for one in rest.matches] == list(range(2 * MOST + 1, 1200, 2))
    assert rest.next_line is None


async def test_a_search_reads_so_many_bytes_at_once(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(log_window, "_SEARCHED", 1000)
    source = Bytes(b"nothing\n" * 1000 + b"hit\n", chunk=100)
    log = source.log()
    await log.count()
    source.read_bytes = 0
    line, found = 1, await search(log, "hit", 1)
    assert source.read_bytes <= 1100
    while found.next_line is not None:
        assert found.next_line > line
        line, found = found.next_line, await search(log, "hit", found.next_line)
    assert [one.line for one in found.matches] == [1001]


async def test_what_is_found_is_shown_with_what_is_around(monkeypatch):
    monkeypatch.undo()
    log = Bytes(b"a" * 300 + b"\x1b[1mHi\x1b[0mt" + b"b" * 300 + b"\r\n", chunk=1 << 16).log()
    await log.count()
    (one,) = (await search(log, "hit", 1)).matches
    assert (one.before, one.text, one.behind) == ("…" + "a" * 80, "Hit", "b" * 80 + "…")


@each(
    ("line", "text", "parts"),
    [
        ("İstanbul İs on", "is", ("", "İs", "tanbul İs on")),
        ("İİİ İzmir", "İZ", ("İİİ ", "İz", "mir")),
        ("ΟΔΟΣ", "σ", ("ΟΔΟ", "Σ", "")),
        ("a" * 70_000 + "hit", "HIT", ("…" + "a" * 80, "hit", "")),
    ],
)
async def test_what_is_found_is_marked_where_it_is(monkeypatch, line, text, parts):
    monkeypatch.undo()
    log = Bytes(f"x\n{line}\r\n".encode(), chunk=1 << 16).log()
    await log.count()
    (one,) = (await search(log, text, 1)).matches
    assert (one.line, one.before, one.text, one.behind) == (2, *parts)


def test_each_character_has_one_in_lower_case():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert len(log_window._small(every)) == len(every)
    assert all(len(log_window._small(one)) == 1 for one in every)


async def test_a_search_for_what_is_nearly_everywhere_costs_as_much_as_any_other(monkeypatch):
    monkeypatch.undo()
    lines = (b"a" * 65_000 + b"ab\n") * 40

    async def cost_s(text: str) -> float:
        log = Bytes(lines, chunk=1 << 16).log()
        log = replace(log, run=at_once)
        await log.count()
        before = time.thread_time()
        assert len((await search(log, text, 1)).matches) == 40
        return time.thread_time() - before

    async def at_once(work, *args):
        return work(*args)

    usual = min([await cost_s("ab") for _ in range(3)])
    assert await cost_s("a" * 199 + "b") < 20 * usual  # a regular expression: 60 times


async def test_a_text_over_the_border_of_two_blocks_is_found(monkeypatch):
    monkeypatch.undo()
    block = 1 << 20
    log = Bytes(b"x" * (block + 65_533) + b"needle" + b"y" * block, chunk=1 << 16).log()
    await log.count()
    assert [one.line for one in (await search(log, "needle", 1)).matches] == [1]


async def test_lines_of_many_colours_are_not_made_on_the_event_loop(monkeypatch):
    threads = set()

    def rows(*given):
        threads.add(threading.get_ident())
        return made(*given)

    made = log_window._rows
    monkeypatch.setattr(log_window, "_rows", rows)
    log = Bytes(b"\x1b[1mx\x1b[my\n" * 3).log()
    await log.count()
    for window in (await window_to(log, 3), await window_around(log, 1), await window_from(log, 1)):
        assert window.first == 1
    assert threads
    assert threading.get_ident() not in threads


# -- logs that are in results

_LINES = b"".join(b"%d %x\n" % (number, number * 7919) for number in range(60_000))


def packed(folder: Path, method: int) -> tuple[Path, ZipEntry]:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("first", b"x" * 1000)
        archive.writestr("log", _LINES)
    path = folder / "result.zip"
    path.write_bytes(b"before" + made.getvalue())
    fd = os.open(path, os.O_RDONLY)
    try:
        entry, _ = ZipIndex(fd, 6, len(made.getvalue())).find("log")
    finally:
        os.close(fd)
    assert entry is not None
    return path, entry


@each("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_part_is_the_same_as_of_the_whole(tmp_path, monkeypatch, method):
    monkeypatch.setattr(http_logs, "_PACKED", 1_000)
    monkeypatch.setattr(http_logs, "_BETWEEN", 20_000)
    path, entry = packed(tmp_path, method)
    states: States = {}
    for number in range(60):
        start = number * 7_919_777 % len(_LINES)
        stop = start + number * 99_991 % (len(_LINES) - start + 1)
        pieces = list(Unpacker(path, entry, states, 5_000).read(start, stop))
        assert b"".join(pieces) == _LINES[start:stop]
    assert (len(states) > 10) == (method == zipfile.ZIP_DEFLATED)
    assert len(states) <= http_logs._STATES + 1


def test_what_was_reached_once_is_not_unpacked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(http_logs, "_BETWEEN", 20_000)
    path, entry = packed(tmp_path, zipfile.ZIP_DEFLATED)
    states: States = {}
    whole = len(list(Unpacker(path, entry, states, 5_000).read(0, len(_LINES))))
    last = list(Unpacker(path, entry, states, 5_000).read(len(_LINES) - 10, len(_LINES)))
    assert len(last) < whole / 10


def test_a_damaged_log_is_refused(tmp_path):
    path, entry = packed(tmp_path, zipfile.ZIP_DEFLATED)
    with pytest.raises(EOFError):
        list(Unpacker(path, replace(entry, packed=1000), {}).read(0, len(_LINES)))
    with path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\xff" * 100)
    with pytest.raises(zlib.error):
        list(Unpacker(path, entry, {}).read(0, len(_LINES)))


def test_states_are_kept_of_few_logs():
    known = LogIndexes()
    keys = [LogKey(number, 1, "stdout") for number in range(9)]
    first = known.states(keys[0])
    assert known.states(keys[0]) is first
    for key in keys:
        known.states(key)
    assert known.states(keys[0]) is not first
