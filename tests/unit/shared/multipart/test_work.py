"""No form costs more than its length: work is counted, not timed."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest

from shared.multipart.parser import FormLimits, FormParser, FormRefused
from shared.multipart.receive import Threads, receive
from tests.kit.each import each

LIMITS = FormLimits(max_bytes=1 << 30, max_files=100_000)


class Ignored:
    """A listener that keeps nothing."""

    def field(self, name: str, value: str) -> None: ...
    def file_begins(self, part: Any) -> None: ...
    def file_data(self, data: Any) -> None: ...
    def file_ends(self) -> None: ...


def work(boundary: bytes, pieces: list[bytes]) -> int:
    """Calls of functions, Python's and C's, and lines that are run, until the form is read."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += 1

    def trace(frame: FrameType, event: str, arg: object):
        nonlocal count
        count += 1
        return trace

    form = FormParser(boundary, LIMITS, Ignored())
    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        for piece in pieces:
            try:
                form.feed(piece)
            except FormRefused:
                break
    finally:
        sys.setprofile(before[0])
        sys.settrace(before[1])
    return count


def file_part(b: bytes, name: bytes = b"f", content: bytes = b"") -> bytes:
    head = b'Content-Disposition: form-data; name="x"; filename="%s"' % name
    return b"--%s\r\n%s\r\n\r\n%s\r\n" % (b, head, content)


LONG = b"b" * 199
SHAPES = {
    "a short boundary, almost there": lambda n: (b"b", file_part(b"b") + b"\r\n--a\r\n--" * n),
    "a short boundary, there but for its end": lambda n: (b"b", file_part(b"b") + b"\r\n--bx" * n),
    "a long boundary, almost there": lambda n: (
        LONG, file_part(LONG) + (b"\r\n--" + LONG[:-1]) * (n // 20)
    ),
    "returns": lambda n: (b"b", file_part(b"b") + b"\r" * 4 * n),
    "hyphens": lambda n: (b"b", file_part(b"b") + b"-" * 4 * n),
    "parts without end": lambda n: (b"b", file_part(b"b") * (n // 10)),
    "inputs left alone": lambda n: (b"b", file_part(b"b", b"") * (n // 10)),
    "fields": lambda n: (b"b", b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\n1\r\n' * n),
    "a field of digits": lambda n: (
        b"b", b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\n' + b"9" * 20 * n
    ),
    "headers without end": lambda n: (b"b", b"--b\r\n" + b"a: b\r\n" * n),
    "one header without end": lambda n: (b"b", b"--b\r\na: " + b"b" * 10 * n),
    "a header's name without end": lambda n: (b"b", b"--b\r\n" + b"a" * 10 * n),
    "a disposition of semicolons": lambda n: (
        b"b", b"--b\r\nContent-Disposition: form-data" + b"; a=b" * n + b"\r\n\r\n"
    ),
    "line ends before the first part": lambda n: (b"b", b"\r\n" * n),
    "padding behind a boundary": lambda n: (b"b", file_part(b"b") + b"\r\n--b" + b" " * 10 * n),
    "what follows the end": lambda n: (b"b", file_part(b"b") + b"--b--\r\n" + b"x\r\n" * n),
}  # fmt: skip
CUTS = {"at once": 1 << 20, "in small pieces": 64, "in single bytes": 1}


@each("cut", CUTS)
@each("shape", SHAPES)
def test_twice_the_body_is_twice_the_work(shape, cut):
    counts = []
    for n in (500, 1000):
        boundary, body = SHAPES[shape](n)
        size = CUTS[cut]
        counts.append(work(boundary, [body[at : at + size] for at in range(0, len(body), size)]))
    assert counts[1] <= 2.2 * counts[0] + 200


async def test_a_form_of_many_parts_lets_other_tasks_run(tmp_path):
    turns = 0
    parts = 4000

    async def others() -> None:
        nonlocal turns
        while True:
            future = asyncio.get_running_loop().create_future()
            future.get_loop().call_soon(future.set_result, None)
            await future
            turns += 1

    async def body():
        yield file_part(b"b", b"") * parts  # in one chunk

    task = asyncio.create_task(others())
    with pytest.raises(FormRefused):
        await receive(
            body(),
            "multipart/form-data; boundary=b",
            None,
            staging=tmp_path / "s",
            limits=LIMITS,
        )
    task.cancel()
    assert turns > parts // 200


async def test_of_many_such_forms_one_is_parsed_between_two_turns_of_others(tmp_path):
    fed: list[int] = []
    turn = 0
    real = FormParser.feed

    def feed(form: FormParser, chunk: bytes) -> None:
        fed.append(turn)
        real(form, chunk)

    threads = Threads(parsing=asyncio.Lock())

    async def others() -> None:
        nonlocal turn
        while True:
            future = asyncio.get_running_loop().create_future()
            future.get_loop().call_soon(future.set_result, None)
            await future
            turn += 1

    async def body():
        yield file_part(b"b", b"") * 1000

    async def upload(number: int) -> None:
        with pytest.raises(FormRefused):
            await receive(
                body(),
                "multipart/form-data; boundary=b",
                None,
                staging=tmp_path / str(number),
                limits=LIMITS,
                threads=threads,
            )

    task = asyncio.create_task(others())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FormParser, "feed", feed)
        await asyncio.gather(*(upload(number) for number in range(16)))
    task.cancel()
    assert len(fed) > 16 * 5
    assert max(fed.count(number) for number in set(fed)) <= 2
