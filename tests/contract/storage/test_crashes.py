"""A crash leaves a whole file without a row, or nothing; never half a file under a name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from server.agents import answers
from server.domain.jobs import FileKind
from server.ports import ScratchFile, Storage
from server.storage.scratch import FolderScratch
from shared.clock import RealClock
from tests.contract.storage.conftest import FIRST, SECOND, Place, names, put, rows, running, sweep
from tests.kit.inline_database import SimulatedCrash
from tests.kit.stored import chunks, read

R = FileKind.RESULT


async def breaking(error: BaseException) -> AsyncIterator[bytes]:
    yield b"x" * 100_000
    raise error


@pytest.mark.parametrize("error", [SimulatedCrash(), asyncio.CancelledError(), ValueError()])
async def test_half_a_stream_is_no_file(place: Place, error: BaseException) -> None:
    with pytest.raises(type(error)):
        async with place.first.pending(R) as pending:
            await pending.put(breaking(error))
    assert await names(place.first) == await names(place.run(SECOND)) == []


async def dies_after_storing(storage: Storage, stored: list[str]) -> None:
    async with storage.pending(R) as pending:
        stored.append(await pending.put(chunks(b"whole")))
        raise SimulatedCrash


async def test_a_crash_before_the_row_leaves_an_orphan_for_the_next_run(place: Place) -> None:
    stored: list[str] = []
    with pytest.raises(SimulatedCrash):
        await dies_after_storing(place.first, stored)
    following = place.run(SECOND)
    assert await read(following, R, stored[0]) == b"whole"
    assert await sweep(following, rows(), running(SECOND)) == 1
    assert await names(following) == []


async def test_a_crash_after_the_row_loses_nothing(place: Place) -> None:
    stored: list[str] = []
    with pytest.raises(SimulatedCrash):
        await dies_after_storing(place.first, stored)  # the row is there; no caller got an answer
    following = place.run(SECOND)
    assert await sweep(following, rows(*stored), running(SECOND)) == 0
    assert await read(following, R, stored[0]) == b"whole"


async def test_a_cancelled_write_may_still_come_so_its_file_stays(storage: Storage) -> None:
    async def accept(stored: asyncio.Event) -> None:
        async with storage.pending(R) as pending:
            await pending.put(chunks(b"x"))
            stored.set()
            await asyncio.Event().wait()  # the database is about to write the row

    stored = asyncio.Event()
    task = asyncio.create_task(accept(stored))
    await stored.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await sweep(storage, rows(), running(FIRST)) == 0
    assert len(await names(storage)) == 1


async def test_scratch_files_go_with_their_run(place: Place) -> None:
    one, other = place.scratch(FIRST), place.scratch(SECOND)
    with one.file() as dead, other.file() as living:
        for file in (dead, living):
            file.path.write_bytes(b"half")
        archive = dead.path.with_name(f"{dead.path.name}.archive")
        archive.write_bytes(b"half an archive")
        assert await place.scratch("0000000000c3").clear(running(SECOND)) == 2
        assert (dead.path.exists(), archive.exists(), living.path.exists()) == (False, False, True)


async def test_what_was_committed_outlives_the_run(place: Place) -> None:
    name = await put(place.first, b"kept")
    assert await read(place.run(SECOND), R, name) == b"kept"


@pytest.mark.parametrize("of_an_agent", [False, True])
async def test_a_scratch_file_that_is_made_for_a_caller_who_was_cancelled_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_an_agent: bool
) -> None:
    begun, go_on, real = threading.Event(), threading.Event(), Path.open

    def slow(path: Path, *how: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return real(path, *how, **more)

    async def store(scratch: FolderScratch) -> None:
        with scratch.file() as file:
            await (fetch(file) if of_an_agent else file.write(chunks(b"content")))

    async def fetch(file: ScratchFile) -> None:
        unread = cast(aiohttp.ClientResponse, None)
        await answers.store(unread, file, RealClock())

    monkeypatch.setattr(Path, "open", slow)
    storing = asyncio.create_task(store(FolderScratch(tmp_path, FIRST, lambda: "0" * 20)))
    await asyncio.to_thread(begun.wait, 30)
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []
