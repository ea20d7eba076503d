"""bwrap's JSON status arrives in pieces, and may be anything."""

from __future__ import annotations

import os

import pytest

from client_agent.sandbox.process.pipes import StatusPipe
from tests.kit.real_sandbox import turns


@pytest.fixture
async def pipe() -> tuple[StatusPipe, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    return StatusPipe(read), write


async def test_a_document_in_single_bytes_is_one_document(pipe: tuple[StatusPipe, int]) -> None:
    status, write = pipe
    for byte in b'{ "child-pid": 4711, "net-namespace": 1 }\n':
        assert not status.child_pid.done()
        os.write(write, bytes([byte]))
        await turns(3)
    assert status.child_pid.result() == 4711
    for byte in b'{ "exit-code": 3 }':
        os.write(write, bytes([byte]))
        await turns(3)
    assert status.exit_code is None, "the line has not ended"
    os.write(write, b"\n")
    os.close(write)
    await status.closed
    assert status.exit_code == 3


async def test_two_documents_in_one_piece_are_two(pipe: tuple[StatusPipe, int]) -> None:
    status, write = pipe
    os.write(write, b'{"child-pid": 1}\n{"exit-code": 0}\n')
    os.close(write)
    await status.closed
    assert (status.child_pid.result(), status.exit_code) == (1, 0)


async def test_an_end_without_exit_code_is_no_exit_code(pipe: tuple[StatusPipe, int]) -> None:
    status, write = pipe
    os.write(write, b'{"child-pid": 1}\n')
    os.close(write)
    await status.closed
    assert status.exit_code is None


async def test_an_end_without_a_document_means_that_there_is_no_child(
    pipe: tuple[StatusPipe, int],
) -> None:
    status, write = pipe
    os.close(write)
    assert await status.child_pid is None


@pytest.mark.parametrize(
    "garbage", [b"not json\n", b"[1]\n", b'"x"\n', b'{"exit-code": "0"}\n', b"\xff\xfe\n", b"\n"]
)
async def test_invalid_documents_are_ignored(pipe: tuple[StatusPipe, int], garbage: bytes) -> None:
    status, write = pipe
    os.write(write, garbage + b'{"child-pid": 7}\n')
    assert await status.child_pid == 7
    assert status.exit_code is None
    os.close(write)
    await status.closed


async def test_a_line_without_end_takes_no_memory(pipe: tuple[StatusPipe, int]) -> None:
    status, write = pipe
    for _ in range(40):
        os.write(write, b"x" * 60_000)
        await turns(3)
    held = [v for v in vars(status).values() if isinstance(v, bytes)]
    assert max(map(len, held)) <= 1 << 16
    os.close(write)
    await status.closed


async def test_stopping_twice_is_harmless(pipe: tuple[StatusPipe, int]) -> None:
    status, write = pipe
    status.stop()
    status.stop()
    assert status.child_pid.result() is None
    os.close(write)
