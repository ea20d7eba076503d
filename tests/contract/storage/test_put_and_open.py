"""What is stored can be read, whole and in parts, as often as one likes."""

from __future__ import annotations

import hashlib
import re

import pytest

from server.domain.jobs import FileKind
from server.ports import Storage
from tests.contract.storage.conftest import FIRST, Place, put, running
from tests.kit.stored import chunks, read

B, R = FileKind.BUNDLE, FileKind.RESULT
LARGE = hashlib.shake_128(b"large").digest(2_500_000)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 300_000, LARGE], ids=len)
async def test_what_was_put_can_be_read(storage: Storage, content: bytes) -> None:
    name = await put(storage, content)
    assert await read(storage, R, name) == content
    async with storage.open(R, name) as stream:
        assert stream.size == len(content)
    async with storage.local_copy(R, name) as path:
        assert path.read_bytes() == content
    assert await read(storage, R, name) == content  # reading changes nothing


async def test_a_stream_of_many_chunks_is_one_file(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        name = await pending.put(chunks(b"a", b"", b"b" * 100_000, b"c"))
        assert await read(storage, R, name) == b"a" + b"b" * 100_000 + b"c"


async def test_a_scratch_file_is_stored_with_its_content(place: Place) -> None:
    scratch = place.scratch(FIRST)
    async with place.first.pending(B) as pending:
        with scratch.file() as file:
            file.path.write_bytes(LARGE)
            name = await pending.put(file)
        pending.commit()
    assert await read(place.first, B, name) == LARGE
    assert await scratch.clear(running()) == 0  # nothing of it is left over


async def test_a_name_says_who_stored_the_file_and_is_never_given_again(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        names = [await pending.put(chunks(b"same")) for _ in range(20)]
    assert len(set(names)) == 20
    assert all(re.fullmatch(rf"[0-9a-f]{{20}}{FIRST}", name) for name in names)


async def test_kinds_do_not_mix(storage: Storage) -> None:
    name = await put(storage, kind=B)
    with pytest.raises(FileNotFoundError):
        await read(storage, R, name)


@pytest.mark.parametrize("content", [b"0123456789", LARGE], ids=len)
@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 10), (0, 1), (3, 7), (9, 10), (3, None), (0, 0), (5, 5), (5, 10**9), (10**9, None)],
)
async def test_the_range_ends_before_its_end(
    storage: Storage, content: bytes, start: int, end: int | None
) -> None:
    name = await put(storage, content)
    assert await read(storage, R, name, start, end) == content[start:end]
    async with storage.open(R, name, start, end) as stream:
        assert stream.size == len(content)  # of the whole file


async def test_ranges_over_chunks_make_up_the_file(storage: Storage) -> None:
    name = await put(storage, LARGE)
    step = 700_001
    parts = [await read(storage, R, name, at, at + step) for at in range(0, len(LARGE), step)]
    assert b"".join(parts) == LARGE


async def test_a_file_that_is_not_there_says_so(storage: Storage) -> None:
    missing = "f" * 20 + FIRST
    with pytest.raises(FileNotFoundError):
        await read(storage, R, missing)
    with pytest.raises(FileNotFoundError):
        async with storage.local_copy(R, missing) as path:
            path.read_bytes()
