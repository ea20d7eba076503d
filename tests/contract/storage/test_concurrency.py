"""Many at once, and several servers over the same files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from server.domain.files import FileKind
from server.ports import Storage
from tests.contract.storage.conftest import FIRST, SECOND, Place, alive, names, put
from tests.support.stored import chunks, read

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
    runs = [place.first, place.run(SECOND)]
    referred = set[str]()

    async def in_use(asked: Sequence[str]) -> set[str]:
        return referred & set(asked)

    async def upload(storage: Storage, number: int) -> None:
        async with storage.pending(R) as pending:
            name = await pending.put(chunks(b"%d" % number))
            await asyncio.to_thread(int)  # the transaction
            referred.add(name)
            pending.commit()

    async def sweeps(storage: Storage) -> int:
        deleted = 0
        while not done.is_set():
            for name in await names(storage):
                deleted += await storage.delete_orphans(R, [name], in_use, alive(FIRST, SECOND))
            await asyncio.to_thread(int)
        return deleted

    done = asyncio.Event()
    sweeping = [asyncio.create_task(sweeps(storage)) for storage in runs]
    for number in range(20):
        await asyncio.gather(*(upload(storage, number) for storage in runs))
    done.set()
    assert await asyncio.gather(*sweeping) == [0, 0]
    assert set(await names(place.first)) == referred
    assert len(referred) == 40
