"""Log capture: pipes are read to their end, and what is stored is limited."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.process import log_capture
from client_agent.sandbox.process.log_capture import (
    FEWER_BYTES,
    MAX_LINES,
    MAX_SMALL_READS,
    MAX_UNWRITTEN,
    TAIL_SIZE,
    LogCapture,
    LogSettings,
)
from tests.kit.each import each
from tests.kit.real_sandbox import turns
from tests.kit.waiting import until

_THREADS = ThreadPoolExecutor(1)


class HangingDisk(Executor):
    """Writes nothing until ``answer`` is called."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: work(*args, **kwargs)))
        return future

    async def answer(self) -> None:
        held, self.held = self.held, []
        for future, work in held:
            future.set_result(work())
        await turns(3)


class Piped:
    """A capture, the other end of its pipe, and who listens.

    Args:
        lines: what the listener says of how many lines it had to look at.
    """

    def __init__(
        self,
        path: Path,
        limit: int = 1 << 20,
        hard: int = 1 << 40,
        *,
        lines: int = 0,
        threads: Executor = _THREADS,
    ) -> None:
        source, self.write = os.pipe()
        for fd in (source, self.write):
            os.set_blocking(fd, False)
        self.path, self.lines, self.pieces, self.floods = path, lines, list[bytes](), list[str]()
        self.stored = self.resumed = 0
        settings = LogSettings(limit, hard, self.floods.append, threads, self)
        self.capture = LogCapture(source, path, "stderr", settings)

    def on_output(self, _: str, data: bytes) -> int:
        self.pieces += [data] * bool(data)
        self.resumed += not data
        return self.lines if data else 0

    def on_stored(self, _: str) -> None:
        self.stored += 1

    async def feed(self, data: bytes) -> None:
        target = self.capture.bytes_read + len(data)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.write, view) :]
            except BlockingIOError:
                await turns()
        await until(lambda: self.capture.bytes_read >= target)

    async def end(self) -> bytes:
        os.close(self.write)
        await self.capture.closed
        return self.path.read_bytes()


TAIL = 300_000 - TAIL_SIZE


@each(
    "limit, size, start, tail",
    [
        (300_000, 299_999, 299_999, 0),
        (300_000, 300_000, 300_000, 0),
        (300_000, 300_001, TAIL, TAIL_SIZE),
        (300_000, 1_000_000, TAIL, TAIL_SIZE),
        (300_000, TAIL, TAIL, 0),
        (10, 16, 10, 0),  # of a small one the start only
    ],
)
async def test_all_is_stored_up_to_the_limit_and_beyond_it_start_and_end(
    tmp_path_factory: pytest.TempPathFactory, limit: int, size: int, start: int, tail: int
) -> None:
    piped, data = Piped(tmp_path_factory.mktemp("logs") / "log", limit), os.urandom(size)
    await piped.feed(data)
    stored, missing = await piped.end(), size - start - tail
    assert b"".join(piped.pieces) == data
    assert piped.stored > 0
    assert piped.capture.truncated == (missing > 0)
    marker = b"\n[ferryman: %d bytes are left out here]\n" % missing if missing else b""
    assert stored == data[:start] + marker + data[size - tail :]


async def test_a_line_without_end_takes_no_memory_and_the_tail_is_the_last_lines(
    tmp_path: Path,
) -> None:
    """That there was too much is said once."""
    piped = Piped(tmp_path / "log", 1000, 5000)
    await piped.feed(b"a" * 5000)
    assert piped.floods == []
    await piped.feed(b"a" * 2_000_000)
    held = [v for v in vars(piped.capture).values() if isinstance(v, (bytes, bytearray))]
    assert sum(map(len, held)) <= TAIL_SIZE
    await piped.feed(b"".join(b"line %d\n" % i for i in range(5000)))
    assert piped.capture.tail(2) == "line 4998\nline 4999"
    await piped.feed(b"\xff\xfe bad")
    assert piped.capture.tail(1) == "\ufffd\ufffd bad"
    assert piped.floods == ["stderr"]
    await piped.end()


async def test_a_full_disk_does_not_stop_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    monkeypatch.setattr(os, "open", lambda p, f, m=0o777: real("/dev/full", os.O_WRONLY))
    piped = Piped(tmp_path / "log")
    monkeypatch.undo()
    await piped.feed(b"x" * 500_000)
    os.close(piped.write)
    await piped.capture.closed
    assert piped.capture.bytes_read == 500_000
    assert piped.capture.store_error == "No space left on device"


async def test_stopping_early_closes_everything_and_no_file_is_overwritten(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log")
    await piped.feed(b"x")
    piped.capture.stop()
    piped.capture.stop()
    await piped.capture.closed
    with pytest.raises(BrokenPipeError):
        os.write(piped.write, b"y")
    os.close(piped.write)
    with pytest.raises(FileExistsError):
        Piped(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"x"


async def test_single_bytes_are_read_in_larger_pieces_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large pieces are read as they come."""
    monkeypatch.setattr(log_capture, "PAUSE_S", 3600.0)
    piped = Piped(tmp_path / "log")
    for _ in range(2 * MAX_SMALL_READS):
        await piped.feed(b"x" * 8192)
        assert not piped.capture.paused
    piped.pieces.clear()
    for _ in range(MAX_SMALL_READS):
        assert not piped.capture.paused
        await piped.feed(b".")
    for _ in range(1000):
        os.write(piped.write, b".")
        await turns()
    assert piped.capture.paused
    piped.capture.finish()
    await piped.end()
    assert [len(piece) for piece in piped.pieces] == [*[1] * MAX_SMALL_READS, 1000]


async def test_many_lines_for_the_listener_are_read_more_slowly_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_capture, "PAUSE_S", 0.0)
    monkeypatch.setattr(log_capture, "LINE_PAUSE_S", 3600.0)
    piped = Piped(tmp_path / "log", lines=10 * MAX_LINES)
    for size in (60_000, 5_000, 9_000):
        os.write(piped.write, b"x" * size)
        await turns(5)
        assert (piped.capture.paused, piped.capture.bytes_read) == (True, 60_000)
    piped.capture.finish()
    await piped.end()
    sizes = [len(piece) for piece in piped.pieces]
    assert sum(sizes) == 74_000
    assert max(sizes[1:]) <= FEWER_BYTES


async def test_a_disk_that_hangs_delays_its_own_job_only(tmp_path: Path) -> None:
    """And that one by a bounded amount of memory, and loses nothing. Who listens is told when bytes
    are in the file, and that reading had paused: what was not read is no silence."""
    disk = HangingDisk()
    piped, sent = Piped(tmp_path / "log", threads=disk), 0
    await piped.feed(b"hello")
    assert (piped.stored, piped.path.read_bytes()) == (0, b"")
    await disk.answer()
    assert (piped.stored, piped.path.read_bytes()) == (1, b"hello")
    for _ in range(500):  # as much as the pipe takes, in turns of a loop that nothing blocks
        with contextlib.suppress(BlockingIOError):
            sent += os.write(piped.write, b"x" * 4096)
        await turns()
    assert sent < MAX_UNWRITTEN + 4 * (1 << 16)
    assert (piped.capture.paused, piped.resumed) == (True, 0)
    await disk.answer()
    assert (piped.capture.paused, piped.resumed) == (False, 1)
    os.close(piped.write)
    for _ in range(100):
        await disk.answer()
    assert (piped.capture.closed.done(), piped.capture.paused) == (True, False)
    assert piped.path.read_bytes() == b"hello" + b"x" * sent
