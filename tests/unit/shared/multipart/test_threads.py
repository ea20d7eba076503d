from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shared.files.bundles.format import BundleSummary
from shared.files.bundles.reader import BundleReader
from shared.files.staged_file import BLOCK
from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import BATCH, FIRST_BATCH, Received, Threads, receive
from shared.multipart.sinks import BundleSink
from tests.kit.raw_archives import (
    BOUNDARY,
    FORM,
    file_part,
    form_of,
    in_pieces,
    text_part,
)

LIMITS = FormLimits(max_bytes=256 << 20)


class Recorder:
    """A sink that can be held up, and records what it got."""

    def expands(self, part) -> bool:
        return False

    def __init__(self) -> None:
        self.log: list[str] = []
        self.taken = self.writes = 0
        self.busy = threading.Event()
        self.free = threading.Event()
        self.problem: BaseException | None = None
        self.threads: set[int] = set()

    def begin(self, part) -> None:
        self.log.append("begin")

    def write(self, data) -> None:
        self.threads.add(threading.get_ident())
        self.busy.set()
        assert self.free.wait(60)
        self.taken += len(data)
        self.writes += 1
        if self.problem is not None:
            raise self.problem

    def end(self) -> None:
        self.log.append("end")

    def finish(self) -> BundleSummary:
        self.log.append("finish")
        return BundleSummary(1, "", 1, self.taken)

    def abort(self) -> None:
        self.log.append("abort")


async def turns(n: int = 20) -> None:
    """Let everything that is ready run; no time passes."""
    loop = asyncio.get_running_loop()
    for _ in range(n):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


def start(sink: Recorder, chunks, folder: Path) -> asyncio.Task[Received]:
    return asyncio.ensure_future(
        receive(
            chunks,
            FORM,
            None,
            staging=folder / "s",
            limits=LIMITS,
            on_first_file=lambda _: sink,
        )
    )


HEAD = file_part("run.sh")[:-2]
TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


async def test_the_sender_is_held_back_while_the_disk_is_behind(tmp_path):
    sink, sent = Recorder(), 0
    chunk = bytes(256 << 10)

    async def body():
        nonlocal sent
        yield HEAD
        for _ in range(256):  # 64 MiB
            sent += len(chunk)
            yield chunk
        yield TAIL

    task = start(sink, body(), tmp_path)
    await asyncio.to_thread(sink.busy.wait, 60)
    await turns(500)
    # One batch in the thread, one waiting, each of at most BATCH and the chunk that filled it.
    assert sink.taken == 0
    assert sent <= 2 * (BATCH + len(chunk))
    sink.free.set()
    received = await task
    assert received.bundle.bytes == sent == 64 << 20
    assert sink.threads != {threading.get_ident()}
    assert sink.log == ["begin", "end", "finish"]


async def test_the_pieces_of_a_batch_are_written_as_one(tmp_path):
    sink = Recorder()
    sink.free.set()
    body = HEAD + bytes(50_000) + TAIL
    assert (await start(sink, in_pieces(body, 1000), tmp_path)).bundle.bytes == 50_000
    assert sink.log == ["begin", "end", "finish"]
    assert sink.writes == 1


@pytest.mark.parametrize(("size", "threads"), [(100, 0), (40_000, 1)], ids=["small", "many pieces"])
async def test_a_bundle_that_is_kept_in_memory_needs_no_thread(tmp_path, size, threads):
    body, used = HEAD + bytes(size) + TAIL, []

    class Counting(ThreadPoolExecutor):
        def submit(self, *what: Any, **more: Any) -> Any:
            used.append(what)
            return super().submit(*what, **more)

    with Counting(1) as executor:
        received = await receive(
            in_pieces(body, 500),
            FORM,
            len(body),
            staging=tmp_path / "s",
            limits=LIMITS,
            on_first_file=lambda _: BundleSink(tmp_path / "s", LIMITS, "filename", keep=64 << 10),
            threads=Threads(executor),
        )
    assert len(used) == threads
    assert received.bundle.bytes == size
    assert received.bundle.content is not None
    assert not (tmp_path / "s").exists()


async def test_an_upload_that_stalls_holds_little_memory(tmp_path):
    sink, stalled, sent = Recorder(), asyncio.Event(), 0
    sink.free.set()

    async def body():
        nonlocal sent
        yield HEAD
        for _ in range(58):
            sent += 16 << 10
            yield bytes(16 << 10)
            # What is in the thread's hands gets there.
            await asyncio.get_running_loop().run_in_executor(None, int)
        stalled.set()
        await asyncio.Event().wait()
        yield TAIL

    task = start(sink, body(), tmp_path)
    await stalled.wait()
    assert sent > 900 << 10
    assert sent - sink.taken <= 160 << 10  # a batch in the thread, and one that fills
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_chunk_before_is_not_held_while_the_next_is_waited_for(tmp_path):
    sink, stalled = Recorder(), asyncio.Event()
    sink.free.set()
    chunk = bytes(FIRST_BATCH)
    held = sys.getrefcount(chunk)

    async def body():
        yield HEAD
        yield chunk
        stalled.set()
        await asyncio.Event().wait()

    task = start(sink, body(), tmp_path)
    await stalled.wait()
    for _ in range(1000):
        if sys.getrefcount(chunk) == held:
            break
        await asyncio.get_running_loop().run_in_executor(None, int)
    assert sys.getrefcount(chunk) == held
    assert sink.taken == len(chunk)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pieces_of_one_byte_do_not_add_up_to_much_memory(tmp_path):
    sink, sent = Recorder(), 0

    async def body():
        nonlocal sent
        yield HEAD
        for _ in range(1 << 16):
            sent += 1
            yield b"x"
        yield TAIL

    task = start(sink, body(), tmp_path)
    await asyncio.to_thread(sink.busy.wait, 60)
    await turns(200)
    assert sent < 2 * BATCH // 100
    sink.free.set()
    assert (await task).bundle.bytes == 1 << 16


async def test_memory_stays_flat_in_the_real_writer(tmp_path):
    sent = most = 0
    content = os.urandom(256 << 10)

    async def body():
        nonlocal sent, most
        yield HEAD
        for _ in range(256):  # 64 MiB
            sent += len(content)
            most = max(most, sent - (tmp_path / "s").stat().st_size if sent > 4 << 20 else 0)
            yield content
        yield TAIL

    received = await receive(body(), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert received.bundle.bytes == sent
    # Two batches as above, a block that fills, and one that is being written.
    assert most <= 2 * (BATCH + len(content)) + len(content) + 2 * BLOCK


@pytest.mark.parametrize("total", [0, 1000, 60 << 10])
async def test_a_small_form_costs_one_hop_to_a_thread(tmp_path, monkeypatch, total):
    loop = asyncio.get_running_loop()
    real, hops = loop.run_in_executor, []

    def counting(executor, function, *args):
        hops.append(function)
        return real(executor, function, *args)

    monkeypatch.setattr(loop, "run_in_executor", counting)
    body = form_of(text_part("user_id", "1"), file_part("run.sh"), file_part("x", bytes(total)))
    await receive(in_pieces(body, 10_000), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert len(hops) == 1


async def test_a_form_refused_before_anything_was_written_costs_no_hop(tmp_path, monkeypatch):
    monkeypatch.setattr(
        asyncio.get_running_loop(), "run_in_executor", lambda *_: pytest.fail("a hop")
    )
    with pytest.raises(FormRefused):
        await receive(
            in_pieces(form_of(file_part("run.sh"))[:-5]),
            FORM,
            None,
            staging=tmp_path / "s",
            limits=LIMITS,
        )


async def test_cancellation_waits_for_the_thread_and_then_leaves_nothing(tmp_path):
    sink = Recorder()

    async def body():
        yield HEAD
        while True:
            yield bytes(1 << 20)

    task = start(sink, body(), tmp_path)
    await asyncio.to_thread(sink.busy.wait, 60)
    for _ in range(3):  # once is not enough for some
        task.cancel()
        await turns()
    assert not task.done()
    assert sink.log == ["begin"]
    sink.free.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.log == ["begin", "abort"]


async def test_cancellation_while_the_bundle_is_sealed_leaves_nothing(tmp_path):
    sink = Recorder()
    task = start(sink, in_pieces(HEAD + b"x" + TAIL), tmp_path)
    await asyncio.to_thread(sink.busy.wait, 60)
    task.cancel()
    await turns()
    sink.free.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.log == ["begin", "end", "finish", "abort"]


@pytest.mark.parametrize("megabytes", [0, 1, 5])
async def test_an_upload_cancelled_at_any_time_leaves_no_file(tmp_path, megabytes):
    waits = asyncio.Event()

    async def body():
        yield HEAD
        for _ in range(megabytes):
            yield bytes(1 << 20)
        waits.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(receive(body(), FORM, None, staging=tmp_path / "s", limits=LIMITS))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("problem", "raised"), [(ConnectionResetError, FormRefused), (TimeoutError, TimeoutError)]
)
async def test_a_sender_that_fails_leaves_no_file(tmp_path, problem, raised):
    async def body():
        yield HEAD
        for _ in range(5):
            yield bytes(1 << 20)
        raise problem("gone")

    with pytest.raises(raised) as caught:
        await receive(body(), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    if isinstance(caught.value, FormRefused):
        assert (caught.value.code, caught.value.part) == ("body_cut_short", "run.sh")
    assert list(tmp_path.iterdir()) == []


async def test_a_sender_that_is_gone_after_its_form_was_complete_is_not_taken_for_served(tmp_path):
    async def body():
        yield form_of(file_part("run.sh"))
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        await receive(body(), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("megabytes", [0, 3])
async def test_a_full_disk_is_named_in_the_error(tmp_path, megabytes):
    sink = Recorder()
    sink.free.set()
    sink.problem = OSError(errno.ENOSPC, "full")

    async def body():
        yield HEAD + b"x"
        for _ in range(megabytes):
            yield bytes(1 << 20)
        yield TAIL

    with pytest.raises(OSError, match="full"):
        await start(sink, body(), tmp_path)
    assert sink.log[-1] == "abort"


async def test_a_refusal_by_the_writer_ends_a_long_upload_early(tmp_path):
    sent = 0

    async def body():
        nonlocal sent
        yield file_part("../x")[:-2]
        for _ in range(200):
            sent += 1
            yield bytes(1 << 20)

    with pytest.raises(FormRefused) as caught:
        await receive(body(), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert caught.value.code == "unsafe_name"
    assert sent < 6
    assert list(tmp_path.iterdir()) == []


async def test_a_staged_file_that_is_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(FileExistsError):
        await receive(
            in_pieces(form_of(file_part("run.sh"))),
            FORM,
            None,
            staging=tmp_path / "s",
            limits=LIMITS,
        )
    assert (tmp_path / "s").read_text() == "precious"


async def test_the_bundle_is_readable_the_moment_the_form_is_received(tmp_path):
    content = os.urandom(3 << 20)
    body = form_of(file_part("run.sh"), file_part("big", content))
    received = await receive(
        in_pieces(body, 100_000), FORM, len(body), staging=tmp_path / "s", limits=LIMITS
    )
    with BundleReader(tmp_path / "s") as reader:
        assert reader.summary() == received.bundle
        digest = hashlib.sha256(b"".join(reader.content("big", 1 << 20)))
    assert digest.digest() == hashlib.sha256(content).digest()
