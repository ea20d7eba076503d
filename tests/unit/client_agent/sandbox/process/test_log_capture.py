"""Log capture: pipes are read to their end, and what is stored is limited."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import OutputListener
from client_agent.sandbox.process.log_capture import (
    FEWER_BYTES,
    LINE_PAUSE_S,
    MAX_LINES,
    MAX_SMALL_READS,
    MAX_UNWRITTEN,
    TAIL_SIZE,
    LogCapture,
    LogSettings,
)
from tests.kit.real_sandbox import turns

_THREADS = ThreadPoolExecutor(1)


class HangingDisk(Executor):
    """Runs nothing until ``run`` is called."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: work(*args, **kwargs)))
        return future

    def answer(self) -> None:
        held, self.held = self.held, []
        for future, work in held:
            future.set_result(work())


class Piped:
    """A capture, and the other end of its pipe."""

    def __init__(
        self,
        path: Path,
        limit: int,
        hard: int = 1 << 40,
        *,
        threads: Executor = _THREADS,
        listener: OutputListener | None = None,
    ) -> None:
        read, self.write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(self.write, False)
        self.path, self.floods = path, 0
        settings = LogSettings(limit, hard, self._flood, threads, listener)
        self.capture = LogCapture(read, path, "stderr", settings)

    def _flood(self, _: str) -> None:
        self.floods += 1

    async def feed(self, data: bytes) -> None:
        target = self.capture.bytes_read + len(data)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.write, view) :]
            except BlockingIOError:
                await turns()
        while self.capture.bytes_read < target:
            await turns()

    async def end(self) -> bytes:
        os.close(self.write)
        await self.capture.closed
        return self.path.read_bytes()


async def test_everything_is_stored_up_to_the_limit(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 1 << 20)
    data = os.urandom(300_000)
    await piped.feed(data)
    assert await piped.end() == data
    assert not piped.capture.truncated


@pytest.mark.parametrize(
    "size", [100_000, 100_001, 99_999, 100_000 - TAIL_SIZE, 100_001 - TAIL_SIZE]
)
async def test_the_limit_is_exact(tmp_path: Path, size: int) -> None:
    piped = Piped(tmp_path / "log", 100_000)
    data = os.urandom(size)
    await piped.feed(data)
    stored = await piped.end()
    if size <= 100_000:
        assert stored == data
    else:
        assert stored.startswith(data[: 100_000 - TAIL_SIZE])
        assert stored.endswith(data[-TAIL_SIZE:])
        assert b"\n[ferryman: 1 bytes are left out here]\n" in stored
    assert piped.capture.truncated == (size > 100_000)


async def test_beyond_the_limit_start_and_end_are_kept(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 100_000)
    for i in range(200):
        await piped.feed(f"{i:04}".encode() * 1000)
    stored = await piped.end()
    assert len(stored) < 100_000 + 100
    assert stored.startswith(b"0000")
    assert stored.endswith(b"0199" * 100)
    assert b"700000 bytes are left out here" in stored


async def test_a_small_limit_keeps_the_start_only(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 10)
    await piped.feed(b"0123456789abcdef")
    assert await piped.end() == b"0123456789\n[ferryman: 6 bytes are left out here]\n"


async def test_on_flood_is_called_once(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 1000, 5000)
    await piped.feed(b"x" * 5000)
    assert piped.floods == 0
    await piped.feed(b"x")
    await piped.feed(b"x" * 100_000)
    assert piped.floods == 1
    await piped.end()


async def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 1000)
    await piped.feed(b"a" * 2_000_000)
    held = [v for v in vars(piped.capture).values() if isinstance(v, (bytes, bytearray))]
    assert sum(map(len, held)) <= TAIL_SIZE
    assert sum(map(len, piped.capture._unwritten)) <= 1000
    await piped.end()


async def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 1000)
    await piped.feed(b"".join(b"line %d\n" % i for i in range(5000)))
    assert piped.capture.tail(2) == "line 4998\nline 4999"
    await piped.feed(b"\xff\xfe bad")
    assert piped.capture.tail(1) == "\ufffd\ufffd bad"
    await piped.end()


async def test_a_full_disk_does_not_stop_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    monkeypatch.setattr(os, "open", lambda p, f, m=0o777: real("/dev/full", os.O_WRONLY))
    piped = Piped(tmp_path / "log", 1 << 20)
    monkeypatch.undo()
    await piped.feed(b"x" * 500_000)
    assert piped.capture.bytes_read == 500_000
    os.close(piped.write)
    await piped.capture.closed
    assert piped.capture.store_error == "No space left on device"


async def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("kept")
    with pytest.raises(FileExistsError):
        Piped(tmp_path / "log", 1000)
    assert (tmp_path / "log").read_text() == "kept"


async def test_stopping_early_closes_everything(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log", 1000)
    await piped.feed(b"x")
    piped.capture.stop()
    piped.capture.stop()
    await piped.capture.closed
    assert (tmp_path / "log").read_bytes() == b"x"
    with pytest.raises(BrokenPipeError):
        os.write(piped.write, b"y")
    os.close(piped.write)


async def test_single_bytes_are_read_in_larger_pieces_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[Callable[[], None]] = []
    loop = asyncio.get_running_loop()

    def call_later(_: float, resume: Callable[[], None]) -> asyncio.Handle:
        pauses.append(resume)
        return loop.call_soon(int)

    monkeypatch.setattr(loop, "call_later", call_later)
    piped = Piped(tmp_path / "log", 1 << 20)
    for _ in range(MAX_SMALL_READS):
        await piped.feed(b".")
    for _ in range(1000):
        os.write(piped.write, b".")
        await turns()
    assert piped.capture.bytes_read == MAX_SMALL_READS
    (resume,) = pauses
    resume()
    await turns(3)
    assert piped.capture.bytes_read == MAX_SMALL_READS + 1000
    for _ in range(MAX_SMALL_READS - 1):
        await piped.feed(b".")
    assert len(pauses) == 2, "the thousand were one read"
    monkeypatch.undo()
    pauses[1]()
    assert await piped.end() == b"." * (2 * MAX_SMALL_READS - 1 + 1000)


async def test_large_pieces_are_read_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, _: pauses.append(seconds))
    piped = Piped(tmp_path / "log", 1 << 20)
    for _ in range(2 * MAX_SMALL_READS):
        await piped.feed(b"x" * 8192)
    monkeypatch.undo()
    await piped.end()
    assert pauses == []


async def test_a_disk_that_hangs_delays_its_own_job_only(tmp_path: Path) -> None:
    """And that one by a bounded amount of memory, and loses nothing."""
    disk = HangingDisk()
    piped = Piped(tmp_path / "log", 1 << 30, threads=disk)
    sent = 0
    for _ in range(500):  # turns of a loop that nothing blocks
        with contextlib.suppress(BlockingIOError):
            sent += os.write(piped.write, b"x" * 4096)
        await turns()
    assert sent < MAX_UNWRITTEN + 4 * (1 << 16)
    os.close(piped.write)
    while not piped.capture.closed.done():
        disk.answer()
        await turns()
    assert (tmp_path / "log").read_bytes() == b"x" * sent


class Listener:
    """Keeps the calls that it gets.

    Args:
        lines: what it says of how many lines it had to look at.
    """

    def __init__(self, lines: int = 0) -> None:
        self.lines, self.read = lines, [b""]
        self.stored = self.resumed = 0

    def on_output(self, _: str, data: bytes) -> int:
        self.read.append(data)
        self.resumed += not data
        return self.lines if data else 0

    def on_stored(self, _: str) -> None:
        self.stored += 1


async def test_a_listener_gets_what_is_read(tmp_path: Path) -> None:
    listener = Listener()
    piped = Piped(tmp_path / "log", 100_000, listener=listener)
    data = os.urandom(300_000)
    await piped.feed(data)
    await piped.end()
    assert b"".join(listener.read) == data
    assert listener.stored > 0


async def test_it_is_told_after_the_bytes_are_in_the_file(tmp_path: Path) -> None:
    disk, listener = HangingDisk(), Listener()
    piped = Piped(tmp_path / "log", 1 << 20, threads=disk, listener=listener)
    await piped.feed(b"hello")
    assert (listener.stored, piped.path.read_bytes()) == (0, b"")
    disk.answer()
    await turns(3)
    assert (listener.stored, piped.path.read_bytes()) == (1, b"hello")
    await piped.end()


async def test_many_lines_for_the_listener_are_read_more_slowly_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, Callable[[], None]]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda *pause: pauses.append(pause))
    listener = Listener(lines=10 * MAX_LINES)
    piped = Piped(tmp_path / "log", 1 << 20, listener=listener)
    os.write(piped.write, b"x" * 60_000)
    await turns(5)
    assert [seconds for seconds, _ in pauses] == [10 * MAX_LINES * LINE_PAUSE_S]
    assert piped.capture._small_reads == 0
    monkeypatch.undo()
    piped.capture._end_pause()
    os.write(piped.write, b"x" * 5_000)
    await piped.end()
    assert sum(map(len, listener.read)) == 65_000
    assert max(map(len, listener.read[2:])) <= FEWER_BYTES


async def test_while_the_disk_is_behind_it_is_known_that_reading_pauses(tmp_path: Path) -> None:
    disk, listener = HangingDisk(), Listener()
    piped = Piped(tmp_path / "log", 1 << 30, threads=disk, listener=listener)

    def paused() -> bool:
        return piped.capture.paused

    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            os.write(piped.write, b"x" * 4096)
        await turns()
    assert paused()
    assert listener.resumed == 0
    disk.answer()
    await turns(3)
    assert not paused()
    assert listener.resumed == 1, "what was not read is no silence"
    while disk.held:
        disk.answer()
        await turns(3)
    os.close(piped.write)
    while not piped.capture.closed.done():
        disk.answer()
        await turns()
    assert not paused()
