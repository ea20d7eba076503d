"""Many at once, and several servers over the same files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from server.domain.jobs import FileKind
from server.ports import Storage
from tests.contract.storage.conftest import FIRST, SECOND, Place, names, put, running, sweep
from tests.kit.stored import chunks, read

R = FileKind.RESULT


async def test_files_that_are_stored_at_once_do_not_mix(storage: Storage) -> None:
    contents = [bytes([number]) * 50_000 * (number + 1) for number in range(30)]
    stored = await asyncio.gather(*(put(storage, content) for content in contents))
    found = await asyncio.gather(*(read(storage, R, name) for name in stored))
    assert found == contents
    assert await names(storage) == sorted(stored)


async def test_many_read_one_file(storage: Storage) -> None:
    content = bytes(range(256)) * 10_000
    name = await put(storage, content)
    found = await asyncio.gather(
        *(read(storage, R, name, at * 1000, at * 1000 + 1500) for at in range(50))
    )
    assert found == [content[at * 1000 : at * 1000 + 1500] for at in range(50)]


async def test_sweeps_of_two_servers_take_nothing_from_uploads_under_way(place: Place) -> None:
    first, second = place.first, place.run(SECOND)
    referred = set[str]()

    async def in_use(asked: Sequence[str]) -> set[str]:
        return referred & set(asked)

    async def upload(storage: Storage, other: Storage, number: int) -> None:
        async with storage.pending(R) as pending:
            name = await pending.put(chunks(b"%d" % number))
            assert await sweep(other, in_use, running(FIRST, SECOND)) == 0
            assert await sweep(storage, in_use, running(FIRST, SECOND)) == 0
            referred.add(name)
            pending.commit()

    uploads = [upload(first, second, number) for number in range(10)]
    uploads += [upload(second, first, number) for number in range(10)]
    await asyncio.gather(*uploads)
    assert set(await names(first)) == referred
    assert len(referred) == 20
