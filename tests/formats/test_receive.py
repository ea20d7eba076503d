"""A form on its way to the disk: what becomes the bundle, in which thread, with how much memory,
and what is left when it is not finished.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from shared.files.bundles.format import BundleSummary
from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import BATCH, FIRST_BATCH, Received, receive
from tests.kit.each import each
from tests.kit.raw_archives import (
    BOUNDARY,
    FORM,
    file_part,
    form_of,
    in_pieces,
    part,
    tarred,
    unpacked,
    zipped,
)
from tests.kit.waiting import turns

LIMITS = FormLimits(max_bytes=256 << 20)
MIB = 1 << 20
HELLO = {"run.sh": b"echo hello\n", "data/in.txt": b"1 2 3\n"}
IN_TOP = {f"top/{name}": content for name, content in HELLO.items()}


async def received(folder: Path, chunks: bytes | AsyncIterator[bytes], **more: Any) -> Received:
    """At ``folder/s``."""
    pieces = in_pieces(chunks, more.pop("piece", 1 << 16)) if isinstance(chunks, bytes) else chunks
    length = more.pop("length", None)
    return await receive(pieces, FORM, length, staging=folder / "s", limits=LIMITS, **more)


def endless(before: bytes, count: int = 1 << 30) -> AsyncIterator[bytes]:
    async def body() -> AsyncIterator[bytes]:
        yield before
        for _ in range(count):
            yield bytes(MIB)

    return body()


# ---------------------------------------------------------------------------- what comes out


async def test_a_delimiter_is_found_wherever_chunks_are_cut(tmp_path):
    almost = f"\r\n--{BOUNDARY[:-1]}".encode()
    files = {"run.sh": b"a" * 300, "data": b"b" * 90 + almost + b"\r" + almost * 2 + b"c" * 99}
    body = form_of(*(file_part(name, content) for name, content in files.items()))
    first = body.index(b"b" * 90) + 50
    for cut in range(first, len(body)):

        async def chunks(cut: int = cut):
            for piece in (body[: first - 10], body[first - 10 : cut], body[cut:]):
                yield piece

        await received(tmp_path, chunks(), length=len(body))
        assert unpacked(tmp_path / "s", tmp_path / "out") == files
        (tmp_path / "s").unlink()


REFERENCE = {"naming": "part", "archives": False}
"""How a job-orchestrator server sends."""
NAMES = [
    part('name="a"; filename="run.sh"', b"1"),
    part('name="file[]"; filename="x"', b"2"),
    part('name=""; filename="y"', b"3"),
    part('name="left_alone"; filename=""'),
]
OF_PARTS = [
    part('name="run.sh"; filename="run.sh"', b"1"),
    part("name*=utf-8''data%2Fin.pdb; filename=\"in.pdb\"", b"2"),
    file_part("x.zip", b"as it is", "bundle"),
]


def bundle(name: str, content: bytes) -> bytes:
    return file_part(name, content, "bundle")


@each("piece", [50, 1 << 16])
@each(
    ("parts", "how", "files"),
    [
        (NAMES, {}, {"run.sh": b"1", "x": b"2", "y": b"3"}),
        ([file_part(*one) for one in IN_TOP.items()], {}, HELLO),
        ([bundle(*one) for one in HELLO.items()], {}, HELLO),
        ([bundle("B.ZIP", zipped(IN_TOP))], {}, HELLO),
        ([bundle("b.tgz", tarred(HELLO, "w:gz"))], {}, HELLO),
        ([bundle("misnamed.tar", zipped(HELLO))], {}, HELLO),
        ([file_part("run.sh"), file_part("in.zip", b"PK")], {}, {"run.sh": b"", "in.zip": b"PK"}),
        (OF_PARTS, REFERENCE, {"run.sh": b"1", "data/in.pdb": b"2", "bundle": b"as it is"}),
    ],
)
async def test_a_form_becomes_the_bundle_that_was_meant(tmp_path, parts, how, files, piece):
    text = part('name="text"', "é".encode(), b"Content-Type: text/plain; charset=utf-8")
    found = await received(tmp_path, form_of(text, *parts), piece=piece, **how)
    assert found.fields == {"text": "é"}
    assert {path.name for path in tmp_path.iterdir()} <= {"s", "out"}
    assert unpacked(tmp_path / "s", tmp_path / "out") == files
    (tmp_path / "s").unlink()


# ---------------------------------------------------------------------------- threads and memory


class Recorder:
    """A sink that can be held up, and records what it got."""

    def __init__(self, *, free: bool = False) -> None:
        self.log: list[str] = []
        self.taken = 0
        self.busy, self.free = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        if free:
            self.free.set()

    def expands(self, part) -> bool:
        return False

    def write(self, data) -> None:
        self.threads.add(threading.get_ident())
        self.busy.set()
        assert self.free.wait(60)
        self.taken += len(data)

    def finish(self) -> BundleSummary:
        self.log.append("finish")
        return BundleSummary(1, "", 1, self.taken)

    def __getattr__(self, step: str) -> Callable[..., None]:
        """To begin and end a file, and to abort."""
        return lambda *_: self.log.append(step)


async def threads_had_their_turn() -> None:
    await asyncio.get_running_loop().run_in_executor(None, int)


def start(folder: Path, sink: Recorder, chunks) -> asyncio.Task[Received]:
    return asyncio.ensure_future(received(folder, chunks, on_first_file=lambda _: sink))


async def give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


HEAD = file_part("run.sh")[:-2]
TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


class Sender:
    """A form with a file of so many chunks."""

    def __init__(self, chunk: bytes, count: int, *, stalls: bool = False) -> None:
        self._chunk, self._count, self._stalls = chunk, count, stalls
        self.sent, self.stalled = 0, asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        yield HEAD
        for _ in range(self._count):
            self.sent += len(self._chunk)
            yield self._chunk
            if self._stalls:
                await threads_had_their_turn()  # what is in the thread's hands gets there
        if self._stalls:
            self.stalled.set()
            await asyncio.Event().wait()
        yield TAIL


@each(
    ("size", "count", "most"),
    [
        # One batch in the thread, one waiting, each of at most BATCH and the chunk that filled it.
        (256 << 10, 64, 2 * (BATCH + (256 << 10))),
        (1, 1 << 15, 2 * BATCH // 100),  # pieces of one byte do not add up to much memory
    ],
)
async def test_the_sender_is_held_back_while_the_disk_is_behind(tmp_path, size, count, most):
    sink, sender = Recorder(), Sender(bytes(size), count)
    task = start(tmp_path, sink, sender.body())
    await asyncio.to_thread(sink.busy.wait, 60)
    await turns(500)
    assert sink.taken == 0
    assert sender.sent <= most
    sink.free.set()
    assert (await task).bundle.bytes == sender.sent == size * count
    assert threading.get_ident() not in sink.threads
    assert sink.log == ["begin", "end", "finish"]


async def test_an_upload_that_stalls_holds_little_memory(tmp_path):
    sink, sender = Recorder(free=True), Sender(bytes(16 << 10), 58, stalls=True)
    task = start(tmp_path, sink, sender.body())
    await sender.stalled.wait()
    assert sender.sent > 900 << 10
    assert sender.sent - sink.taken <= 160 << 10  # a batch in the thread, and one that fills
    await give_up(task)


async def test_the_chunk_before_is_not_held_while_the_next_is_waited_for(tmp_path):
    chunk = bytes(FIRST_BATCH)
    held = sys.getrefcount(chunk)
    sink, sender = Recorder(free=True), Sender(chunk, 1, stalls=True)
    held += 1  # the sender's own
    task = start(tmp_path, sink, sender.body())
    await sender.stalled.wait()
    for _ in range(1000):
        if sys.getrefcount(chunk) == held:
            break
        await threads_had_their_turn()
    assert (sys.getrefcount(chunk), sink.taken) == (held, len(chunk))
    await give_up(task)


# ---------------------------------------------------------------------------- not finished


@each(
    ("body", "begun"),
    [
        (lambda: endless(HEAD), ["begin"]),
        (lambda: in_pieces(HEAD + b"x" + TAIL), ["begin", "end", "finish"]),  # it is being sealed
    ],
)
async def test_cancellation_waits_for_the_thread_and_then_leaves_nothing(tmp_path, body, begun):
    sink = Recorder()
    task = start(tmp_path, sink, body())
    await asyncio.to_thread(sink.busy.wait, 60)
    for _ in range(3):  # once is not enough for some
        task.cancel()
        await turns(20)
    assert (task.done(), sink.log) == (False, ["begin"])
    sink.free.set()
    await give_up(task)
    assert sink.log == [*begun, "abort"]


@each(
    ("problem", "before", "megabytes", "raised"),
    [
        (ConnectionResetError("gone"), HEAD, 5, FormRefused),
        (TimeoutError("gone"), HEAD, 5, TimeoutError),
        # The form was complete: it is not taken for served.
        (ConnectionResetError("gone"), form_of(file_part("run.sh")), 0, ConnectionResetError),
    ],
)
async def test_a_sender_that_fails_leaves_no_file(tmp_path, problem, before, megabytes, raised):
    async def body():
        async for piece in endless(before, megabytes):
            yield piece
        raise problem

    with pytest.raises(raised) as caught:
        await received(tmp_path, body())
    if isinstance(caught.value, FormRefused):
        assert (caught.value.code, caught.value.part) == ("body_cut_short", "run.sh")
    assert list(tmp_path.iterdir()) == []


async def test_a_refusal_by_the_writer_ends_a_long_upload_early(tmp_path):
    sent = 0

    async def body():
        nonlocal sent
        async for piece in endless(file_part("../x")[:-2], 200):
            sent += 1
            yield piece

    with pytest.raises(FormRefused) as caught:
        await received(tmp_path, body())
    assert caught.value.code == "unsafe_name"
    assert sent < 7
    assert list(tmp_path.iterdir()) == []


async def test_a_staged_file_that_is_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(FileExistsError):
        await received(tmp_path, form_of(file_part("run.sh")))
    assert (tmp_path / "s").read_text() == "precious"
