"""Downloads into open files."""

from __future__ import annotations

import io
import os
import threading
from typing import Any, BinaryIO

import pytest

from ferryman import BadArgument, BadBundle, BadDownload, Client
from ferryman.download import ObjectSink
from tests.client.fake_server import FakeServer
from tests.client.test_download import CONTENT, RESULT, Serving
from tests.kit.each import each


async def test_an_open_file_is_no_content_of_a_bundle():
    content: Any = io.BytesIO(b"text")
    async with Client("http://127.0.0.1:9", user="ada") as client:
        with pytest.raises(BadBundle, match=r"in\.txt.*what its read\(\) gives"):
            await client.submit({"run.sh": b"x", "in.txt": content}, service="example")


async def downloaded(handler: Serving, to: BinaryIO) -> None:
    fake = FakeServer().on(RESULT, handler)
    async with fake.serving(), fake.client(retry_for=1) as client:
        done = await client.download(17, to)
    assert (str(done.path), done.size) == ("-", len(CONTENT))


@each(
    "handler",
    [
        Serving(),
        Serving(cut=1_000_000, breaks=2),
        Serving(cut=1_000_000, breaks=1, ranges=False),
        Serving(content=lambda n: CONTENT if n else b"damaged"),
    ],
)
async def test_an_open_file_gets_the_bytes_behind_what_it_has(handler, tmp_path):
    with (tmp_path / "out").open("w+b") as file:
        file.write(b"head")
        await downloaded(handler, file)
        file.seek(0)
        assert file.read() == b"head" + CONTENT


async def test_a_pipe_gets_a_download_that_is_resumed():
    read, write = os.pipe()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(_read_all(read)))
    reader.start()
    with os.fdopen(write, "wb", buffering=0) as file:
        await downloaded(Serving(cut=1_000_000, breaks=2), file)
    reader.join()
    assert got == [CONTENT]


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


async def test_what_a_pipe_got_damaged_is_not_sent_twice():
    read, write = os.pipe()
    reader = threading.Thread(target=_read_all, args=(read,))
    reader.start()
    handler = Serving(content=lambda n: CONTENT if n else b"damaged")
    with os.fdopen(write, "wb", buffering=0) as file, pytest.raises(BadDownload):
        await downloaded(handler, file)
    reader.join()
    assert len(handler.asked) == 1


async def test_what_failed_leaves_an_open_file_as_it_was():
    file = io.BytesIO(b"head")
    file.seek(4)
    with pytest.raises(BadDownload):
        await downloaded(Serving(content=lambda _: b"damaged"), file)
    assert file.getvalue() == b"head"


async def test_a_file_open_as_text_is_refused(tmp_path):
    to: Any = io.StringIO()
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(BadArgument, match="wb"):
            await client.download(17, to)


def test_a_file_that_takes_less_than_it_is_given_gets_all():
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:7]))

    file = Slow()
    sink = ObjectSink(file)
    sink.open()
    sink.write(b"0123456789" * 3)
    assert file.getvalue() == b"0123456789" * 3
