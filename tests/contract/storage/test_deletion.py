"""What is deleted is gone, and nothing else is."""

from __future__ import annotations

import pytest

from server.domain.jobs import FileKind
from server.ports import Storage
from tests.contract.storage.conftest import FIRST, names, put
from tests.kit.stored import chunks, read

B, R = FileKind.BUNDLE, FileKind.RESULT


async def test_only_the_files_that_were_named_are_deleted(storage: Storage) -> None:
    bundle, first, second = await put(storage, kind=B), await put(storage), await put(storage)
    await storage.delete([(B, bundle), (R, first)])
    with pytest.raises(FileNotFoundError):
        await read(storage, R, first)
    assert (await names(storage, B), await names(storage)) == ([], [second])
    assert await read(storage, R, second) == b"content"


async def test_what_is_not_there_can_be_deleted(storage: Storage) -> None:
    name = await put(storage)
    await storage.delete([(R, "f" * 20 + FIRST), (B, name), (R, name)])
    await storage.delete([(R, name)])
    assert await names(storage) == []


async def test_a_file_that_is_deleted_can_be_read_to_its_end(storage: Storage) -> None:
    content = b"x" * 3_000_000
    name = await put(storage, content)
    async with storage.open(R, name) as stream:
        await storage.delete([(R, name)])
        assert b"".join([chunk async for chunk in stream]) == content


async def test_what_is_not_committed_is_deleted(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        kept = await pending.put(chunks(b"1"))
        pending.commit()
        await pending.put(chunks(b"2"))
    assert await names(storage) == [kept]


async def test_an_error_deletes_what_is_pending_only(storage: Storage) -> None:
    committed: list[str] = []

    async def fails() -> None:
        async with storage.pending(R) as pending:
            committed.append(await pending.put(chunks(b"1")))
            pending.commit()
            await pending.put(chunks(b"2"))
            raise ValueError("no row")

    with pytest.raises(ValueError, match="no row"):
        await fails()
    assert await names(storage) == committed
