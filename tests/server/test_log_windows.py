"""Which lines of a log a page shows, against reading everything; and any part of a stored log."""

import sys
import threading
import zipfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http import logs as http_logs
from server.http.logs import States, Unpacker
from server.web.job import lines as log_lines
from server.web.job import window as log_window
from server.web.job.lines import Lines
from server.web.job.window import Log, LogKey, search, window_around, window_from, window_to
from shared.files.archives.zip_reader import ZipIndex
from tests.kit.each import each
from tests.kit.raw_archives import zipped

_PARTS = [b"\n", b"a", b"bc\n", b"x" * 9, b"\r", b"\r\n", b"\n\n", b"\xff", "é".encode()]
CONTENT = st.lists(st.sampled_from(_PARTS), max_size=60).map(b"".join)
WINDOWS = {"around": window_around, "to": window_to, "from": window_from}


class Bytes:
    """A log in memory; counts what is read of it."""

    def __init__(self, data: bytes, chunk: int = 1 << 16) -> None:
        self.data, self.chunk, self.read_bytes = data, chunk, 0
        self.log = Log(len(data), self.read, log_window.LineIndex(), commands=True)

    async def read(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        for at in range(start, stop, self.chunk):
            piece = self.data[at : min(stop, at + self.chunk)]
            self.read_bytes += len(piece)
            yield piece

    async def counted(self) -> Log:
        await self.log.count()
        self.read_bytes = 0
        return self.log


@contextmanager
def small() -> Iterator[None]:
    """Windows and steps so small that short logs have many."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"_STEP": 8, "_MOST": 6, "LINES": 5, "_BEFORE": 2, "_BYTES": 40, "SHOWN": 16}
        for name, size in sizes.items():
            patch.setattr(log_window, name, size)
        patch.setattr(log_lines, "SHOWN", 16)
        yield


def naive(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@given(CONTENT, st.integers(1, 70), st.sampled_from([*WINDOWS]))
async def test_a_window_has_the_right_lines(data: bytes, line: int, way: str) -> None:
    with small():
        log = await Bytes(data, chunk=7).counted()
        lines, starts = naive(data), [0] + [at + 1 for at, byte in enumerate(data) if byte == 10]
        assert log.index.lines == len(lines)
        if line <= log.index.ends + 1:
            assert await log.start_of(line) == starts[line - 1]
        window = await WINDOWS[way](log, line)
        assert window.total == len(lines)
        if not lines:
            assert (window.rows, window.at_end) == ([], True)
            return
        numbers = [row.number for row in window.rows]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert min(line, len(lines)) in numbers
        for row in window.rows:
            if len(lines[row.number - 1]) <= 16:
                (alone,) = Lines().feed(lines[row.number - 1] + b"\n")
                assert (row.text, row.more) == (alone.text, 0)
        if way == "to":
            assert numbers[-1] == min(line, len(lines))
        if way == "from":
            assert numbers[0] == min(line, len(lines))
        assert window.next_offset == starts[window.next_line - 1]
        assert window.next_line >= window.last


async def test_a_window_reads_little_of_a_large_log_and_its_lines_are_made_in_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, made = set[int](), log_window._rows

    def rows(*given: Any) -> Any:
        threads.add(threading.get_ident())
        return made(*given)

    monkeypatch.setattr(log_window, "_rows", rows)
    source = Bytes(b"0123456789abcde\n" * 500_000)
    log = await source.counted()
    for way, line in ((window_to, 10**9), (window_around, 250_000), (window_from, 1)):
        assert len((await way(log, line)).rows) == log_window.LINES
    assert source.read_bytes < 4 << 20
    assert threads
    assert threading.get_ident() not in threads


async def test_counting_goes_on_where_it_was_in_the_log_that_was_counted() -> None:
    with small():
        source = Bytes(b"ab\n" * 20, chunk=7)
        for stop, lines in ((10, 4), (20, 7)):
            await source.log.count(most=10)
            assert (source.log.counted, source.log.index.lines) == (stop, lines)
        assert source.read_bytes <= 21 + source.chunk
        await source.log.count()
        assert (source.log.counted, source.log.index.lines) == (60, 20)
        source.data = b"x" * 60
        with pytest.raises(EOFError):
            await source.log.start_of(9)


def test_few_logs_are_remembered_and_states_of_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_window, "_LOGS", 2)
    known = log_window.LogIndexes()
    one, two, three = (LogKey(number, 1, "stdout") for number in range(3))
    first, second = known.of(one, 0), known.of(two, 0)
    assert known.of(one, 0) is first
    known.of(three, 0)
    assert (known.of(one, 0) is first, known.of(two, 0) is second) == (True, False)
    first.add(b"12345")
    assert known.of(one, 5) is first
    assert known.of(one, 4) is not first, "it is shorter than what was counted"
    states = known.states(one)
    assert known.states(one) is states
    for number in range(9):
        known.states(LogKey(number, 2, "stdout"))
    assert known.states(one) is not states


@given(CONTENT, st.lists(st.integers(0, 200)))
def test_lines_are_the_same_however_the_bytes_were_split(data: bytes, cuts: list[int]) -> None:
    whole, parts = Lines(commands=True), Lines(commands=True)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    with small():
        rows = whole.feed(data)
        assert [row for a, b in pairwise(places) for row in parts.feed(data[a:b])] == rows
        assert parts.unfinished() == whole.unfinished()
    assert (parts.number, parts.length) == (whole.number, whole.length)


def test_what_of_a_long_line_is_shown() -> None:
    (row,) = Lines().feed(b"10%\r\x1b[32m50%\r100%\r\n")
    assert str(row.text) == '<span class="f2">100%</span>', "of a progress bar the last state"
    lines = Lines()
    for part in range(20_000):
        lines.feed(b"%6d%%\r" % part)
    now = lines.unfinished()
    assert now is not None
    assert (str(now.text), now.more) == (" 19999%", 0)

    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"\x1b[31m" + b"y" * 1000) == []
    assert lines.length == 100_500
    (row, after) = lines.feed(b"\nnext\n")
    assert row.more == 100_500 - log_lines.SHOWN
    assert str(after.text) == '<span class="f1">next</span>'
    for before in (b"", b"x"):
        (row,) = Lines().feed(before + "é".encode() * 4000 + b"\n")
        assert "\ufffd" not in row.text, "a character was cut"


@given(CONTENT, st.sampled_from(["a", "BC", "x", "É", "xxx", "\u00ff"]), st.integers(1, 30))
async def test_every_line_with_the_text_is_found(data: bytes, text: str, line: int) -> None:
    with small():
        log = await Bytes(data, chunk=7).counted()
        lines = [one.decode("utf-8", "replace").lower() for one in naive(data)]
        first = min(line, max(1, len(lines)))
        wanted = [n for n, one in enumerate(lines, 1) if text.lower() in one and n >= first]
        found = await search(log, text, line)
    assert [one.line for one in found.matches] == wanted
    assert found.next_line is None


async def test_a_search_stops_after_some_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_window, "_SEARCHED", 1000)
    source = Bytes(b"nothing\n" * 1000 + b"hit\n", chunk=100)
    log = await source.counted()
    line, found = 1, await search(log, "hit", 1)
    assert source.read_bytes <= 1100
    while found.next_line is not None:
        assert found.next_line > line
        line, found = found.next_line, await search(log, "hit", found.next_line)
    assert [one.line for one in found.matches] == [1001]


BEFORE, BEHIND = "…" + "a" * 80, "b" * 80 + "…"


@each(
    "line, text, parts",
    [
        ("İstanbul İs on", "is", ("", "İs", "tanbul İs on")),
        ("İİİ İzmir", "İZ", ("İİİ ", "İz", "mir")),
        ("ΟΔΟΣ", "σ", ("ΟΔΟ", "Σ", "")),
        ("a" * 300 + "\x1b[1mHi\x1b[0mt" + "b" * 300, "hit", (BEFORE, "Hit", BEHIND)),
        ("a" * 70_000 + "hit", "HIT", (BEFORE, "hit", "")),
        # over the border of two blocks
        ("a" * ((5 << 18) - 5) + "needle", "needle", (BEFORE, "needle", "")),
    ],
)
async def test_what_is_found_is_shown_with_what_is_around_and_marked_where_it_is(
    line: str, text: str, parts: tuple[str, str, str]
) -> None:
    log = await Bytes(f"x\n{line}\r\n".encode()).counted()
    (one,) = (await search(log, text, 1)).matches
    assert (one.line, one.before, one.text, one.behind) == (2, *parts)


def test_each_character_has_one_in_lower_case() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert len(log_window._small(every)) == len(every)
    assert all(len(log_window._small(one)) == 1 for one in every)


_LINES = b"".join(b"%d %x\n" % (number, number * 7919) for number in range(60_000))


@each("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_part_is_the_same_as_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    monkeypatch.setattr(http_logs, "_PACKED", 1_000)
    monkeypatch.setattr(http_logs, "_BETWEEN", 20_000)
    made, path = zipped({"first": b"x" * 1000, "log": _LINES}, method), tmp_path / "result.zip"
    path.write_bytes(made)
    with path.open("rb") as file:
        entry, _ = ZipIndex(file.fileno()).find("log")
    assert entry is not None
    states: States = {}
    for number in range(60):
        start = number * 7_919_777 % len(_LINES)
        stop = start + number * 99_991 % (len(_LINES) - start + 1)
        pieces = list(Unpacker(path, entry, states, 5_000).read(start, stop))
        assert b"".join(pieces) == _LINES[start:stop]
    assert (len(states) > 10) == (method == zipfile.ZIP_DEFLATED)
    assert len(states) <= http_logs._STATES + 1
    if states:  # what was reached once is not unpacked again
        whole = len(list(Unpacker(path, entry, {}, 5_000).read(0, len(_LINES))))
        last = list(Unpacker(path, entry, states, 5_000).read(len(_LINES) - 10, len(_LINES)))
        assert len(last) < whole / 10
