"""Where there is no space, nothing is stored, and what is there stays."""

from __future__ import annotations

import errno

import pytest

from server.domain.jobs import FileKind
from tests.contract.storage.conftest import FIRST, Place, names, put, rows, running, sweep
from tests.kit.stored import chunks, read

R = FileKind.RESULT


async def test_a_file_that_does_not_fit_is_refused_and_leaves_nothing(place: Place) -> None:
    kept = await put(place.first, b"kept")
    with place.full(), pytest.raises(OSError, match="No space left") as caught:
        async with place.first.pending(R) as pending:
            await pending.put(chunks(b"x" * 100_000))
    assert caught.value.errno == errno.ENOSPC
    assert await names(place.first) == [kept]
    assert await read(place.first, R, kept) == b"kept"
    assert list((place.folder / "staging").iterdir()) == []


async def test_a_scratch_file_that_cannot_be_stored_leaves_nothing(place: Place) -> None:
    with place.scratch(FIRST).file() as file:
        file.path.write_bytes(b"x")
        with place.full(), pytest.raises(OSError, match="No space left"):
            async with place.first.pending(R) as pending:
                await pending.put(file)
    assert await names(place.first) == []


async def test_there_is_room_again_after_a_deletion(place: Place) -> None:
    name = await put(place.first)
    with place.full():
        with pytest.raises(OSError, match="No space left"):
            await put(place.first)
        await place.first.delete([(R, name)])
    assert await names(place.first) == []
    assert await read(place.first, R, await put(place.first, b"again")) == b"again"
    assert await sweep(place.first, rows(), running(FIRST)) == 1
